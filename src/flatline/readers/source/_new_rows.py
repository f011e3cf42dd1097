"""Losses of rows that every turn of a loop draws anew."""

from __future__ import annotations

import ast
import re

from flatline.readers.source._nodes import names_in, unparsed, walk
from flatline.readers.source._scopes import Use, lies_in
from flatline.readers.source._seen import Seen

FOLLOWED = 24  # expressions behind a loss
DRAWS = re.compile(r"\b(randint|randperm|permutation|choices?|sample|integers)\(|\bnext\((?!\S*parameters\()")


def is_of_new_rows(seen: Seen, loss: ast.expr, loop: ast.For) -> bool:
    """``criterion(model(x), y)``, where ``x, y = next(batches)`` stands in the loop, or ``get_batch()``, which draws places."""
    waiting, told = [(loss, use) for use in seen.scope.statements if use.statement is loop], set[str]()
    for node, use in waiting:
        if any(_draws(seen, inner, use, loop) for inner in walk(node)):
            return True
        for name in names_in(node) - told if len(waiting) < FOLLOWED else ():
            told.add(name)
            waiting += _given_in(seen, name, loop)
    return False


def _given_in(seen: Seen, name: str, loop: ast.For) -> list[tuple[ast.expr, Use]]:
    """What a name is given within the loop."""
    bound = [b for b in seen.scope.bindings.get(name, ()) if lies_in(b.use.statement, loop)]
    return [(b.value, b.use) for b in bound if b.value is not None]


def _draws(seen: Seen, node: ast.AST, use: Use, loop: ast.For) -> bool:
    """A batch of a loader, or what a function that draws numbers picks; rows at places that were drawn."""
    if isinstance(node, ast.Subscript):
        places = [node.slice, *(v for name in names_in(node.slice) for v, _ in _given_in(seen, name, loop))]
        return any(DRAWS.search(unparsed(each)) for each in places)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name) and node.func.id == "next":
        return True
    function = seen.project.callee(node, use)
    known = function is not None and not function.name.endswith(("forward", "__call__"))
    return known and function is not None and DRAWS.search(unparsed(function.node)) is not None
