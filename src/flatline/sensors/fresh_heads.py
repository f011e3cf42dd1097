"""Layers that are frozen as they were built: weights that nothing was loaded into, and that nothing has trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from flatline.sensors.drawn import drawn_alone
from flatline.sensors.loop import OptimizerState
from flatline.sensors.models import Model, readable
from flatline.sensors.tree import named_modules, named_parameters, parameters

LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # of one way to start: uniform within 1 / sqrt(fan in)
ENOUGH = 32  # weights from which on a distribution shows
MOSTLY = 0.5  # share of the frozen weights that were trained before


def random_and_frozen(layer: Any, loaded: Mapping[int, Any]) -> bool:
    """A linear or convolution layer without gradients, with the uniform weights that torch gives a new one."""
    weight = _frozen_weight(layer, loaded)
    return weight is not None and _is_uniform(weight)


def _frozen_weight(layer: Any, loaded: Mapping[int, Any]) -> torch.Tensor | None:
    weight: Any = getattr(layer, "weight", None)
    if not isinstance(layer, LINEAR) or weight.requires_grad or not readable(weight) or weight.numel() < ENOUGH:
        return None
    if id(weight) in loaded and loaded[id(weight)]() is weight:
        return None
    values: torch.Tensor = weight.detach().float()
    return values


def _is_uniform(weight: torch.Tensor) -> bool:
    bound = float(weight[0].numel()) ** -0.5
    size, largest = (float(v) for v in torch.stack([weight.std(), weight.abs().max()]))
    return bool(0.9 * bound < largest <= 1.001 * bound and abs(size * 3**0.5 - bound) < 0.15 * bound)


def head_left_at_random(
    model: Model,
    state: OptimizerState,
    before: Iterable[OptimizerState],
    born: Mapping[int, int],
    loaded: Mapping[int, Any],
) -> dict[str, Any] | None:
    """The last layer of a model, built after its frozen body was trained, and frozen with it; as facts of an event."""
    module, mine = model.ref(), state.ids
    earlier = [each for each in before if each.born < state.born]
    if module is None or not earlier or not any(id(p) in mine and p.requires_grad for p in parameters(module)):
        return None
    since = max(each.born for each in earlier)
    alive = {key for key, ref in loaded.items() if ref() is not None}
    trained = alive.union(*(each.held for each in earlier))
    frozen = [p for p in parameters(module) if not p.requires_grad]
    known = [p for p in frozen if id(p) in trained or id(p) not in born]  # of a deep copy nothing is registered
    layer = _last_layer(model)
    if layer is None or sum(p.numel() for p in known) < MOSTLY * sum(p.numel() for p in frozen):
        return None
    weight = _frozen_weight(layer, loaded)
    if weight is None or id(layer.weight) in trained or born.get(id(layer.weight), 0) <= since:
        return None
    unbiased = layer.bias is None or not bool(layer.bias.any())
    if not _is_uniform(weight) and not (unbiased and drawn_alone(weight)):
        return None
    return {
        "model": type(module).__name__,
        "layers": (next((name for name, each in named_modules(module) if each is layer), ""),),
        "loaded": len(known),
        "trains": sum(id(p) in mine for _, p in named_parameters(module)),
    }


def _last_layer(model: Model) -> Any:
    """The one that ran last of those with weights, if it ran with gradients in this step."""
    with_weights = [
        call.module for call in model.calls if call.leaf and next(parameters(call.module), None) is not None
    ]
    return with_weights[-1] if with_weights and id(with_weights[-1]) in model.ran else None
