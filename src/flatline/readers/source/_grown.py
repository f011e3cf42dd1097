"""Lists that a function fills statement by statement: what is certain to be in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._rounds import Known, truth
from flatline.readers.source._scopes import Use

ONE, MANY = {"append": 0, "insert": 1}, {"extend": 0}
SHRINKS = {"pop", "remove", "clear"}


def grown(project: Project, name: ast.Name, use: Use, settings: Known) -> list[tuple[ast.expr, Use]]:
    """The lists behind a name that ``+=``, ``append`` and the like made; nothing if nothing grew."""
    found = use.scope.bindings.get(name.id, ())
    begun = [b for b in found if b.value is not None and not b.index and b.use.order < use.order]
    added = [b for b in found if isinstance(b.use.statement, ast.AugAssign)]
    if len(begun) != 1 or len(begun) + len(added) != len(found) or not _certain(begun[0].use, use, settings):
        return []
    later = [(v, u) for v, u in _added(name.id, use) if begun[0].use.order < u.order < use.order]
    first = begun[0].value
    if not later or first is None or _shrinks(name.id, use):
        return []
    kept = [(value, place) for value, place in later if _certain(place, use, settings)]
    return [(first, begun[0].use), *kept]


def _added(name: str, use: Use) -> Iterator[tuple[ast.expr, Use]]:
    for place in use.scope.statements:
        node = place.statement
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and unparsed(node.target) == name:
            yield node.value, place
    for call, place in use.scope.calls:
        func = call.func
        if isinstance(func, ast.Attribute) and unparsed(func.value) == name and place.statement is not use.statement:
            at = (ONE | MANY).get(func.attr, len(call.args))
            if len(call.args) == at + 1:
                given = call.args[at]
                yield given if func.attr in MANY else ast.copy_location(ast.List([given], ast.Load()), given), place


def _shrinks(name: str, use: Use) -> bool:
    text = [c.func for c, _ in use.scope.calls if isinstance(c.func, ast.Attribute) and c.func.attr in SHRINKS]
    written = [t for u in use.scope.statements for t in getattr(u.statement, "targets", ())]
    return any(unparsed(func.value) == name for func in text) or any(
        isinstance(t, ast.Subscript) and unparsed(t.value) == name for t in written
    )


def _certain(place: Use, use: Use, settings: Known) -> bool:
    """Every way to the use comes by a place, in this phase."""
    for block, part in place.path:
        if (block, part) in use.path:
            continue
        node = place.scope.choices.get(block)
        if node is None or truth(node.test, settings, place) != (part == "body"):
            return False
    return True
