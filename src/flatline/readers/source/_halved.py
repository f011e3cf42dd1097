"""Models whose parameters are float16, in an optimizer whose eps float16 cannot hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument_at
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._parameters import models_of, whole_of
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use
from flatline.readers.source._seen import is_own
from flatline.readers.source._spread import keywords
from flatline.readers.source._statements import chosen
from flatline.readers.source._things import Thing
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
            name, made = project.dotted(call.func, use), call
            if not name and isinstance(call.func, ast.Subscript):
                name, made = chosen(project, call, use)
            size = _eps(project, name, made, use) if name in DIVIDES else None
            half = _half(project, made, use) if size is not None else None
            if half is not None and size is not None:
                yield SourceFact(
                    kind="eps of zero", name=name.rpartition(".")[2], text=f"{size:g}",
                    where=module.where(call, scope), other=half[1].scope.module.where(half[0], half[1].scope),
                )  # fmt: skip


def _eps(project: Project, name: str, call: ast.Call, use: Use) -> float | None:
    """What float16 turns into 0."""
    named = keywords(project, call, use)
    known = None not in named and not any(isinstance(a, ast.Starred) for a in call.args)
    given = named.get("eps", argument_at(call, "eps", DIVIDES[name]))
    size = USUAL if given is None else project.number(given, use)
    return size if known and size is not None and 0 < size < SMALLEST else None


def _half(project: Project, call: ast.Call, use: Use) -> tuple[ast.Call, Use] | None:
    """The ``half()`` that the model of an optimizer has gone through before, and nothing that undoes it."""
    model = whole_of(project, models_of(project, call, use))
    if model is None:
        return None
    found: list[tuple[ast.Call, Use]] = []
    around = [site.scope for _, site in project.sites_of(use.scope)]
    for scope in {id(s): s for s in (use.scope, model.use.scope, *around)}.values():
        for other, inner, place in _done_in(project, scope):
            func = other.func
            if not isinstance(func, ast.Attribute) or func.attr not in WIDER | {"half", "to"}:
                continue
            if not any(t.call is model.call for t in project.things(func.value, inner)):
                continue
            if func.attr in WIDER or (func.attr == "to" and "dtype" in unparsed(other)):
                return None
            if func.attr == "half" and not other.args and _goes_before(project, place, use, model):
                found.append((other, inner))
    return found[0] if found else None


def _last(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _done_in(project: Project, scope: Scope) -> Iterator[tuple[ast.Call, Use, Use]]:
    """The calls of a function and of its own object's methods that it calls, and where in the function they happen."""
    for call, use in scope.calls:
        yield call, use, use
        method = project.callee(call, use) if is_own(call) else None
        for inner, place in method.calls if method is not None and method is not scope else ():
            if not place.path or _last(inner) != "half":
                yield inner, place, use


def _goes_before(project: Project, half: Use, use: Use, thing: Thing) -> bool:
    """On every way, or in a branch that is taken: here, where the model is made, or where a function returns it."""
    made_here = half.statement is thing.use.statement
    returned = isinstance(half.statement, ast.Return) and not half.path
    sites = [use] if half.scope is use.scope else [site for _, site in project.sites_of(use.scope)]
    before = [half.before(site) or (half.order < site.order and comes_by(project, half) is True) for site in sites]
    near = bool(sites) and all(before) and all(site.scope is half.scope for site in sites)
    return near or made_here or returned
