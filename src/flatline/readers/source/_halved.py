"""Models whose parameters are float16, in an optimizer whose eps float16 cannot hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._parameters import models_of, whole_of
from flatline.readers.source._resolve import Project, Thing, argument_at
from flatline.readers.source._scopes import Module, Use
from flatline.readers.source._values import comes_by

SMALLEST = 2.0**-25  # half of float16's smallest number: less becomes 0
USUAL = 1e-8  # of all of these
DIVIDES = {"torch.optim.Adam": 3, "torch.optim.AdamW": 3, "torch.optim.RMSprop": 3}  # place of eps
MASTERS = re.compile(r"master|apex|deepspeed|fp16_?optim|fused|accelerat|fabric|lightning", re.IGNORECASE)
WIDER = {"float", "double", "bfloat16", "type"}


def halved(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact an optimizer."""
    text = module.whole
    if ".half()" not in text or ".backward(" not in text or MASTERS.search(text) is not None:
        return
    for scope in module.scopes:
        for call, use in scope.calls:
            name = project.dotted(call.func, use)
            size = _eps(project, call, use) if name in DIVIDES else None
            half = _half(project, call, use) if size is not None else None
            if half is not None and size is not None:
                yield SourceFact(
                    kind="eps of zero", name=name.rpartition(".")[2], text=f"{size:g}",
                    where=module.where(call, scope), other=half[1].scope.module.where(half[0], half[1].scope),
                )  # fmt: skip


def _eps(project: Project, call: ast.Call, use: Use) -> float | None:
    """What float16 turns into 0."""
    named = project.keywords(call, use)
    known = None not in named and not any(isinstance(a, ast.Starred) for a in call.args)
    given = named.get("eps", argument_at(call, "eps", DIVIDES[project.dotted(call.func, use)]))
    size = USUAL if given is None else project.number(given, use)
    return size if known and size is not None and 0 < size < SMALLEST else None


def _half(project: Project, call: ast.Call, use: Use) -> tuple[ast.Call, Use] | None:
    """The ``half()`` that the model of an optimizer has gone through before, and nothing that undoes it."""
    model = whole_of(project, models_of(project, call, use))
    if model is None:
        return None
    found: list[tuple[ast.Call, Use]] = []
    for scope in {id(s): s for s in (use.scope, model.use.scope)}.values():
        for other, place in scope.calls:
            func = other.func
            if not isinstance(func, ast.Attribute) or func.attr not in WIDER | {"half", "to"}:
                continue
            if not any(t.call is model.call for t in project.things(func.value, place)):
                continue
            if func.attr in WIDER or (func.attr == "to" and "dtype" in unparsed(other)):
                return None
            if func.attr == "half" and not other.args and _goes_before(project, place, use, model):
                found.append((other, place))
    return found[0] if found else None


def _goes_before(project: Project, half: Use, use: Use, thing: Thing) -> bool:
    """On every way, or in a branch that is taken: here, where the model is made, or where a function returns it."""
    made_here = half.statement is thing.use.statement
    returned = isinstance(half.statement, ast.Return) and not half.path
    taken = half.order < use.order and comes_by(project, half) is True
    return (half.scope is use.scope and (half.before(use) or taken)) or made_here or returned
