"""What a dictionary comprehension makes for one key: ``{k: DataLoader(d, **cfg[k]) for k, d in sets.items()}["train"]``."""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project


def for_key(project: Project, node: ast.DictComp, key: ast.Constant) -> ast.expr | None:
    """The value with the key in the place of its name; None where the comprehension goes through something else."""
    place = id(node), key.value
    if place not in project.keyed:
        project.keyed[place] = node, _put_in(node, key)
    return project.keyed[place][1]


def _put_in(node: ast.DictComp, key: ast.Constant) -> ast.expr | None:
    (head, *more), names = node.generators, dict[str, ast.expr]()
    if more or head.ifs or not isinstance(node.key, ast.Name):
        return None
    func = head.iter.func if isinstance(head.iter, ast.Call) and not head.iter.args else None
    items = isinstance(func, ast.Attribute) and func.attr == "items"
    pair = head.target.elts if isinstance(head.target, ast.Tuple) else []
    if items and isinstance(func, ast.Attribute) and len(pair) == 2 and all(isinstance(p, ast.Name) for p in pair):
        held = ast.copy_location(ast.Subscript(func.value, key, ast.Load()), node.value)
        names = {pair[0].id: key, pair[1].id: held}  # type: ignore[attr-defined]
    elif isinstance(head.target, ast.Name) and _may_have(head.iter, key):
        names = {head.target.id: key}
    return Put(names).visit(copy.deepcopy(node.value)) if node.key.id in names else None


def _may_have(node: ast.expr, key: ast.Constant) -> bool:
    """Words that are written out have it; of the keys of a table it is taken for granted."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "keys"
    words = node.elts if isinstance(node, (ast.Tuple, ast.List)) else []
    return not words or key.value in [each.value for each in words if isinstance(each, ast.Constant)]


class Put(ast.NodeTransformer):
    """Puts expressions in the place of names."""

    def __init__(self, names: dict[str, ast.expr]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """What the name is for the key."""
        return self.names.get(node.id, node)
