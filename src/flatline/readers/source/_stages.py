"""Places between two trainings: what happens there, the second one is changed by, with all that the first one left behind."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.readers.source._loaders import goes_backward
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import FUNCTIONS, Use, lies_in
from flatline.readers.source._values import comes_by

CALLS = 3  # from a training to a place between


def between_trainings(project: Project, use: Use, built: Use, depth: int = 0) -> bool:
    """Behind something that trains, and before something that does, perhaps where its function is called."""
    choices = use.scope.choices
    if any(block in choices for block, _ in use.path) and comes_by(project, use) is not True:
        return False
    around = [each for each in _beside(use) if _trains(project, each)]
    behind = [each for each in around if each.before(use) and (built.scope is not use.scope or built.before(each))]
    if behind and any(use.order < each.order for each in around):
        return True
    sites = project.calls_of(use.scope) if depth < CALLS else []
    return bool(sites) and all(between_trainings(project, site, built, depth + 1) for _, site in sites)


def comes_once(project: Project, use: Use, depth: int = 0) -> bool:
    """In no loop, and in a function that is called at one place only, which is one like it."""
    looped = any(
        isinstance(u.statement, (ast.For, ast.While)) and lies_in(use.statement, u.statement)
        for u in use.scope.statements
    )
    if looped or isinstance(use.scope.node, ast.Module):
        return not looped
    sites = project.calls_of(use.scope) if depth <= CALLS else []
    return len(sites) == 1 and comes_once(project, sites[0][1], depth + 1)


def _beside(use: Use) -> Iterator[Use]:
    """The statements of the blocks that a place lies in, without those around it."""
    paths = [use.path[:size] for size in range(len(use.path) + 1)]
    for each in use.scope.statements:
        if each.path in paths and not lies_in(use.statement, each.statement):
            yield each


def _trains(project: Project, use: Use) -> bool:
    """A loop that goes backward, or a call of a function of the project that does."""
    node = use.statement
    if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.If, ast.Try)):
        return False
    if isinstance(node, (ast.For, ast.While)):
        return goes_backward(project, use.scope, node, 0, {})
    called = [project.callee(call, place) for call, place in use.scope.calls if place is use]
    return any(f is not None and f is not use.scope and goes_backward(project, f, None, 0, {}) for f in called)
