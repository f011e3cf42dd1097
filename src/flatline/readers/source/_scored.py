"""Scores that are no call of a loss in sight: a function that returns one, or differences that are added up."""

from __future__ import annotations

import ast
import re

from flatline.readers.source._agreements import is_agreement
from flatline.readers.source._losses import is_mean, kind_of
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Scope, Use, lies_in
from flatline.readers.source._values import origins

ABSOLUTE = {"abs", "square", "pow"}
CENTRES = re.compile(r"mean|mu\b|avg|average|cent|norm|std|old|prev|ema|noise", re.IGNORECASE)
SIDES = (ast.Name, ast.Subscript, ast.Attribute, ast.Call)


def gives_loss(project: Project, call: ast.Call, use: Use) -> bool:
    """``step_loss(model, batch, criterion)``, which returns a loss of torch over what it is given."""
    function = project.callee(call, use)
    if function is None or isinstance(function.node, ast.Module) or function.node is use.scope.node:
        return False
    inner = [(c, place) for c, place in function.calls if kind_of(project, c, place) or _is_distance(project, c, place)]
    made = [each.node for value, place in function.returns for each in origins(project, value, place)] if inner else []
    return bool(made) and all(any(node is c for c, _ in inner) for node in made)


def _is_distance(project: Project, call: ast.Call, use: Use) -> bool:
    return len(call.args) == 2 and is_mean(project, call, use)


def differs(project: Project, scope: Scope, loop: ast.stmt) -> bool:
    """``error += (scores - labels).abs().sum().item()``."""
    added = [(u.statement, u) for u in scope.statements if lies_in(u.statement, loop)]
    return any(
        _is_error(project, inner, use)
        for node, use in added
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
        for inner in walk(node.value)
    )


def _is_error(project: Project, node: ast.AST, use: Use) -> bool:
    func = node.func if isinstance(node, ast.Call) else None
    named = isinstance(func, ast.Attribute) and func.attr in ABSOLUTE
    given = func.value if named and isinstance(func, ast.Attribute) else None
    if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(given, ast.Name) and given.id == "torch":
        given = node.args[0]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        given = node.left
    difference = given if isinstance(given, ast.BinOp) and isinstance(given.op, ast.Sub) else None
    sides = [difference.left, difference.right] if difference is not None else []
    plain = bool(sides) and all(isinstance(s, SIDES) and not CENTRES.search(unparsed(s)) for s in sides)
    return plain and difference is not None and not is_agreement(project, difference, use)
