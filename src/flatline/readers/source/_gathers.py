"""Calls of nll_loss that only pick entries, or whose normalization stands beside them."""

from __future__ import annotations

import ast
import re

from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._scopes import Use

NORMALIZES = re.compile(r"logsumexp|logaddexp|\.exp\(.*\.sum\(.*\.log\(|torch\.log\(.*\bexp\(")


def only_picks(call: ast.Call, use: Use) -> bool:
    """Whether the scores of an entry are wanted as they are, and not as a loss."""
    apart = any(k.arg == "reduction" for k in call.keywords)
    names = _assigned(use.statement) if apart else set()
    for place in use.scope.statements:
        node = place.statement
        if not any(isinstance(inner, ast.stmt) for inner in ast.iter_child_nodes(node)):
            text = unparsed(node) if "log" in ast.dump(node) else ""
            if NORMALIZES.search(text) or _turns(node, call, names):
                return True
    return False


def _assigned(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _turns(node: ast.stmt, call: ast.Call, names: set[str]) -> bool:
    """``-F.nll_loss(...)``, ``-1 * F.nll_loss(...)`` and ``other - F.nll_loss(...)``; also by a name."""
    return any(_has(part, call, names) for inner in walk(node) for part in _turned(inner))


def _turned(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return [node.operand]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return [node.right]
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return [node.func.value] if isinstance(node, ast.Call) and _is_neg(node.func) else []  # type: ignore[attr-defined]
    sides = node.left, node.right
    return [*sides] if any(isinstance(side, ast.UnaryOp) and isinstance(side.op, ast.USub) for side in sides) else []


def _is_neg(func: ast.expr) -> bool:
    return isinstance(func, ast.Attribute) and func.attr in ("neg", "negative")


def _has(part: ast.expr, call: ast.Call, names: set[str]) -> bool:
    return any(inner is call or (isinstance(inner, ast.Name) and inner.id in names) for inner in walk(part))
