"""Functions that run when another one is over for good: a final test behind the training that validates."""

from __future__ import annotations

from collections.abc import Sequence

from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope


def all_afterwards(project: Project, module: Module, lines: Sequence[int], scope: Scope) -> bool:
    """Whether all of these lines are in functions that run after the last call of another."""
    return all(any(_follows(project, each, scope) for each in _around(module, line)) for line in lines)


def _around(module: Module, line: int) -> list[Scope]:
    """The functions that a line is in."""
    named = [scope for scope in module.scopes if scope is not module.top]
    return [s for s in named if s.node.lineno <= line <= (s.node.end_lineno or 0)]  # type: ignore[union-attr]


def _follows(project: Project, later: Scope, scope: Scope) -> bool:
    """Every call of it stands behind all calls of the other, in the same function and in no loop."""
    ended, begun = project.calls_of(scope), project.calls_of(later)
    places = {id(use.scope) for _, use in (*ended, *begun)}
    if not ended or not begun or later is scope or len(places) != 1:
        return False
    last, plain = max(use.order for _, use in ended), begun[0][1].scope.choices
    once = project.calls_of(begun[0][1].scope)
    called_once = len(once) < 2 and all(block in use.scope.choices for _, use in once for block, _ in use.path)
    return called_once and all(use.order > last and all(block in plain for block, _ in use.path) for _, use in begun)
