"""What goes through a loader: loops and comprehensions, and the functions that score its batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.readers.source._nodes import walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Scope, Use, lies_in
from flatline.readers.source._seen import seen_in

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
CALLS = 2  # from a batch to what compares it with its labels


def iterables(use: Use) -> Iterator[ast.expr]:
    """What a statement goes through: ``loader`` in ``for b in loader`` and in ``[step(b) for b in loader]``."""
    node = use.statement
    if isinstance(node, ast.For):
        yield node.iter
    elif id(node) in use.scope.masked and not hasattr(node, "body"):
        found = [inner for inner in walk(node) if isinstance(inner, COMPREHENSIONS)]
        nested = {id(inner) for each in found for inner in walk(each) if inner is not each}
        yield from (each.generators[0].iter for each in found if id(each) not in nested)


def scores_within(project: Project, scope: Scope, outer: ast.stmt | None, depth: int = 0) -> bool:
    """A function that is called there compares the best classes with labels, as ``validation_step`` does."""
    calls = [(call, use) for call, use in scope.calls if outer is None or lies_in(call, outer)]
    for function in (project.callee(*each) for each in calls if depth <= CALLS):
        if function is None or function is scope or getattr(function.node, "name", "forward") == "forward":
            continue
        if seen_in(project, function).compares_best or scores_within(project, function, None, depth + 1):
            return True
    return False
