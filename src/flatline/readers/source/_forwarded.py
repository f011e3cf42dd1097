"""Arguments that a function hands on as ``*args`` and ``**kwargs``, and objects that a class below is made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flatline.readers.source._arguments import default
from flatline.readers.source._scopes import Class, Scope, Use
from flatline.readers.source._values import is_super

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

Given = tuple[ast.expr, Use]
MANY = 12  # calls of a function that hands its arguments on
HEIRS = 12  # classes below one


def made_below(project: Project, start: Scope) -> Iterator[tuple[ast.Call, Use]]:
    """The calls of classes that inherit their ``__init__``."""
    owner = start.owner
    heirs = list({id(each): each for each in project.heirs(owner)}.values()) if owner is not None else []
    for heir in heirs if len(heirs) <= HEIRS else ():
        if project.method(heir, "__init__") is start:
            for call, use in project.calls.under(heir.node.name):
                if _makes(project, call, use, heir):
                    yield call, use


def from_below(project: Project, start: Scope) -> Iterator[tuple[ast.Call, Use]]:
    """``super().__init__(model, **kwargs)`` of classes in other files, which inherit from one."""
    heirs = {id(each) for each in project.heirs(start.owner)} if start.owner is not None else ()
    for call, use in project.calls.of_method("__init__") if heirs else ():
        above = isinstance(call.func, ast.Attribute) and is_super(call.func.value)
        if above and id(use.scope.owner) in heirs and project.callee(call, use) is start:
            yield call, use


def _makes(project: Project, call: ast.Call, use: Use, owner: Class) -> bool:
    things = project.things(call.func, use)
    return len(things) == 1 and things[0].made_of is owner and things[0].call is None


def handed_on(project: Project, call: ast.Call, site: Use, function: Scope, name: str) -> Sequence[Given] | None:
    """What ``super().__init__(*args, **kwargs)`` gives for a parameter, by the calls of the function it stands in."""
    outer = site.scope
    extra = outer.arguments
    stars = [a.value.id for a in call.args if isinstance(a, ast.Starred) and isinstance(a.value, ast.Name)]
    tables = [k.value.id for k in call.keywords if k.arg is None and isinstance(k.value, ast.Name)]
    varargs, kwargs = extra.vararg, extra.kwarg
    known = all(varargs is not None and s == varargs.arg for s in stars)
    known = known and all(kwargs is not None and t == kwargs.arg for t in tables) and len(stars) + len(tables) > 0
    spread = sum(isinstance(a, ast.Starred) for a in call.args) + sum(k.arg is None for k in call.keywords)
    if not known or spread != len(stars) + len(tables):
        return None
    sites = project.calls_of(outer)
    found = [_one(project, call, site, function, name, each, place) for each, place in sites[:MANY]]
    return [each for each in found if each is not None] if found and None not in found else None


def _one(
    project: Project, call: ast.Call, site: Use, function: Scope, name: str, outer: ast.Call, place: Use
) -> Given | None:
    """The same, by one of these calls."""
    if any(k.arg is None for k in outer.keywords) or any(isinstance(a, ast.Starred) for a in outer.args):
        return None
    own = site.scope.owner is not None and not site.scope.marked("staticmethod")
    size = len(site.scope.arguments.args) - own
    before = next((n for n, a in enumerate(call.args) if isinstance(a, ast.Starred)), len(call.args))
    at = function.params.index(name) - (function.owner is not None and not function.marked("staticmethod"))
    for keyword in (*call.keywords, *outer.keywords):
        if keyword.arg == name and (keyword in call.keywords or name not in site.scope.params):
            return keyword.value, site if keyword in call.keywords else place
    rest = outer.args[size:] if before < len(call.args) else []
    if 0 <= at - before < len(rest):
        return rest[at - before], place
    usual = default(function, name)
    return (usual, function.bindings[name][0].use) if usual is not None else None
