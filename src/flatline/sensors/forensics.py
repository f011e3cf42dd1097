"""When a loss is not finite: which tensor was the first?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from flatline.events import Origin
from flatline.sensors.graph import VIEWS, Graph, Node, children, is_leaf, operation, saved, sequence, source, walk
from flatline.sensors.loop import OptimizerState
from flatline.sensors.losses import module_of
from flatline.sensors.models import ModelSensor
from flatline.sensors.tree import named_parameters

SAVED = ("self", "result", "other", "input", "mat1", "target", "condition", "exponent", "mat2", "batch2")
RISKY = ("Sqrt", "Rsqrt", "Acos", "Asin", "Atanh", "Log", "Log2", "Log10", "Reciprocal", "LinalgEigh", "LinalgSvd")
NAMED = 3
PRODUCTS = ("Addmm", "Mm", "Bmm", "Convolution")


def origin(root: torch.Tensor | None, models: ModelSensor, states: list[OptimizerState]) -> Origin:
    """The first non-finite tensor: the batch, the weights, or the earliest operation of the forward pass.

    Without a root the loss was read later, and what is there now tells nothing about it.
    """
    if root is None:
        return Origin()
    batch = _bad_input(models)
    if batch is not None:
        return batch
    weights = _bad_weights(models, states)
    if weights is not None:
        return weights
    return _bad_operation(walk(root.grad_fn), models) if root.grad_fn is not None else Origin()


def risky_operations(root: torch.Tensor | None, models: ModelSensor) -> str:
    """Operations of this graph whose derivative is infinite at 0, with their modules: they may have made nan before."""
    if root is None or root.grad_fn is None:
        return ""
    graph = walk(root.grad_fn)
    shift = graph.first_sequence - models.first_sequence
    found: dict[str, None] = {}
    for node in sorted(graph.nodes, key=sequence, reverse=True):
        name = operation(node)
        if name in RISKY or (name == "Pow" and _is_root(node)) or (name == "Div" and _by_tensor(node)):
            place = owner(node, models, shift)
            found.setdefault(f"{name.lower()} in {place}" if place else name.lower())
    return ", ".join(list(found)[:NAMED])


def _is_root(node: Node) -> bool:
    exponent = saved(node, "exponent")
    return isinstance(exponent, (int, float)) and 0 < exponent < 1


def _by_tensor(node: Node) -> bool:
    return len(children(node)) > 1


def _bad_input(models: ModelSensor) -> Origin | None:
    for model in models.known:
        tensor = model.last_input() if model.last_input is not None else None
        if tensor is not None and tensor.is_floating_point() and not finite(tensor):
            bad = int((~torch.isfinite(tensor.detach())).sum())
            where = rows(tensor)
            detail = f"{bad} of {tensor.numel()} values of the batch{f', {where}' if where else ''}"
            return Origin(kind="inputs", module=model.label, detail=detail)
    return None


def rows(tensor: torch.Tensor) -> str:
    """Which rows are not finite, where not all of them are."""
    if tensor.dim() < 2 or tensor.shape[0] < 2:
        return ""
    bad = (~torch.isfinite(tensor.detach())).flatten(1).any(1)
    places = bad.nonzero().reshape(-1).tolist()
    if not 0 < len(places) < tensor.shape[0]:
        return ""
    named = ", ".join(str(place) for place in places[:NAMED])
    more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
    return f"row{'s' if len(places) > 1 else ''} {named}{more} of {tensor.shape[0]}"


def _bad_weights(models: ModelSensor, states: list[OptimizerState]) -> Origin | None:
    names = parameter_names(models)
    held = [p for state in states for p in state.parameters if p.is_floating_point()]
    bad = [p for p in held if not finite(p)]
    if not bad:
        return None
    first = names.get(id(bad[0]), "a parameter")
    return Origin(kind="weights", detail=first, count=len(bad), total=len(held))


def parameter_names(models: ModelSensor) -> dict[int, str]:
    """Names of all parameters of all models; with the model's label where there are several."""
    found: dict[int, str] = {}
    several = len(models.models) > 1
    for model in models.outermost():
        module = model.ref()
        for name, parameter in named_parameters(module) if module is not None else ():
            found.setdefault(id(parameter), f"{model.label}.{name}" if several else name)
    return found


def finite(tensor: torch.Tensor) -> bool:
    """No nan and no inf in it."""
    return bool(torch.isfinite(tensor.detach()).all())


def _bad_operation(graph: Graph, models: ModelSensor) -> Origin:
    shift = graph.first_sequence - models.first_sequence
    for node in sorted((n for n in graph.nodes if not is_leaf(n)), key=sequence):
        found = _look(node)
        if found:
            kind: Any = "targets" if found.startswith("target:") else "operation"
            detail = found.removeprefix("target:")
            place = owner(node, models, shift)
            return Origin(kind=kind, operation=operation(node).lower(), module=place, detail=detail)
    return Origin()


def _look(node: Node) -> str:
    """What is wrong at a node: what it saved is not finite, or its input makes its result so."""
    name = operation(node)
    kept = {key: value for key in SAVED if isinstance(value := saved(node, key), torch.Tensor)}
    kept = {key: value.detach() for key, value in kept.items() if value.is_floating_point() and value.numel()}
    told = SPECIAL[name](node, kept) if name in SPECIAL else ""
    if told:
        return told
    for key, value in kept.items():
        if not finite(value):
            return _describe(node, key, value)
    return ""


