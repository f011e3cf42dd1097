"""Calls of torch's loss functions, and what feeds them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.events import SourceLoss
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Use, spelled

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
            if not kind or given is None:
                continue
            made = project.made(given, use)
            if made and len({m.by for m in made}) == 1:
                feed = made[0]
                yield SourceLoss(
                    kind=kind,
                    fed_by=feed.by,
                    feed=spelled(feed.node),
                    feed_where=feed.use.scope.module.where(feed.node, feed.use.scope),
                    where=module.where(call, scope),
                )


def kind_of(project: Project, call: ast.Call, use: Use) -> str:
    """Which loss a call computes; nothing if it is none, or may be several."""
    dotted = project.dotted(call.func, use)
    if dotted in FUNCTIONS:
        return FUNCTIONS[dotted]
    if dotted.startswith("torch.") or not call.args:
        return ""
    kinds = {CLASSES.get(t.name, "") if t.call is not None else "" for t in project.things(call.func, use)}
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
