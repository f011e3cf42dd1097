"""Calls of torch's loss functions, and what feeds them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.events import SourceLoss
from flatline.readers.source._arguments import argument
from flatline.readers.source._gathers import only_picks
from flatline.readers.source._optional import may_be_left_out
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Use, spelled
from flatline.readers.source._swapped import is_swapped
from flatline.readers.source._tensors import CLAMPED
from flatline.readers.source._values import origins

FUNCTIONS = {
    "torch.nn.functional.cross_entropy": "cross_entropy",
    "torch.nn.functional.nll_loss": "nll",
    "torch.nn.functional.binary_cross_entropy": "binary_cross_entropy",
    "torch.nn.functional.binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
}
DISTANCES = {f"torch.nn.functional.{name}_loss" for name in ("mse", "l1", "smooth_l1", "huber")} | {
    f"torch.nn.{name}Loss" for name in ("MSE", "L1", "SmoothL1", "Huber")
}
CLASSES = {
    "torch.nn.CrossEntropyLoss": "cross_entropy",
    "torch.nn.NLLLoss": "nll",
    "torch.nn.BCELoss": "binary_cross_entropy",
    "torch.nn.BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
}


def losses(project: Project, module: Module) -> Iterator[SourceLoss]:
    """Every call of a loss function whose input's maker is known."""
    for scope in module.scopes:
        for call, use in scope.calls:
            kind = kind_of(project, call, use)
            given = _input(call)
            if not kind:
                kind, given = _handed_on(project, call, use)
            if not kind or given is None or (kind == "nll" and only_picks(call, use)):
                continue
            made = project.made(given, use)
            alike = len({m.by.removeprefix(CLAMPED) for m in made}) == 1
            if (
                alike
                and not any(is_swapped(project, each) for each in made)
                and not may_be_left_out(project, call, use)
            ):
                feed = made[0]
                yield SourceLoss(
                    kind=kind,
                    fed_by=feed.by.removeprefix(CLAMPED),
                    feed=spelled(feed.node),
                    feed_where=feed.use.scope.module.where(feed.node, feed.use.scope),
                    where=module.where(call, scope),
                )


def _handed_on(project: Project, call: ast.Call, use: Use) -> tuple[str, ast.expr | None]:
    """The loss that a function returns of what it is given, and what this call gives it for that."""
    bindings = project.holding(call.func, use, 0) if isinstance(call.func, ast.Name) else []
    if len(bindings) != 1 or not isinstance(bindings[0].value, (ast.Lambda, ast.Call, ast.Subscript)):
        return "", None
    function = project.callee(call, use)
    value, place = function.returns[0] if function is not None and len(function.returns) == 1 else (None, use)
    made_here = function is not None and function.parent is not None and function.parent.name and function.owner is None
    if function is None or not made_here or not isinstance(value, ast.Call) or not value.args:
        return _of_lambda(project, call, use)
    given = _input(value)
    named = isinstance(given, ast.Name) and given.id in function.params
    kind = kind_of(project, value, place) if named else ""
    return kind, argument(call, function, given.id) if kind and isinstance(given, ast.Name) else None


def _of_lambda(project: Project, call: ast.Call, use: Use) -> tuple[str, ast.expr | None]:
    """``lambda scores, labels: F.cross_entropy(scores, labels)``."""
    found = origins(project, call.func, use)
    value = found[0].node if len(found) == 1 else None
    if not isinstance(value, ast.Lambda) or not isinstance(value.body, ast.Call):
        return "", None
    given, names = _input(value.body), [each.arg for each in value.args.args]
    place = names.index(given.id) if isinstance(given, ast.Name) and given.id in names else len(call.args)
    return kind_of(project, value.body, found[0].use), call.args[place] if place < len(call.args) else None


def kind_of(project: Project, call: ast.Call, use: Use) -> str:
    """Which loss a call computes; nothing if it is none, or may be several."""
    dotted = project.dotted(call.func, use)
    if dotted in FUNCTIONS:
        return FUNCTIONS[dotted]
    if dotted.startswith("torch.") or not call.args:
        return ""
    each = [(CLASSES if t.call is not None else FUNCTIONS).get(t.name, "") for t in project.things(call.func, use)]
    kinds = set(each)
    return kinds.pop() if len(kinds) == 1 else ""


def _input(call: ast.Call) -> ast.expr | None:
    named = [k.value for k in call.keywords if k.arg == "input"]
    first = call.args[0] if call.args else None
    return named[0] if named else first


def is_mean(project: Project, call: ast.Call, use: Use) -> bool:
    """Whether a call computes a loss that is the mean over its batch."""
    reductions = [k for k in call.keywords if k.arg in ("reduction", "reduce", "size_average")]
    dotted = project.dotted(call.func, use)
    if dotted in FUNCTIONS or dotted in DISTANCES:
        return not reductions
    things = project.things(call.func, use) if not dotted.startswith("torch.") else ()
    return bool(things) and all(
        t.call is not None
        and (t.name in CLASSES or t.name in DISTANCES)
        and not any(k.arg in ("reduction", "reduce", "size_average") for k in t.call.keywords)
        for t in things
    )