def _log(node: Node, kept: dict[str, torch.Tensor]) -> str:
    lowest = float(kept["self"].min()) + 0.0 if "self" in kept else math.nan  # -0 is 0
    return f"log of {lowest:g}" if lowest <= 0 else ""


def _division(node: Node, kept: dict[str, torch.Tensor]) -> str:
    if "other" not in kept or not bool((kept["other"] == 0).any()):
        return ""
    below = node.next_functions[1][0] if len(node.next_functions) > 1 else None
    what = DENOMINATORS.get(operation(below), "") if below is not None else ""
    return f"division by 0{f', {what}' if what else ''}"


def _root(node: Node, kept: dict[str, torch.Tensor]) -> str:
    value = kept.get("result")
    if value is None or not bool(torch.isnan(value).any()):
        return ""
    return f"nan in the result of {operation(node).lower()} ({_span(value)}): its input is negative"


def _softmax(node: Node, kept: dict[str, torch.Tensor]) -> str:
    value = kept.get("result")
    if value is None or value.dtype is torch.float16 or value.dim() < 1:
        return ""  # in float16 a score that overflows looks the same
    if _straight_from_product(node):
        return ""  # nothing masks these scores: they overflowed
    dim = saved(node, "dim")
    empty = torch.isnan(value).all(dim if isinstance(dim, int) else -1)
    if not bool(empty.any()) or bool(torch.isnan(value).any() != empty.any()):
        return ""
    return f"softmax over rows of -inf only ({int(empty.sum())} of {empty.numel()} are masked completely)"


def _straight_from_product(node: Node) -> bool:
    """It is given what a layer makes, seen anew or transposed at most."""
    below = children(node)
    while below and operation(below[0]) in (*VIEWS, "T", "Transpose", "Permute", "Clone"):
        below = children(below[0])
    return bool(below) and operation(below[0]) in PRODUCTS


def _mean(node: Node, kept: dict[str, torch.Tensor]) -> str:
    return "mean of 0 elements" if saved(node, "self_sym_numel") == 0 else ""


def _nll(node: Node, kept: dict[str, torch.Tensor]) -> str:
    weight = saved(node, "total_weight")
    empty = isinstance(weight, torch.Tensor) and saved(node, "reduction") == 1 and float(weight) == 0.0
    return "mean of 0 labels: every label of the batch is ignored" if empty else ""


def _deviation(node: Node, kept: dict[str, torch.Tensor]) -> str:
    value, result = kept.get("self"), kept.get("result")
    if value is None or result is None or not bool(torch.isnan(result).any()) or not finite(value):
        return ""
    return f"{operation(node).lower()} of a single value"


SPECIAL: dict[str, Callable[[Node, dict[str, torch.Tensor]], str]] = {
    "Log": _log,
    "Log2": _log,
    "Log10": _log,
    "Div": _division,
    "Sqrt": _root,
    "Softmax": _softmax,
    "SafeSoftmax": _softmax,
    "LogSoftmax": _softmax,
    "Mean": _mean,
    "NllLoss": _nll,
    "NllLoss2D": _nll,
    "Std": _deviation,
}
DENOMINATORS = {
    "Std": "a standard deviation",
    "Var": "a variance",
    "Sqrt": "a root",
    "LinalgVectorNorm": "a norm",
    "Norm": "a norm",
    "Sum": "a sum",
    "Max": "a maximum",
    "Amax": "a maximum",
}


def _describe(node: Node, key: str, value: torch.Tensor) -> str:
    name = operation(node).lower()
    what = "result" if key == "result" else "input"
    kind = "nan" if bool(torch.isnan(value).any()) else "inf"
    if key == "target" or (kind == "nan" and _from_a_constant(node)):
        where = rows(value)
        return (
            f"target:{kind} in {int((~torch.isfinite(value)).sum())} of {value.numel()} values{where and f', {where}'}"
        )
    return f"{kind} in the {what} of {name} ({_span(value)}){_maker(node, key)}"


def _from_a_constant(node: Node) -> bool:
    """The difference of a finite tensor of the graph and a constant is nan: the constant is."""
    below, _ = source(node)
    return below is not None and operation(below) in ("Sub", "Rsub") and len(children(below)) == 1


def _span(value: torch.Tensor) -> str:
    fine = value[torch.isfinite(value)]
    span = f"finite values {float(fine.min()):.3g} to {float(fine.max()):.3g}" if fine.numel() else "no finite value"
    where = rows(value)
    return f"{str(value.dtype).removeprefix('torch.')}, {span}{f', {where}' if where else ''}"


def _maker(node: Node, key: str) -> str:
    """The operation that made an input, where there is only one."""
    below, _ = source(node)
    if key == "result" or below is None or is_leaf(below) or len(children(node)) != 1:
        return ""
    return f", the result of {operation(below).lower()}"


def owner(node: Node, models: ModelSensor, shift: int) -> str:
    """The module whose forward made a node, or the one that ended soonest after it."""
    exact = module_of(node, models, shift)
    if exact:
        return exact
    position, best, distance = sequence(node) - shift, "", math.inf
    for model in models.known:
        for call in model.calls:
            gap: Any = call.out_sequence - position
            if call.path and 0 <= gap < distance:
                best, distance = call.path, gap
    return best
