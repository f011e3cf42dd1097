"""Rows of different lengths in a tensor of one number, or in a list that grows, as collate functions write them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from flatline.readers.source._arguments import argument_at
from flatline.readers.source._nodes import names_in, unparsed
from flatline.readers.source._scopes import SAME, Use

EVEN = re.compile(r"(torch|np|numpy)\.(zeros|full|zeros_like|full_like)|.*\.(new_zeros|new_full|fill_)")
EMPTY = re.compile(r"(torch|np|numpy)\.zeros(_like)?|[\w.]+\.new_zeros")
CASTS = SAME | {"long", "int", "bool"}
FULL = {"full": 1, "full_like": 1, "new_full": 1, "fill_": 0}  # where the number stands
LONGEST = re.compile(r"max|longest|length|pad|_len\b", re.IGNORECASE)
LENGTH = re.compile(r"len|size|shape|numel|\b[nl]\b", re.IGNORECASE)


def filled_by(node: ast.expr | None, name: str, use: Use) -> ast.expr | None:
    """The number in ``rows = torch.full(size, 0)`` that nothing but ``rows[i, :len(row)] = row`` writes to."""
    made = _maker(node) if isinstance(node, ast.Call) else None
    func = made.func if made is not None else None
    if made is None or not isinstance(func, ast.Attribute) or not EVEN.fullmatch(unparsed(func)):
        return None
    put = _written_to(name, use)
    plain = bool(put) and all(_is_part(t, use) and not isinstance(value, ast.Constant) for t, value in put)
    plain = plain and len({_begins(target) for target, _ in put}) == 1
    if not plain or not _is_as_long(made, use):
        return None
    if func.attr in FULL:
        return argument_at(made, "fill_value", FULL[func.attr])
    return ast.copy_location(ast.Constant(0), made)


def marked_by(node: ast.expr | None, name: str, use: Use) -> bool:
    """``mask = torch.zeros(size)`` in which ``mask[i, :len(row)] = 1`` marks what is there."""
    func = _maker(node).func if isinstance(node, ast.Call) else None
    if not isinstance(func, ast.Attribute) or not EMPTY.fullmatch(unparsed(func)):
        return False
    put = _written_to(name, use)
    return bool(put) and all(isinstance(v, ast.Constant) and v.value in (1, True) and _is_part(t, use) for t, v in put)


def _maker(node: ast.Call) -> ast.Call:
    """``torch.zeros(size)`` in ``torch.zeros(size).long()``."""
    while isinstance(node.func, ast.Attribute) and node.func.attr in CASTS and isinstance(node.func.value, ast.Call):
        node = node.func.value
    return node


def _written_to(name: str, use: Use) -> Sequence[tuple[ast.Subscript, ast.expr]]:
    """All that is written to a part of a name."""
    assigned = [u.statement for u in use.scope.statements if isinstance(u.statement, ast.Assign)]
    pairs = [(target, each.value) for each in assigned for target in each.targets]
    return [(t, value) for t, value in pairs if isinstance(t, ast.Subscript) and _root(t) == name]


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return unparsed(node)


def _is_part(target: ast.Subscript, use: Use) -> bool:
    """``rows[i, :n]`` and ``rows[i, -n:]``: a part of one dimension, the last."""
    parts = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
    inner, last = parts[:-1], parts[-1]
    if isinstance(target.value, ast.Subscript):
        inner = [*inner, target.value.slice]
    ends = [end for end in (last.lower, last.upper) if end is not None] if isinstance(last, ast.Slice) else []
    told = [unparsed(end) for end in ends]
    bound = [b.value for end in ends for name in names_in(end) for b in use.scope.bindings.get(name, ())]
    told += [unparsed(value) for value in bound if value is not None]
    return (
        all(isinstance(part, ast.Name) for part in inner)
        and len(ends) == 1
        and LENGTH.search(" ".join(told)) is not None
    )


def _begins(target: ast.Subscript) -> bool:
    """It is the first part of a row, and not the last."""
    last = target.slice.elts[-1] if isinstance(target.slice, ast.Tuple) else target.slice
    return isinstance(last, ast.Slice) and last.lower is None


def _is_as_long(node: ast.Call, use: Use) -> bool:
    """A size is the greatest length that there is, or may be."""
    sizes = [*node.args, *(k.value for k in node.keywords), node.func]
    told = " ".join(unparsed(each) for each in sizes)
    bound = [b.value for size in sizes for name in names_in(size) for b in use.scope.bindings.get(name, ())]
    return LONGEST.search(" ".join([told, *(unparsed(value) for value in bound if value is not None)])) is not None


def appended(name: str, use: Use) -> Sequence[tuple[ast.expr, Use]]:
    """What ``rows.append(row)`` puts into a list, if nothing else is done to it."""
    calls = [(c, u) for c, u in use.scope.calls if isinstance(c.func, ast.Attribute) and unparsed(c.func.value) == name]
    plain = all(c.func.attr == "append" and len(c.args) == 1 for c, _ in calls if isinstance(c.func, ast.Attribute))
    return [(c.args[0], u) for c, u in calls] if plain else []
