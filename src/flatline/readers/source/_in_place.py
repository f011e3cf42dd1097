"""Tensors that are changed in place between the assignment to a name and a use of it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from flatline.readers.source._nodes import root_of
from flatline.readers.source._scopes import Binding, Scope, Use

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

KEPT = {"requires_grad_", "share_memory_"}  # the numbers stay
TOLD = {"print", "display", "len", "repr", "super"}


def is_changed(project: Project, name: str, binding: Binding, use: Use) -> bool:
    """Whether its numbers may be others than those that were assigned."""
    scope = use.scope
    if binding.use.scope is not scope:
        return False
    return any(
        binding.use.order < place.order < use.order
        and (_is_done(project, node, name, place) if isinstance(node, ast.Call) else root_of(node) == name)
        for node, place in _candidates(scope)
    )


def _candidates(scope: Scope) -> list[tuple[ast.expr, Use]]:
    """Calls, and what is written to by rows."""
    rows: list[tuple[ast.expr, Use]] = [
        (target, use)
        for use in scope.statements
        if isinstance(use.statement, ast.Assign)
        for target in use.statement.targets
        if isinstance(target, ast.Subscript)
    ]
    return [*rows, *scope.calls]


def _is_done(project: Project, call: ast.Call, name: str, use: Use) -> bool:
    func = call.func
    if any(isinstance(k.value, ast.Name) and k.value.id == name and k.arg == "out" for k in call.keywords):
        return True
    if isinstance(func, ast.Attribute) and _is_in_place(func.attr) and root_of(func.value) == name:
        return True
    if not call.args or root_of(call.args[0]) != name:
        return False
    dotted = project.dotted(func, use)
    if dotted.startswith("torch."):
        return _is_in_place(dotted) or any(k.arg == "inplace" for k in call.keywords)
    return _is_alone(call, use) and not dotted


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__") and name not in KEPT


def _is_alone(call: ast.Call, use: Use) -> bool:
    """``self.act(scores)``, of which nothing is taken: what else may it be for?"""
    func, node = call.func, use.statement
    named = isinstance(func, ast.Name) and func.id not in TOLD
    own = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and use.scope.own == (func.value.id,)
    return isinstance(node, ast.Expr) and node.value is call and len(call.args) == 1 and (named or own)
