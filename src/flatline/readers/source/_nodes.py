"""The syntax tree, gone through and written out faster than by the standard library: a fifth of the time of lint was there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

KEPT = 1 << 15  # nodes whose text or names are remembered: some tens of thousands of lines


FLAT = frozenset(("ctx", "id", "attr", "arg", "kind", "op", "ops", "lineno", "level", "type_comment"))


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """Those of a kind of node that may hold others."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        self[kind] = () if kind is ast.Constant else tuple(name for name in kind._fields if name not in FLAT)
        return self[kind]


FIELDS = _Fields()


def children(node: ast.AST) -> list[ast.AST]:
    """As ``ast.iter_child_nodes``, without what only says load, store or the operator."""
    found: list[ast.AST] = []
    for name in FIELDS[node.__class__]:
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def root_of(node: ast.expr) -> str:
    """``scores`` of ``scores[:, 0]`` and ``scores.data``; nothing for what has no name."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """As ``ast.walk``, in its order, of such children."""
    found = [node]
    for each in found:
        yield each
        found += children(each)


def unparsed(node: ast.AST) -> str:
    """As ``ast.unparse``. Names and what they are asked for are most of what is asked."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
        return f"{unparsed(node.value)}.{node.attr}"
    return _whole(node)


@lru_cache(KEPT)
def _whole(node: ast.AST) -> str:
    return ast.unparse(node)


@lru_cache(KEPT)
def names_in(node: ast.AST) -> frozenset[str]:
    """The names in an expression or statement."""
    return frozenset(inner.id for inner in walk(node) if isinstance(inner, ast.Name))


class Put(ast.NodeTransformer):
    """Puts expressions in the place of names."""

    def __init__(self, names: dict[str, ast.expr]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """What the name stands for."""
        return self.names.get(node.id, node)
