"""What a fix writes."""

from __future__ import annotations

import ast

from flatline.events import SourceEdit
from flatline.readers.source._nodes import unparsed, walk


def after(node: ast.expr, text: str) -> SourceEdit:
    end = node.end_col_offset or 0
    return SourceEdit(node.end_lineno or 0, end, end, text)


def instead(node: ast.expr, text: str) -> SourceEdit:
    return SourceEdit(node.lineno, node.col_offset, node.end_col_offset or 0, text)


def renamed(node: ast.expr, name: str) -> SourceEdit | None:
    """Another name of the attribute."""
    if not isinstance(node, ast.Attribute):
        return None
    end = node.end_col_offset or 0
    return SourceEdit(node.end_lineno or 0, end - len(node.attr), end, name)


def log_softmaxed(call: ast.Call, given: ast.expr) -> SourceEdit | None:
    """``log(softmax(x, 1))`` -> ``log_softmax(x, 1)``, on one line."""
    func = given.func if isinstance(given, ast.Call) else None
    if not isinstance(func, ast.Attribute) or func.attr != "softmax" or call.lineno != call.end_lineno:
        return None
    made = unparsed(given)
    name = unparsed(func)
    put = f"{name.removesuffix('softmax')}log_softmax{made[len(name) :]}"
    return SourceEdit(call.lineno, call.col_offset, call.end_col_offset or 0, put)


def detached(value: ast.expr | None, name: str) -> SourceEdit | None:
    """``loss`` -> ``loss.detach()``: still a tensor, so that nothing after it has to change."""
    found = [n for n in walk(value) if isinstance(n, ast.Name) and n.id == name] if value is not None else []
    return after(found[0], ".detach()") if len(found) == 1 else None
