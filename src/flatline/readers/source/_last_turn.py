"""What a name stands for behind a loop over layers: what its last turn gave it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from flatline.readers.source._nodes import names_in, unparsed
from flatline.readers.source._scopes import Binding, Use


def in_force(bindings: Sequence[Binding], use: Use) -> Sequence[Binding]:
    """Of the bindings that may be in force at a place, those that are, if the loops over layers before it run at all."""
    loops = {(id(loop), "body"): loop for each in bindings for loop in [_around(each, use)] if loop is not None}
    for block, loop in loops.items():
        inside = [each for each in bindings if block in each.use.path]
        ends = [each for each in inside if not any(_is_skipped(loop, each, part) for part in each.use.path)]
        always = [each.use.order for each in ends if each.use.path and each.use.path[-1] == block]
        if not always or not _is_over_layers(loop.iter):
            continue
        last = max(always)
        behind = [each for each in bindings if block not in each.use.path and each.use.order > last]
        bindings = [*(each for each in ends if each.use.order >= last), *behind]
    return bindings


def _around(binding: Binding, use: Use) -> ast.For | None:
    """The innermost loop around a binding that is over at the place."""
    outside = [block for block in binding.use.path if block not in use.path]
    loops = [binding.use.scope.loops.get(block) for block, part in outside if part == "body"]
    found = [loop for loop in loops if loop is not None]
    return found[-1] if found and binding.use.scope is use.scope and len(found) == 1 else None


def _is_over_layers(head: ast.expr) -> bool:
    """``self.convs``, ``enumerate(self.convs)`` and ``zip(self.convs, self.norms)``, in which is at least one."""
    if isinstance(head, ast.Call) and unparsed(head.func) in ("enumerate", "zip") and head.args:
        return all(_is_over_layers(each) for each in head.args)
    return isinstance(head, ast.Attribute) and unparsed(head.value) == "self"


def _is_skipped(loop: ast.For, binding: Binding, block: tuple[int, str]) -> bool:
    """``if i < len(self.convs) - 1``, ``if i != self.depth - 1`` or ``if i + 1 < n``: not in the last turn."""
    choice = binding.use.scope.choices.get(block[0])
    test = choice.test if choice is not None and block[1] == "body" else None
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Lt, ast.NotEq)) or len(test.ops) > 1:
        return False
    counter, bound = test.left, test.comparators[0]
    head = loop.iter
    counted = isinstance(head, ast.Call) and unparsed(head.func) == "enumerate" and isinstance(loop.target, ast.Tuple)
    count = loop.target.elts[0] if counted and isinstance(loop.target, ast.Tuple) else None
    if not isinstance(count, ast.Name) or names_in(counter) != {count.id}:
        return False
    before = isinstance(bound, ast.BinOp) and isinstance(bound.op, ast.Sub) and unparsed(bound.right) == "1"
    return before if isinstance(counter, ast.Name) else unparsed(counter) == f"{count.id} + 1"
