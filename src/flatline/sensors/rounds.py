"""What counts the rounds of a training, as its source says: a share of the steps, or an attribute that is set somewhere."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from flatline.sensors.sources import FUNCTIONS, called_name, own_nodes

WHOLE = ("int", "floor")
WORDS = ("epoch", "round")  # in the name of what counts them
Share = tuple[ast.expr, ast.expr]  # a count of steps, and how many of them are taken for a round


def share_of(value: ast.AST | None) -> Share | None:
    """``step // 1000``, ``int(step / 1000)``."""
    whole = isinstance(value, ast.Call) and called_name(value) in WHOLE and len(value.args) == 1
    inner = value.args[0] if whole and isinstance(value, ast.Call) else value
    operation = (ast.Div, ast.FloorDiv) if whole else ast.FloorDiv
    return (inner.left, inner.right) if isinstance(inner, ast.BinOp) and isinstance(inner.op, operation) else None


def made_in(node: ast.expr, scope: ast.AST, nodes: Sequence[ast.AST]) -> ast.expr | None:
    """The value of a name of this scope, or of an attribute anywhere, that one statement alone makes; zeros do not count."""
    inside = own_nodes(scope) if isinstance(node, ast.Name) else nodes
    made = [n.value for n in inside if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == ast.unparse(node)]
    made = [value for value in made if not isinstance(value, ast.Constant)]
    if isinstance(node, ast.Attribute):
        named = [n for n in nodes if isinstance(n, FUNCTIONS) and n.name == node.attr and _is_property(n)]
        made += [
            n.value for each in named for n in own_nodes(each) if isinstance(n, ast.Return) and n.value is not None
        ]
    return made[0] if len(made) == 1 else None


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return [ast.unparse(each) for each in function.decorator_list] == ["property"]


def speaks_of_rounds(*nodes: ast.expr) -> bool:
    """Whether a quantity, or the number that it has to come to, is called an epoch."""
    return any(word in ast.unparse(node).lower() for node in nodes for word in WORDS)
