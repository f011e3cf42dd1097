"""Dictionary comprehensions over keys that are written out, read as the dictionaries that they make."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Sequence

from flatline.readers.source._files import Text
from flatline.readers.source._nodes import unparsed

MANY = 8  # keys
LIKELY = re.compile(r"\{\s*(\w+)\s*:.{1,600}?\bfor\s+\(?\1\b", re.DOTALL)


def unrolled(text: Text, tree: ast.Module) -> ast.Module:
    """The tree, in which ``{x: load(x) for x in ("train", "val")}`` is ``{"train": load("train"), "val": load("val")}``."""
    if any("for " in line for line in text.lines) and LIKELY.search("\n".join(text.lines)) is not None:
        _Unroller().visit(tree)
    return tree


class _Unroller(ast.NodeTransformer):
    """One walk, in the order of the source: a table may go through the keys of one above it."""

    def __init__(self) -> None:
        self.known: dict[str, ast.expr | None] = {}  # tables and lists by their names; None for one that has two

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Its names are its own."""
        outside, self.known = self.known, dict(self.known)
        self.known |= dict.fromkeys((a.arg for a in [*node.args.args, *node.args.kwonlyargs]), None)
        self.generic_visit(node)
        self.known = outside
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """A name for a table, or a key that is put into one."""
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.known[target.id] = node.value if target.id not in self.known else None
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                self.known[target.value.id] = None
        return node

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        """``{x: load(x) for x in keys}``, and ``{x: load(v) for x, v in table.items()}``."""
        self.generic_visit(node)
        head = node.generators[0]
        key, value = _targets(head.target)
        if len(node.generators) > 1 or head.ifs or head.is_async or not key or unparsed(node.key) != key:
            return node
        keys = self._keys(head.iter, value)
        if not 0 < len(keys) <= MANY or len({each.value for each in keys}) < len(keys):
            return node
        made = [_put(node.value, key, value, each, head.iter) for each in keys]
        return ast.copy_location(ast.Dict([copy.copy(each) for each in keys], made), node)

    def _keys(self, node: ast.expr, value: str) -> Sequence[ast.Constant]:
        """The keys that are gone through."""
        asked = node.func if isinstance(node, ast.Call) and not node.args else None
        method = asked.attr if isinstance(asked, ast.Attribute) else ""
        if isinstance(asked, ast.Attribute) and method == ("items" if value else "keys"):
            node = asked.value
        elif value:
            return []
        found = self.known.get(node.id) if isinstance(node, ast.Name) else node
        listed = found.elts if isinstance(found, (ast.List, ast.Tuple)) and not method else []
        listed = [k for k in found.keys if k is not None] if isinstance(found, ast.Dict) else listed
        plain = [each for each in listed if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        spread = isinstance(found, ast.Dict) and None in found.keys
        return plain if len(plain) == len(listed) and not spread else []


def _targets(node: ast.expr) -> tuple[str, str]:
    """The names for a key and for what is under it."""
    names = node.elts if isinstance(node, ast.Tuple) and len(node.elts) == 2 else [node, ast.Name("")]
    plain = [each.id for each in names if isinstance(each, ast.Name)]
    return (plain[0], plain[1]) if len(plain) == 2 else ("", "")


def _put(node: ast.expr, key: str, value: str, constant: ast.Constant, table: ast.expr) -> ast.expr:
    """A copy, with the constant for the name of the key."""
    held = table.func.value if value and isinstance(table, ast.Call) and isinstance(table.func, ast.Attribute) else None
    entry = ast.Subscript(held, constant, ast.Load()) if held is not None else None
    made: ast.expr = _Putter(key, value, constant, entry).visit(copy.deepcopy(node))
    return made


class _Putter(ast.NodeTransformer):
    def __init__(self, key: str, value: str, constant: ast.Constant, entry: ast.expr | None) -> None:
        self.key, self.value, self.constant, self.entry = key, value, constant, entry

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """The key as it is written out; what is under it, by the key."""
        if node.id == self.key:
            return ast.copy_location(ast.Constant(self.constant.value), node)
        if self.entry is not None and node.id == self.value:
            return ast.copy_location(copy.copy(self.entry), node)
        return node
