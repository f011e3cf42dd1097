"""A view that names the dimensions of its tensor in another order: it cuts the numbers anew, and turns nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from flatline.events import Where

VIEWS = ("view", "reshape")
FEWEST = 3  # dimensions of the tensor


class Unpacked(NamedTuple):
    """``b, t, c = x.shape``."""

    line: int
    tensor: str
    names: tuple[str, ...]


def cut_anew(function: ast.AST, file: str) -> tuple[Where, str, str] | None:
    """``x.view(t, b, c)`` behind ``b, t, c = x.shape``: where, the call, and the order that the tensor has."""
    for known in _unpacked(function):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call) and node.lineno > known.line):
            sizes = _sizes(call, known.tensor)
            if sizes and _moves_first(sizes, known.names) and not _made_anew(function, known, call):
                where = Where(file, call.lineno, getattr(function, "name", ""))
                return where, ast.unparse(call), ", ".join(known.names)
    return None


def _unpacked(function: ast.AST) -> Iterator[Unpacked]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
            continue
        value, names = node.value, [each.id for each in node.targets[0].elts if isinstance(each, ast.Name)]
        if isinstance(value, ast.Call) and not value.args:
            value = value.func
        whole = (
            isinstance(value, ast.Attribute) and value.attr in ("shape", "size") and isinstance(value.value, ast.Name)
        )
        if whole and len(set(names)) == len(node.targets[0].elts) >= FEWEST:
            yield Unpacked(node.lineno, value.value.id, tuple(names))  # type: ignore[attr-defined]


def _sizes(call: ast.Call, tensor: str) -> list[ast.expr]:
    """What the very tensor is viewed as."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in VIEWS or ast.unparse(function.value) != tensor:
        return []
    one = len(call.args) == 1 and isinstance(call.args[0], (ast.Tuple, ast.List))
    return list(call.args[0].elts) if one else call.args  # type: ignore[attr-defined]


def _moves_first(sizes: list[ast.expr], names: tuple[str, ...]) -> bool:
    """Its first dimension stands alone behind another one of its own."""
    first, *others = names
    if not any(isinstance(each, ast.Name) and each.id == first for each in sizes[1:]):
        return False
    ahead = {node.id for node in ast.walk(sizes[0]) if isinstance(node, ast.Name)}
    plain = all(isinstance(node, (ast.Name, ast.BinOp, ast.Mult, ast.Load)) for node in ast.walk(sizes[0]))
    return plain and bool(ahead) and ahead <= set(others)


def _made_anew(function: ast.AST, known: Unpacked, call: ast.Call) -> bool:
    """One of the names is bound again in between."""
    bound = {known.tensor, *known.names}
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id in bound
        and known.line < node.lineno < call.lineno
        for node in ast.walk(function)
    )
