"""A stage that throws away what it begins with: a model that is loaded, and built anew in one of the next statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.sensors.sources import tree_of


def built_anew(file: str, line: int) -> bool:
    """Whether the model that ``load_state_dict`` fills in this line gets another value before anything else is done with it."""
    tree = tree_of(file)
    if tree is None:
        return False
    for block in _blocks(tree):
        for at, statement in enumerate(block):
            loaded = _loaded_in(statement) if statement.lineno <= line <= (statement.end_lineno or 0) else ""
            if loaded:
                return _replaced(loaded, block[at + 1 :], tree)
    return False


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _loaded_in(statement: ast.stmt) -> str:
    """``model`` of a statement that is ``model.load_state_dict(...)`` and no more."""
    call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Attribute)
        or call.func.attr != "load_state_dict"
    ):
        return ""
    return ast.unparse(call.func.value) if isinstance(call.func.value, (ast.Name, ast.Attribute)) else ""


def _replaced(name: str, following: list[ast.stmt], tree: ast.AST) -> bool:
    owner, _, attribute = name.rpartition(".")
    own = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    for statement in following:
        if isinstance(statement, ast.Assign) and not _mentioned(statement.value, name):
            targets = [t for each in statement.targets for t in (each.elts if isinstance(each, ast.Tuple) else [each])]
            if name in map(ast.unparse, targets):
                return isinstance(statement.value, ast.Call)
        call = statement.value if isinstance(statement, ast.Expr) else None
        method = call.func if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
        if owner and method is not None and ast.unparse(method.value) == owner:
            return _rebuilds(tree, method.attr, attribute)
        called = any(isinstance(n, ast.Call) and getattr(n.func, "id", "") in own for n in ast.walk(statement))
        if called or _mentioned(statement, name) or (owner and _mentioned(statement, owner)):
            return False
    return False


def _mentioned(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, (ast.Name, ast.Attribute)) and ast.unparse(n) == name for n in ast.walk(node))


def _rebuilds(tree: ast.AST, method: str, attribute: str) -> bool:
    """Whether every method of this name gives ``self.attribute`` another value first of all that it does with it."""
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == method and n.args.args]
    return bool(found) and all(_replaced_in(f, f"{f.args.args[0].arg}.{attribute}") for f in found)


def _replaced_in(function: ast.FunctionDef, name: str) -> bool:
    for statement in function.body:
        if isinstance(statement, ast.Assign) and name in map(ast.unparse, statement.targets):
            return isinstance(statement.value, ast.Call) and not _mentioned(statement.value, name)
        if _mentioned(statement, name):
            return False
    return False
