"""Layers that are frozen as they were built: weights that nothing was loaded into, and that nothing has trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from flatline.sensors.loop import OptimizerState
from flatline.sensors.models import Model, readable
from flatline.sensors.tree import named_modules, named_parameters, parameters

LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # of one way to start: uniform within 1 / sqrt(fan in)
ENOUGH = 32  # weights from which on a uniform distribution shows
MOSTLY = 0.5  # share of the frozen weights that an earlier optimizer trained


def random_and_frozen(layer: Any, loaded: Mapping[int, Any]) -> bool:
    """A linear or convolution layer without gradients, with the uniform weights that torch gives a new one."""
    weight: Any = getattr(layer, "weight", None)
    if not isinstance(layer, LINEAR) or weight.requires_grad or not readable(weight) or weight.numel() < ENOUGH:
        return False
    if id(weight) in loaded and loaded[id(weight)]() is weight:
        return False
    bound = float(weight[0].numel()) ** -0.5
    values = weight.detach().float()
    size, largest = (float(v) for v in torch.stack([values.std(), values.abs().max()]))
    return bool(0.9 * bound < largest <= 1.001 * bound and abs(size * 3**0.5 - bound) < 0.15 * bound)


def head_left_at_random(
    model: Model,
    state: OptimizerState,
    before: Iterable[OptimizerState],
    born: Mapping[int, int],
    loaded: Mapping[int, Any],
) -> dict[str, Any] | None:
    """The last layer of a model, built after its frozen body was trained, and frozen with it; as facts of an event."""
    module = model.ref()
    mine = state.ids
    if module is None or not any(id(p) in mine and p.requires_grad for p in parameters(module)):
        return None
    earlier = [each for each in before if each.born < state.born]
    trained = {key for each in earlier for key in each.held} - mine
    frozen = [p for p in parameters(module) if not p.requires_grad]
    known = sum(p.numel() for p in frozen if id(p) in trained)
    last = _last_layer(model)
    if last is None or known < MOSTLY * sum(p.numel() for p in frozen) or not random_and_frozen(last, loaded):
        return None
    key = id(last.weight)
    if key in trained or born.get(key, 0) <= max(each.born for each in earlier):
        return None
    name = next((name for name, each in named_modules(module) if each is last), "")
    return {
        "model": type(module).__name__,
        "layers": (name,),
        "loaded": sum(id(p) in trained for p in frozen),
        "trains": sum(id(p) in mine for _, p in named_parameters(module)),
    }


def _last_layer(model: Model) -> Any:
    """The one that ran last of those with weights, if it ran with gradients in this step."""
    with_weights = [
        call.module for call in model.calls if call.leaf and next(parameters(call.module), None) is not None
    ]
    return with_weights[-1] if with_weights and id(with_weights[-1]) in model.ran else None
