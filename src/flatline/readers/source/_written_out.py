"""Functions of torch that a source writes out by hand: ``e / e.sum(-1)`` is a softmax."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._scopes import Use

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

NAMES = 3  # behind which a part of it stands


def written_out(project: Project, node: ast.BinOp, use: Use) -> str:
    """What a division comes to: ``softmax``, ``sigmoid``, or nothing that is known."""
    if not isinstance(node.op, ast.Div):
        return ""
    if isinstance(node.left, ast.Constant) and node.left.value == 1:
        return "sigmoid" if _is_one_and_exp(project, node.right, use) else ""
    whole, place = _behind(node.right, use)
    summed = _summed(project, whole, place)
    same = summed is not None and unparsed(summed) == unparsed(node.left) and _holds(node.left, place, use)
    return "softmax" if same and _is_exp(project, *_behind(node.left, use)) else ""


def _behind(node: ast.expr, use: Use) -> tuple[ast.expr, Use]:
    """The one value of a name of the same function."""
    for _ in range(NAMES):
        found = use.scope.reaching(node.id, use) if isinstance(node, ast.Name) and node.id in use.scope.bindings else []
        if len(found) != 1 or found[0].value is None or found[0].index or found[0].use.scope is not use.scope:
            break
        node, use = found[0].value, found[0].use
    return node, use


def _holds(node: ast.expr, one: Use, other: Use) -> bool:
    """An expression stands for the same at both places."""
    names = {n.id for n in walk(node) if isinstance(n, ast.Name)}
    return all(
        {id(b) for b in one.scope.reaching(name, one)} == {id(b) for b in other.scope.reaching(name, other)}
        for name in names & one.scope.bindings.keys()
    )


def _summed(project: Project, node: ast.expr, use: Use) -> ast.expr | None:
    """``e`` of ``e.sum(-1, keepdim=True)`` and ``torch.sum(e, dim=1)``, which sum along one dimension."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "sum":
        return None
    dotted = project.dotted(node.func, use)
    given, rest = (node.args[0], node.args[1:]) if dotted == "torch.sum" and node.args else (node.func.value, node.args)
    along = [*rest, *(k.value for k in node.keywords if k.arg in ("dim", "axis"))]
    return given if along and dotted in ("", "torch.sum") and not isinstance(along[0], ast.Tuple) else None


def _is_exp(project: Project, node: ast.expr, use: Use) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "exp":
        return False
    dotted = project.dotted(node.func, use)
    return dotted == "torch.exp" or (not dotted and not node.args)


def _is_one_and_exp(project: Project, node: ast.expr, use: Use) -> bool:
    """``1 + torch.exp(-x)``."""
    node, use = _behind(node, use)
    parts = [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else []
    exps = [_behind(part, use) for part in parts if not (isinstance(part, ast.Constant) and part.value == 1)]
    return len(parts) == 2 and len(exps) == 1 and _is_exp(project, *exps[0])
