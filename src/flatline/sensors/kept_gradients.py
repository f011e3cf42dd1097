"""Gradients that a script takes for itself, to add them up, compare or keep them, before it zeroes them."""

from __future__ import annotations

import ast
from functools import lru_cache

from flatline.events import Where
from flatline.sensors.sources import called_name, tree_of

MEASURING = (
    "abs", "all", "any", "clip_grad_norm_", "clip_grad_value_", "isfinite", "isinf", "isnan", "item", "norm", "print",
    "vector_norm", "zero_",
)  # fmt: skip


def keeps_gradients(*places: Where | None) -> bool:
    """One of these files does more with gradients than to look at their size."""
    return any(_kept_in(place.file) for place in places if place is not None)


@lru_cache(maxsize=64)
def _kept_in(file: str) -> bool:
    """``total += p.grad``, ``fisher += p.grad ** 2``, ``kept.append(p.grad.clone())``, ``[p.grad for p in …]``."""
    tree = tree_of(file)
    return tree is not None and any(_keeps(value) for node in ast.walk(tree) for value in _handed_on(node))


def _handed_on(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns, returns, goes through, or gives to a function; not what a method alone changes."""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)):
        return [node.value] if node.value is not None else []
    if isinstance(node, ast.For):
        return [node.iter]
    call = node.value if isinstance(node, ast.Expr) else None
    return call.args if isinstance(call, ast.Call) and called_name(call) not in MEASURING else []


def _keeps(value: ast.expr) -> bool:
    nodes = list(ast.walk(value))
    if any(isinstance(node, ast.Call) and called_name(node) in MEASURING for node in nodes):
        return False
    asked = {id(node.left) for node in nodes if isinstance(node, ast.Compare)}  # p.grad is None
    return any(isinstance(node, ast.Attribute) and node.attr == "grad" and id(node) not in asked for node in nodes)
