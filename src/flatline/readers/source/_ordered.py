"""Labels that are made class by class, and stay in that order."""

from __future__ import annotations

import ast

from flatline.readers.source._resolve import Project, Thing, argument_at
from flatline.readers.source._scopes import Use
from flatline.readers.source._values import Source, origins

SAME_ORDER = {"long", "float", "to", "int", "cuda", "unsqueeze", "view", "reshape", "flatten", "contiguous", "clone"}
FILLED = {"torch.zeros": 0, "torch.ones": 1}
MANY = 128  # samples in a batch; a larger one may hold the whole set


def class_by_class(project: Project, thing: Thing, loader: Thing) -> bool:
    """A TensorDataset whose last tensor is sorted, in batches that are no more than a part of it."""
    call = thing.call
    if thing.name != "torch.utils.data.TensorDataset" or call is None or len(call.args) < 2 or loader.call is None:
        return False
    size = project.number(argument_at(loader.call, "batch_size", 1), loader.use)
    return size is not None and 1 < size <= MANY and _sorted(project, call.args[-1], thing.use, 0)


def _sorted(project: Project, node: ast.expr, use: Use, depth: int) -> bool:
    found = origins(project, node, use) if depth < len(SAME_ORDER) else []
    return bool(found) and all(_is_sorted(project, each, depth) for each in found)


def _is_sorted(project: Project, source: Source, depth: int) -> bool:
    node, use = source.node, source.use
    if isinstance(node, ast.Subscript):
        return _keeps_order(project, node.slice, use) and _sorted(project, node.value, use, depth + 1)
    if not isinstance(node, ast.Call):
        return False
    dotted = project.dotted(node.func, use)
    if dotted in ("torch.cat", "torch.concat") and node.args:
        return _in_blocks(project, node.args[0], use)
    if dotted == "torch.repeat_interleave" and len(node.args) == 2:
        return _counts_up(project, node.args[0], use)
    if not isinstance(node.func, ast.Attribute) or dotted:
        return False
    if node.func.attr == "repeat_interleave":
        return _counts_up(project, node.func.value, use)
    return node.func.attr in SAME_ORDER and _sorted(project, node.func.value, use, depth + 1)


def _keeps_order(project: Project, node: ast.expr, use: Use) -> bool:
    """A range, or a mask, and no permutation."""
    if isinstance(node, ast.UnaryOp):
        return _keeps_order(project, node.operand, use)
    found = origins(project, node, use) if not isinstance(node, ast.Slice) else []
    masks = bool(found) and all(isinstance(each.node, ast.Compare) for each in found)
    return masks or (isinstance(node, ast.Slice) and node.step is None)


def _counts_up(project: Project, node: ast.expr, use: Use) -> bool:
    found = origins(project, node, use)
    made = [project.dotted(each.node.func, each.use) for each in found if isinstance(each.node, ast.Call)]
    return bool(found) and made == ["torch.arange"] * len(found)


def _in_blocks(project: Project, node: ast.expr, use: Use) -> bool:
    """``[torch.zeros(50), torch.ones(50)]``, and ``[torch.full((50,), c) for c in range(3)]``."""
    if isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Call):
        filled = project.dotted(node.elt.func, use) == "torch.full" and len(node.elt.args) > 1
        counted = ast.unparse(node.generators[0].iter).startswith("range(")
        return filled and counted and ast.unparse(node.elt.args[1]) == ast.unparse(node.generators[0].target)
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
    values = [FILLED.get(project.dotted(each.func, use)) for each in parts if isinstance(each, ast.Call)]
    return (
        len(values) == len(parts) > 1
        and values == [0] * values.count(0) + [1] * values.count(1)
        and len({*values}) == 2
    )
