"""Schedules of other libraries than torch, which count steps, and those whose factor a function computes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flatline.readers.source._nodes import walk
from flatline.readers.source._scopes import Use
from flatline.readers.source._values import origins

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project, Thing

SCHEDULE = re.compile(
    r"torch\.optim\.lr_scheduler\..*|(transformers|diffusers)\.(optimization\.)?"
    r"(get_(linear|cosine|polynomial_decay|cosine_with_hard_restarts|constant)_schedule(_with_warmup)?|get_scheduler)"
)
IN_STEPS = {  # place and name of the argument that is the number of all steps
    "get_linear_schedule_with_warmup": ((2, "num_training_steps"),),
    "get_cosine_schedule_with_warmup": ((2, "num_training_steps"),),
    "get_cosine_with_hard_restarts_schedule_with_warmup": ((2, "num_training_steps"),),
    "get_polynomial_decay_schedule_with_warmup": ((2, "num_training_steps"),),
    "get_scheduler": ((3, "num_training_steps"),),
}


def is_schedule(things: Sequence[Thing]) -> bool:
    """All of them are schedules, and built."""
    return bool(things) and all(t.call is not None and SCHEDULE.fullmatch(t.name) for t in things)


def optimizer_of(thing: Thing) -> ast.expr | None:
    """The optimizer that a schedule is given."""
    if thing.call is None:
        return None
    place = 1 if thing.name.endswith("get_scheduler") else 0
    named = [k.value for k in thing.call.keywords if k.arg == "optimizer"]
    return named[0] if named else thing.call.args[place] if len(thing.call.args) > place else None


def divisors(project: Project, thing: Thing) -> Iterator[tuple[ast.expr, Use]]:
    """``total`` of ``LambdaLR(optimizer, lambda step: 1 - step / total)``."""
    call = thing.call
    given = [k.value for k in call.keywords if k.arg == "lr_lambda"] if call is not None else []
    given = given or (call.args[1:2] if call is not None else [])
    for each in origins(project, given[0], thing.use) if given else ():
        if isinstance(each.node, ast.Lambda):
            yield from ((n, each.use) for n in _below(each.node.body, {a.arg for a in each.node.args.args}))
        node, bound = _partly(project, each.node, each.use)
        for function in [t.function for t in project.things(node, each.use) if t.function is not None]:
            for use in function.statements:
                yield from ((n, use) for n in _below(use.statement, {*function.params[bound : bound + 1]}))


def _partly(project: Project, node: ast.expr, use: Use) -> tuple[ast.expr, int]:
    """The function in ``partial(ramp, 8, total=100)``, and how many of its parameters have their place."""
    made = isinstance(node, ast.Call) and project.dotted(node.func, use) == "functools.partial" and node.args
    return (node.args[0], len(node.args) - 1) if made and isinstance(node, ast.Call) else (node, 0)


def _below(node: ast.AST, names: set[str]) -> Iterator[ast.expr]:
    """What the step is divided by."""
    for inner in walk(node) if not hasattr(node, "body") else ():
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div):
            if names & {n.id for n in walk(inner.left) if isinstance(n, ast.Name)}:
                yield inner.right
