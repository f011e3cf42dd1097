"""What the calls of a function give for its parameters."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from flatline.readers.source import _forwarded, _values
from flatline.readers.source._arguments import argument, default, is_spread
from flatline.readers.source._scopes import Scope, Use, bindings_at
from flatline.readers.source._spread import spread
from flatline.readers.source._things import Thing
from flatline.readers.source._values import DEPTH, Source

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project


def given(project: Project, name: str, use: Use) -> list[tuple[ast.expr, Use]]:
    """What the calls of a function give for a parameter, or leave it at; nothing if one of them is unknown."""
    found: list[tuple[ast.expr, Use]] = []
    usual = default(use.scope, name)
    for call, site in project.sites_of(use.scope):
        value = argument(call, use.scope, name)
        if value is not None:
            found.append((value, site))
        elif is_spread(call):
            inner = _forwarded.handed_on(project, call, site, use.scope, name)
            inner = from_table(project, call, site, name) if inner is None else inner
            if not inner and (inner is None or usual is None):
                return []
            found += inner or [(each, use) for each in (usual,) if each is not None]
        elif usual is None:
            return []
        else:
            found.append((usual, use))
    return found


def from_table(project: Project, call: ast.Call, site: Use, name: str) -> list[tuple[ast.expr, Use]] | None:
    """What ``**options`` of a call give for a parameter: nothing where they do not have it, None if that is not known."""
    tables = [k.value for k in call.keywords if k.arg is None]
    if len(tables) != 1 or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    if found := _values.held(project, tables[0], ast.Constant(name), site, 0):
        return [(each.node, each.use) for each in found]
    names = spread(project, tables[0], site)
    return [] if names is not None and name not in names else None


def parameter(project: Project, name: str, use: Use, depth: int) -> tuple[Thing, ...]:
    """What every call of the function in the project gives for a parameter."""
    things: dict[tuple[str, str], Thing] = {}
    if use.scope.owner is not None and use.scope.marked("classmethod") and use.scope.params[0] == name:
        owner = use.scope.owner
        return (Thing(f"{owner.module.text.path}:{owner.node.name}", owner.use, made_of=owner),)
    usual = default(use.scope, name)
    for call, site in project.sites_of(use.scope) if depth < DEPTH else ():
        given = argument(call, use.scope, name)
        if isinstance(given, ast.Name) and given.id == name and site.scope is use.scope:
            continue  # it hands on its own
        left = given is None and not is_spread(call)
        value, place = (usual, use) if left else (given, site)
        if value is not None and _values.is_none(value):
            continue
        found = (
            project.things(value, place, depth + 1)
            if value is not None
            else _handed(project, call, site, use.scope, name)
        )
        if not found:
            return ()
        things |= {(thing.name, thing.identity()): thing for thing in found}
    return tuple(things.values())


def _handed(project: Project, call: ast.Call, site: Use, function: Scope, name: str) -> tuple[Thing, ...]:
    """What ``fit(model, *loaders, epochs)`` gives for a parameter, where a function returned the loaders."""
    if (handed := _forwarded.handed_on(project, call, site, function, name)) is not None:
        return project.things_of([Source(*pair) for pair in handed if not _values.is_none(pair[0])], DEPTH - 8)
    starred = [place for place, given in enumerate(call.args) if isinstance(given, ast.Starred)]
    tables = [k.value for k in call.keywords if k.arg is None]
    if len(tables) == 1 and not starred:
        return project.things_of(_values.held(project, tables[0], ast.Constant(name), site, 0), DEPTH - 8)
    if len(starred) != 1 or tables:
        return ()
    value, use = call.args[starred[0]].value, site  # type: ignore[attr-defined]
    if isinstance(value, ast.Name):
        found = bindings_at(value.id, site)
        binding = found[0] if len(found) == 1 and not found[0].index else None
        value, use = (binding.value, binding.use) if binding is not None else (None, site)
    made = project.callee(value, use) if isinstance(value, ast.Call) else None
    returns = [value for value, _ in made.returns] if made else []
    size = len(returns[0].elts) if len(returns) == 1 and isinstance(returns[0], ast.Tuple) else 0
    place = function.params.index(name) - (function.owner is not None) - starred[0]
    if size and 0 <= place < size:
        return project.things(value, use, DEPTH - 8, (place,))
    later = starred[0] + place - size + 1
    return (
        project.things(call.args[later], site, DEPTH - 8) if size and size <= place and later < len(call.args) else ()
    )
