"""``requires_grad`` that is set on a module, where it makes an attribute and freezes nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._scopes import Use, spelled
from flatline.readers.source._seen import Seen, is_module

READY = re.compile(r"torchvision\.models\.\w+|timm(\.models)?\.create_model")
PARTS = {"features", "classifier", "fc", "head", "heads", "encoder", *(f"layer{n}" for n in (1, 2, 3, 4))}  # of those
CHILDREN, NAMED = {"children", "modules"}, {"named_children", "named_modules"}


def flags(seen: Seen) -> Iterator[SourceFact]:
    """One fact an assignment."""
    for use in seen.scope.statements:
        node = use.statement
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if not isinstance(target, ast.Attribute) or target.attr != "requires_grad" or not isinstance(node, ast.Assign):
            continue
        if isinstance(node.value, ast.Constant) and _is_whole(seen, target.value, use):
            yield seen.fact("flag on module", node, name=spelled(target.value), text=unparsed(node.value))


def _is_whole(seen: Seen, node: ast.expr, use: Use) -> bool:
    """A module, and not one of its parameters."""
    if isinstance(node, ast.Name) and (drawn := _drawn(use, node.id)) is not None:
        return drawn
    if isinstance(node, ast.Attribute) and node.attr in PARTS and _is_ready(seen, node.value, use):
        return True
    things = seen.project.things(node, use)
    made = bool(things) and all(t.call is not None and is_module(seen.project, t) for t in things)
    own = any(t.made_of is not None and "requires_grad" in unparsed(t.made_of.node) for t in things)
    return (made and not own) or _is_ready(seen, node, use)


def _is_ready(seen: Seen, node: ast.expr, use: Use) -> bool:
    """A model that a library builds."""
    things = seen.project.things(node, use)
    return bool(things) and all(t.call is not None and READY.fullmatch(t.name) for t in things)


def _drawn(use: Use, name: str) -> bool | None:
    """``for layer in model.children()``; None for what no loop goes through."""
    loops = {block for block, part in use.path if part == "body"}
    for outer in reversed(use.scope.statements):
        node = outer.statement
        if id(node) not in loops or not isinstance(node, ast.For):
            continue
        last = node.target.elts[-1] if isinstance(node.target, ast.Tuple) and node.target.elts else node.target
        if isinstance(last, ast.Name) and last.id == name:
            calls = [
                c.func.attr for c in walk(node.iter) if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute)
            ]
            return bool(set(calls) & (NAMED if last is not node.target else CHILDREN))
    return None
