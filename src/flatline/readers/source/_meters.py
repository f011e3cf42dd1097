"""Objects in tables that make them as they are asked for, or hold one for each name: ``self.meters[key].update(value)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Scope, Use
from flatline.readers.source._things import Thing
from flatline.readers.source._values import Source, each_of, origins

EMPTY = ("{}", "dict()", "OrderedDict()", "collections.OrderedDict()")


def meters(project: Project, call: ast.Call, use: Use) -> Iterator[Scope]:
    """The method of the project that a call runs, also where the object comes out of a table."""
    func = call.func
    if not isinstance(func, ast.Attribute):
        return
    if (function := project.callee(call, use)) is not None:
        yield function
        return
    held = {id(t.made_of): t.made_of for t in _held(project, func.value, use) if t.made_of is not None}
    (owner, *more) = held.values() or [None]
    method = project.method(owner, func.attr) if owner is not None and not more else None
    if method is not None:
        yield method


def _held(project: Project, node: ast.expr, use: Use) -> Iterator[Thing]:
    """What a table gives under any key."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setdefault":
        yield from project.things(node.args[1], use) if len(node.args) == 2 else ()
        return
    if not isinstance(node, ast.Subscript):
        return
    for each in origins(project, node.value, use):
        made = each.node
        if (
            isinstance(made, ast.Call)
            and project.dotted(made.func, each.use) == "collections.defaultdict"
            and made.args
        ):
            factory = made.args[0]
            yield from project.things(factory.body if isinstance(factory, ast.Lambda) else factory, each.use)
            return
    listed = list(each_of(project, node.value, use))
    for source in listed or _put_by_methods(project, node.value, use):
        yield from project.things(source.node, source.use)


def _put_by_methods(project: Project, node: ast.expr, use: Use) -> Iterator[Source]:
    """``Meter()`` of ``self.meters[name] = Meter()`` in the methods of a class whose table begins empty."""
    owner = use.scope.owner if isinstance(node, ast.Attribute) and use.scope.own == (unparsed(node.value),) else None
    begun = project.attributes(owner, node.attr) if owner is not None and isinstance(node, ast.Attribute) else []
    empty = len(begun) == 1 and begun[0].value is not None and unparsed(begun[0].value) in EMPTY
    for place in (u for m in owner.methods.values() for u in m.statements) if owner is not None and empty else ():
        target = place.statement.targets[0] if isinstance(place.statement, ast.Assign) else None
        if isinstance(target, ast.Subscript) and unparsed(target.value) == unparsed(node):
            yield Source(place.statement.value, place)  # type: ignore[attr-defined]
