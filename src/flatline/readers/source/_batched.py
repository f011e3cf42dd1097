"""What gives batches one after the other: loaders, and classes of the project in their place."""

from __future__ import annotations

import ast

from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._things import Thing

LOADER = "torch.utils.data.DataLoader"


def is_loader(project: Project, thing: Thing) -> bool:
    """A DataLoader, or an object of the project that is gone through, has a length, and gives no items by number."""
    if thing.name == LOADER:
        return True
    owner = thing.made_of if thing.call is not None else None
    if owner is None or owner.node.bases or project.method(owner, "__getitem__") is not None:
        return False
    return all(project.method(owner, name) is not None for name in ("__iter__", "__len__"))


def over_data(statement: ast.stmt) -> set[int]:
    """The calls that a comprehension makes for each batch: not on what it goes through, and not a number of times."""
    found = set()
    for node in walk(statement):
        if not isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)) or len(node.generators) != 1:
            continue
        head, targets = node.generators[0].iter, {n.id for n in walk(node.generators[0].target) if hasattr(n, "id")}
        counted = isinstance(head, ast.Call) and unparsed(head.func).endswith("range")
        calls = [c for c in walk(node.elt) if isinstance(c, ast.Call)] if not counted else []
        if not isinstance(head, (ast.List, ast.Tuple)):
            found |= {id(call) for call in calls if _root(call.func) not in targets}
    return found


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
