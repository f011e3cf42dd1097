"""Modes that a function of another file sets: a context manager, a decorator, or a helper that is called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use
from flatline.readers.source._seen import OTHER_MODE, Seen

CALLS = 3  # functions within functions


def set_elsewhere(seen: Seen) -> bool:
    """What a function calls, or stands under, or what its callers call, says something of modes in another file."""
    scopes = {id(use.scope): use.scope for _, use in seen.project.calls_of(seen.scope)}
    told = set[int]()
    return any(_speaks(seen.project, each, seen.module, told, 0) for each in (seen.scope, *scopes.values()))


def _speaks(project: Project, scope: Scope, module: Module, told: set[int], depth: int) -> bool:
    if id(scope) in told or depth > CALLS:
        return False
    told.add(id(scope))
    for function in _run_by(project, scope):
        if function.module is not module and OTHER_MODE.search(unparsed(function.node)) is not None:
            return True
        if function.node is not scope.node and _speaks(project, function, module, told, depth + 1):
            return True
    return False


def _run_by(project: Project, scope: Scope) -> Iterator[Scope]:
    """The functions that it calls, its decorators, and what its with statements enter and leave."""
    calls = [*scope.calls, *_decorators(scope)]
    for call, use in calls:
        function = project.callee(call, use)
        owners = [t.made_of for t in project.things(call, use) if t.made_of is not None] if function is None else []
        if function is not None and function.owner is not None and getattr(function.node, "name", "") == "__init__":
            owners.append(function.owner)
        yield from [function] if function is not None else []
        for owner in owners if isinstance(use.statement, (ast.With, ast.AsyncWith)) else ():
            yield from (m for name in ("__enter__", "__exit__") if (m := project.method(owner, name)) is not None)


def _decorators(scope: Scope) -> Iterator[tuple[ast.Call, Use]]:
    """Above a method they stand in the class, above a function among the statements around it."""
    outer = scope.parent or scope.module.top
    found = next((u for u in outer.statements if u.statement is scope.node), None)
    place = scope.owner.use if scope.owner is not None else found
    for head in getattr(scope.node, "decorator_list", ()) if place is not None else ():
        if place is not None:
            yield _as_call(head), place


@cache  # one call for each: what is known of calls is kept by their identity
def _as_call(head: ast.expr) -> ast.Call:
    return head if isinstance(head, ast.Call) else ast.copy_location(ast.Call(head, [], []), head)
