"""What the same models put out on both sides of a comparison: how much they agree with themselves is no score."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Scope, Use, lies_in

STEPS = 4  # behind names


def is_agreement(project: Project, node: ast.AST, use: Use) -> bool:
    """``decoder(h) - decoder(h)``, ``mse_loss(first, second)`` and ``first == second``, where one model made both."""
    sides = _sides(node)
    made = [frozenset(_run_by(project, each, use, "", 0)) for each in sides]
    return len(made) == 2 and bool(made[0]) and made[0] == made[1]


def only_agree(project: Project, scope: Scope, loop: ast.stmt) -> bool:
    """All that is compared in a loop, if anything is."""
    found = [
        is_agreement(project, node, use)
        for use in scope.statements
        if lies_in(use.statement, loop) and not hasattr(use.statement, "body")
        for node in walk(use.statement)
        if isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and _is_equality(node))
    ]
    return bool(found) and all(found)


def _is_equality(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("eq", "ne") and len(call.args) == 1


def _sides(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_equality(node):
        return [node.func.value, *node.args]
    return node.args[:2] if isinstance(node, ast.Call) else []


def _run_by(project: Project, node: ast.expr, use: Use, part: str, depth: int) -> Iterator[str]:
    """The models and functions that made a value, with the part of what they gave back."""
    if isinstance(node, ast.Name):
        yield from _behind(project, node.id, use, part, depth) if depth < STEPS else ()
    elif isinstance(node, (ast.Attribute, ast.Subscript)):
        key = node.attr if isinstance(node, ast.Attribute) else unparsed(node.slice)
        yield from _run_by(project, node.value, use, f"{key} {part}".strip(), depth)
    elif isinstance(node, ast.Call):
        yield from (f"{one} {part}" for one in _called(project, node, use))
        own = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        for each in (*own, *node.args, *(k.value for k in node.keywords)):
            yield from _run_by(project, each, use, part, depth)
    else:
        for each in (n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)):
            yield from _run_by(project, each, use, part, depth)


def _behind(project: Project, name: str, use: Use, part: str, depth: int) -> Iterator[str]:
    """The same for what the function assigned to a name."""
    for bound in use.scope.reaching(name, use) if name in use.scope.bindings else ():
        value, index = bound.value, bound.index
        if value is None or not isinstance(bound.use.statement, (ast.Assign, ast.AnnAssign)):
            continue
        if isinstance(value, ast.Tuple) and index and index[0] < len(value.elts):
            value, index = value.elts[index[0]], index[1:]
        yield from _run_by(project, value, bound.use, f"{index or ''} {part}".strip(), depth + 1)


def _called(project: Project, call: ast.Call, use: Use) -> list[str]:
    objects = [thing.identity() for thing in project.things(call.func, use) if thing.call is not None]
    function = project.callee(call, use) if not objects else None
    made = function is not None and not function.name.endswith("__init__")
    return [str(id(function.node))] if function is not None and made else objects
