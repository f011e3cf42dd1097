"""Whether a forward without gradients is over the first rows of what the loop around it learns from: a look, no validation."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from flatline.sensors.sources import LOOPS, called_name, tree_of


@lru_cache(maxsize=256)
def looks_at_own_data(file: str, line: int) -> bool:
    """``net(data.x[:400])`` at this line, beside ``data.x[batch]`` in a loop with a backward."""
    tree = tree_of(file)
    if tree is None:
        return False
    shown = {ast.unparse(part.value) for part in _parts(tree) if _is_at(part, line) and _first_rows(part)}
    return bool(shown) and not shown.isdisjoint(_learned_from(tree, line))


def _parts(node: ast.AST) -> Iterator[ast.Subscript]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Subscript))


def _is_at(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _first_rows(part: ast.Subscript) -> bool:
    rows = part.slice
    if not isinstance(rows, ast.Slice) or rows.lower is not None or rows.step is not None:
        return False
    return isinstance(rows.upper, ast.Constant) and type(rows.upper.value) is int and rows.upper.value > 0


def _learned_from(tree: ast.AST, line: int) -> set[str]:
    """What loops that go backward take rows of."""
    loops = [node for node in ast.walk(tree) if isinstance(node, LOOPS)]
    teaching = [loop for loop in loops if any(_goes_backward(inner) for inner in ast.walk(loop))]
    parts = (part for loop in teaching for part in _parts(loop) if not _is_at(part, line))
    return {ast.unparse(part.value) for part in parts if not isinstance(part.slice, ast.Constant)}


def _goes_backward(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called_name(node) == "backward"
