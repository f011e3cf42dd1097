"""When a loss is not finite: which tensor was the first?"""

from __future__ import annotations

import math
from typing import Any

import torch

from flatline.events import Origin
from flatline.sensors.graph import Graph, Node, operation, saved, sequence, walk
from flatline.sensors.loop import OptimizerState
from flatline.sensors.losses import module_of
from flatline.sensors.models import ModelSensor

SAVED = ("self", "result", "other", "input", "mat1", "target", "condition", "exponent")


def origin(root: torch.Tensor | None, models: ModelSensor, states: list[OptimizerState]) -> Origin:
    """The first non-finite tensor: the batch, the weights, or the earliest operation of the forward pass."""
    batch = _bad_input(models)
    if batch is not None:
        return batch
    weights = _bad_weights(models, states)
    if weights is not None:
        return weights
    if root is None or root.grad_fn is None:
        return Origin()
    return _bad_operation(walk(root.grad_fn), models)


def _bad_input(models: ModelSensor) -> Origin | None:
    for model in models.models.values():
        tensor = model.last_input() if model.last_input is not None else None
        if tensor is not None and tensor.is_floating_point() and not finite(tensor):
            bad = int((~torch.isfinite(tensor.detach())).sum())
            return Origin(kind="inputs", module=model.label, detail=f"{bad} of {tensor.numel()} values of the batch")
    return None


def _bad_weights(models: ModelSensor, states: list[OptimizerState]) -> Origin | None:
    names = parameter_names(models)
    for state in states:
        for parameter in state.parameters:
            if parameter.is_floating_point() and not finite(parameter):
                return Origin(kind="weights", detail=names.get(id(parameter), "a parameter"))
    return None


def parameter_names(models: ModelSensor) -> dict[int, str]:
    """Names of all parameters of all models; with the model's label where there are several."""
    found: dict[int, str] = {}
    several = len(models.models) > 1
    for model in list(models.models.values()):
        module = model.ref()
        for name, parameter in module.named_parameters() if module is not None else ():
            found.setdefault(id(parameter), f"{model.label}.{name}" if several else name)
    return found


def finite(tensor: torch.Tensor) -> bool:
    """No nan and no inf in it."""
    return bool(torch.isfinite(tensor.detach()).all())


def _bad_operation(graph: Graph, models: ModelSensor) -> Origin:
    shift = graph.first_sequence - models.first_sequence
    for node in sorted((n for n in graph.nodes if not hasattr(n, "variable")), key=sequence):
        found = _look(node)
        if found:
            owner = _owner(node, models, shift)
            return Origin(kind="operation", operation=operation(node).lower(), module=owner, detail=found)
    return Origin()


def _look(node: Node) -> str:
    """What is wrong at a node: what it saved is not finite, or its input makes its result so."""
    name = operation(node)
    kept = {key: value for key in SAVED if isinstance(value := saved(node, key), torch.Tensor)}
    kept = {key: value.detach() for key, value in kept.items() if value.is_floating_point() and value.numel()}
    if name == "Log" and "self" in kept and float(kept["self"].min()) <= 0:
        return f"log of {float(kept['self'].min()):g}"
    if name == "Div" and "other" in kept and bool((kept["other"] == 0).any()):
        return "division by 0"
    for key, value in kept.items():
        if not finite(value):
            return _describe(name, key, value)
    return ""


def _describe(name: str, key: str, value: torch.Tensor) -> str:
    fine = value[torch.isfinite(value)]
    span = f"finite values {float(fine.min()):.3g} to {float(fine.max()):.3g}" if fine.numel() else "no finite value"
    what = "result" if key == "result" else "input"
    kind = "nan" if bool(torch.isnan(value).any()) else "inf"
    return f"{kind} in the {what} of {name.lower()} ({str(value.dtype).removeprefix('torch.')}, {span})"


def _owner(node: Node, models: ModelSensor, shift: int) -> str:
    exact = module_of(node, models, shift)
    if exact:
        return exact
    position, best, distance = sequence(node) - shift, "", math.inf
    for model in models.models.values():
        for call in model.calls:
            gap: Any = call.out_sequence - position
            if call.path and 0 <= gap < distance:
                best, distance = call.path, gap
    return best
