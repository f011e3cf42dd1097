"""Schedules of other libraries than torch, which count steps, and those whose factor a function computes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from flatline.readers.source._arguments import argument_at
from flatline.readers.source._batched import is_loader
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Use, spelled
from flatline.readers.source._things import Thing
from flatline.readers.source._values import origins

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
LENGTHS = {  # place and name of the argument
    "CosineAnnealingLR": ((1, "T_max"),),
    "OneCycleLR": ((2, "total_steps"), (4, "steps_per_epoch")),
    "StepLR": ((1, "step_size"),),
    "MultiStepLR": ((1, "milestones"),),
    "ExponentialLR": (),
    "LambdaLR": (),
    **IN_STEPS,
}
FACTORS = {"StepLR": ("gamma", 0.1), "ExponentialLR": ("gamma", 0.0), "MultiStepLR": ("gamma", 0.1)}
BACK = 6  # steps from a length to the loader that it is counted by


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


def length_of(project: Project, thing: Thing) -> dict[str, object]:
    """Its length, as source and as a number, and the factor that follows."""
    name = thing.name.rpartition(".")[2]
    if thing.call is None or name not in LENGTHS:
        return {}
    places, (factor, usual) = LENGTHS[name], FACTORS.get(name, ("", 0.0))
    given = next((g for place, key in places if (g := argument_at(thing.call, key, place)) is not None), None)
    if name == "LambdaLR":
        return _by_function(project, thing)
    if given is None and name != "ExponentialLR":
        return {}
    lengths = [
        project.number(each, thing.use)
        for each in (given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given])
    ]
    power = argument_at(thing.call, factor, 1 if name == "ExponentialLR" else 2)
    gamma = usual if power is None else project.number(power, thing.use)
    sizes = list(_lengths(project, given, thing.use)) if given is not None else []
    loaded = [t for n, use in sizes for a in n.args for t in project.things(a, use)]
    in_batches = (counts_steps(name) and bool(sizes)) or any(is_loader(project, t) for t in loaded)
    return told(name, unparsed(given) if given is not None else "1", lengths, gamma, in_batches)


def counts_steps(name: str) -> bool:
    """Its length is a number of steps, whatever gave it."""
    return name == "OneCycleLR" or name in IN_STEPS


def told(
    name: str, text: str, lengths: Sequence[float | None], gamma: float | None, in_batches: bool
) -> dict[str, object]:
    """What a tick says of a schedule."""
    known = [each for each in lengths if each is not None]
    length = max(known, default=None) if len(known) == len(lengths) else None
    return {
        "horizon": f"{name}: {text}",
        "length": 1.0 if name == "ExponentialLR" else length,
        "gamma": gamma if name in FACTORS else None,
        "in_batches": in_batches,
    }


def _by_function(project: Project, thing: Thing) -> dict[str, object]:
    """A schedule whose function divides the step by a number of batches."""
    for node, use in divisors(project, thing):
        sizes = list(_lengths(project, node, use))
        loaded = [t for n, place in sizes for a in n.args for t in project.things(a, place)]
        if any(is_loader(project, t) for t in loaded):
            return {"horizon": f"LambdaLR: {unparsed(node)}", "in_batches": True}
    return {}


def _lengths(project: Project, node: ast.expr, use: Use, depth: int = 0) -> Iterator[tuple[ast.Call, Use]]:
    """``len(...)`` in a number, or in what its names stand for."""
    for inner in walk(node):
        if isinstance(inner, ast.Call) and spelled(inner.func) == "len":
            yield inner, use
        elif isinstance(inner, (ast.Name, ast.Attribute)) and depth < BACK:
            for each in origins(project, inner, use):
                if each.node is not inner:
                    yield from _lengths(project, each.node, each.use, depth + 1)
