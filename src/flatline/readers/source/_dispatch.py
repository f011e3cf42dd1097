"""Methods that a loop calls on each of the objects in a list: callbacks, hooks and optimizers."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from flatline.readers.source import _hooks as hooks
from flatline.readers.source._resolve import Project, Thing
from flatline.readers.source._scopes import Class, Scope, Use
from flatline.readers.source._values import Source, gone_through, looped
from flatline.readers.source._values import each_of as held_by


def each_of(project: Project, call: ast.Call, use: Use, keys: Mapping[str, str]) -> Sequence[Scope]:
    """The methods in their order; nothing if one of them is unknown. Keys spell what parameters were given."""
    return [method for method, _ in owned(project, call, use, keys)]


def owned(project: Project, call: ast.Call, use: Use, keys: Mapping[str, str]) -> Sequence[tuple[Scope, Class | None]]:
    """The same, and the class of the object that each is called on."""
    receiver, names = called_on(project, call, use, keys)
    found: list[tuple[Scope, Class | None]] = []
    for each in _listed(project, receiver, use) if names else ():
        things = project.things(each.node, each.use)
        owner = things[0].made_of if len(things) == 1 and things[0].call is not None else None
        methods = [project.method(owner, name) for name in names] if owner is not None else []
        known = [(method, owner) for method in methods if method is not None]
        if not known:
            return [(function, None) for function in hooks.called(project, call, use, keys)]
        found += known
    return found or [(function, None) for function in hooks.called(project, call, use, keys)]


def called_on(
    project: Project, call: ast.Call, use: Use, keys: Mapping[str, str]
) -> tuple[ast.expr | None, Sequence[str]]:
    """``hook`` and its names, of ``hook.before(...)`` and ``getattr(hook, name)(...)``."""
    func = call.func
    if isinstance(func, ast.Attribute):
        return func.value, [func.attr]
    if isinstance(func, ast.Name):
        return func, ["__call__"]
    plain = isinstance(func, ast.Call) and isinstance(func.func, ast.Name) and func.func.id == "getattr"
    if not plain or not isinstance(func, ast.Call) or len(func.args) != 2:
        return None, []
    name = func.args[1]
    if isinstance(name, ast.Name) and name.id in keys:
        return func.args[0], [keys[name.id].strip("'\"")]
    given = project.given(name.id, use) if isinstance(name, ast.Name) and name.id in use.scope.params else [(name, use)]
    return func.args[0], [str(each.value) for each, _ in given if isinstance(each, ast.Constant)]


def _listed(project: Project, node: ast.expr | None, use: Use) -> Sequence[Source]:
    """The objects that a loop goes through under this name."""
    return looped(project, node.id, use) if isinstance(node, ast.Name) else []


def in_turn(project: Project, node: ast.expr, use: Use) -> tuple[Thing, ...]:
    """What a name is, also where a loop goes through a list or a table of objects under it."""
    things = project.things(node, use)
    if things or not isinstance(node, ast.Name):
        return things
    head = gone_through(use, node.id)
    each = [project.things(s.node, s.use) for s in held_by(project, head, use)] if head is not None else []
    plain = bool(each) and all(len(found) == 1 and found[0].call is not None for found in each)
    return tuple(found[0] for found in each) if plain else ()
