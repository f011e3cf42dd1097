"""Sums and products of what has no bounds: they have none either."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, TypeAlias

from flatline.readers.source import _written_out
from flatline.readers.source._made import UNBOUNDED, Made
from flatline.readers.source._scopes import Use

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

PRODUCTS = {"mm", "matmul", "bmm", "spmm", "mv", "dot"}  # of matrices
TURNED = {"t", "T", "mT", "transpose", "permute", "unsqueeze", "squeeze", "view", "exp", "reshape"}  # still a weight
HOLDERS = {"torch.nn.Linear", "torch.nn.Embedding", "torch.nn.Conv1d", "torch.nn.Conv2d"}
PARAMETERS = {"torch.nn.Parameter", "torch.nn.parameter.Parameter"}
BOUNDED = re.compile(r"softm|sigmoid|clamped ")  # between two numbers, and so is what a table of such makes of it
WEIGHT, NUMBER = "weight", "number"
Calculation: TypeAlias = "ast.BinOp | ast.UnaryOp"


def calculated(project: Project, node: Calculation, use: Use, depth: int) -> tuple[Made, ...]:
    """Scores that were added, multiplied, or put through a matrix; nothing if anything else is among them."""
    if isinstance(node, ast.UnaryOp):
        inner = project.made(node.operand, use, depth + 1) if isinstance(node.op, ast.USub) else ()
        return inner if _all_raw(project, inner) else ()
    if isinstance(node.op, ast.MatMult):
        return product(project, node, [node.left, node.right], use, depth)
    if by := _written_out.written_out(project, node, use):
        return (Made(by, node, use),)
    left, right = (_part(project, each, use, depth + 1) for each in (node.left, node.right))
    raws = [part for part in (left, right) if isinstance(part, tuple)]
    if not raws or not left or not right or not all(_all_raw(project, part) for part in raws):
        return ()
    scores = tuple(made for part in raws for made in part)
    if isinstance(node.op, (ast.Add, ast.Sub)):
        layers = tuple(m for m in scores if m.by == "linear" and not isinstance(m.node, ast.BinOp))
        return layers or tuple(m for m in scores if m.by == "linear") or scores
    if isinstance(node.op, ast.Div) and len(raws) == 1 and raws[0] is left:
        return scores
    powered = isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant) and node.right.value in (1, 2, 3)
    if isinstance(node.op, ast.Mult) and len(raws) == 1:
        return scores
    both = isinstance(node.op, ast.Mult) or powered
    return (Made("linear", node, use),) if both else ()


def product(project: Project, node: ast.expr, parts: list[ast.expr], use: Use, depth: int) -> tuple[Made, ...]:
    """``x @ self.weight``, and a matrix times such scores."""
    each = [_part(project, part, use, depth + 1) for part in parts]
    scores = any(isinstance(part, tuple) and part and all(m.by == "linear" for m in part) for part in each)
    bounded = any(BOUNDED.search(made.by) for part in each if isinstance(part, tuple) for made in part)
    return (Made("linear", node, use),) if scores or (WEIGHT in each and not bounded) else ()


def _all_raw(project: Project, made: tuple[Made, ...]) -> bool:
    return bool(made) and all(m.by in UNBOUNDED for m in made)


def _part(project: Project, node: ast.expr, use: Use, depth: int) -> tuple[Made, ...] | str:
    """What a part of a calculation is: made by something, a weight, or a plain number."""
    if is_number(project, node, use):
        return NUMBER
    return project.made(node, use, depth) or (WEIGHT if is_weight(project, node, use) else ())


def is_weight(project: Project, node: ast.expr, use: Use) -> bool:
    """``self.weight.t()``, a parameter that a module learns."""
    while isinstance(node, (ast.Call, ast.Attribute)):
        inner = node.func if isinstance(node, ast.Call) else node
        if not isinstance(inner, ast.Attribute) or inner.attr not in TURNED:
            break
        node = inner.value
    held = node.value if isinstance(node, ast.Attribute) and node.attr in ("weight", "bias") else None
    things = project.things(node, use) if isinstance(node, (ast.Name, ast.Attribute)) else ()
    if not things and held is not None:
        things = project.things(held, use)
        return bool(things) and all(t.call is not None and t.name in HOLDERS for t in things)
    return bool(things) and all(t.call is not None and t.name in PARAMETERS and _is_learned(t.call) for t in things)


def _is_learned(call: ast.Call) -> bool:
    """Not ``nn.Parameter(table, requires_grad=False)``."""
    return len(call.args) == 1 and not call.keywords


def is_number(project: Project, node: ast.expr, use: Use) -> bool:
    """``2``, ``math.sqrt(width)`` and ``self.width ** 0.5``."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, ast.BinOp):
        return is_number(project, node.left, use) and is_number(project, node.right, use)
    if isinstance(node, ast.Call):
        return project.dotted(node.func, use).startswith("math.")
    return isinstance(node, (ast.Name, ast.Attribute)) and project.number(node, use) is not None
