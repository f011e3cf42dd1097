"""``weights = model.state_dict(); weights.update(checkpoint)``: a dictionary that is filled, and loaded by nobody."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.sensors.sources import function_around

HARMLESS = ("update", "keys", "items", "values")  # what may be called on it without using it


def merged_only(file: str, line: int) -> int | None:
    """The line that fills a model's state dict with what this line reads, if nothing is made of that dictionary."""
    scope = function_around(file, line)
    if scope is None:
        return None
    read = set(_read(scope, line))
    for name in _state_dicts(scope) if read else ():
        filled = [call.lineno for call in _updates(scope, name) if read & set(_names(call))]
        if filled and not _used(scope, name):
            return filled[0]
    return None


def _names(node: ast.AST) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name))


def _assigned(scope: ast.AST) -> Iterator[tuple[str, ast.Assign]]:
    """Plain assignments to one name."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node


def _read(scope: ast.AST, line: int) -> Iterator[str]:
    """Names for what the line reads, and for parts of it."""
    first = [name for name, node in _assigned(scope) if node.lineno <= line <= (node.end_lineno or 0)]
    yield from first
    for name, node in _assigned(scope):
        if node.lineno > line and set(first) & set(_names(node.value)):
            yield name


def _state_dicts(scope: ast.AST) -> Iterator[str]:
    for name, node in _assigned(scope):
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "state_dict":
            yield name


def _updates(scope: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            if isinstance(node.func.value, ast.Name) and node.func.value.id == name:
                yield node


def _used(scope: ast.AST, name: str) -> bool:
    """It stands anywhere but before a harmless method, in ``len`` or ``print``, or where it gets its value."""
    fine: set[int] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute) and node.attr in HARMLESS:
            fine.add(id(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("len", "print"):
            fine.update(map(id, node.args))
    found = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == name]
    return any(isinstance(node.ctx, ast.Load) and id(node) not in fine for node in found)
