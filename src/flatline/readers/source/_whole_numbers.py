"""Losses of what a model chose, and not of its scores: whole numbers and truth values have no gradient."""

from __future__ import annotations

import ast

from flatline.readers.source._losses import is_mean, kind_of
from flatline.readers.source._nodes import walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Binding, Use
from flatline.readers.source._seen import is_module
from flatline.readers.source._values import Source, origins

ALIKE = {"float", "double", "to", "type", "view", "reshape", "squeeze", "unsqueeze", "flatten", "cuda", "cpu", "clone"}
CHOOSE = {"argmax", "argmin", "long", "int", "bool", "gt", "ge", "lt", "le", "eq"}
BEST = {"max", "min", "topk", "sort"}  # with a dimension: values, and their places
DEEP = 6


def chosen(project: Project, node: ast.expr, use: Use) -> Source | None:
    """The argmax, or the comparison, whose result is all that the model gives to a loss."""
    losses = [s for s in origins(project, node, use) if isinstance(s.node, ast.Call)]
    if len(losses) != 1 or not isinstance(losses[0].node, ast.Call) or len(losses[0].node.args) != 2:
        return None
    call, place = losses[0].node, losses[0].use
    known = kind_of(project, call, place) or is_mean(project, call, place)
    if not known or call.keywords or _is_of_model(project, call.args[1], place, 0):
        return None
    found = _choice(project, call.args[0], place, 0)
    return found if found is not None and _is_of_model(project, found.node, found.use, 0) else None


def _is_of_model(project: Project, node: ast.AST, use: Use, depth: int) -> bool:
    """A model is called in it, or in what its names were given."""
    inner = list(walk(node)) if depth < DEEP else []
    made = [
        t for call in inner if isinstance(call, ast.Call) for t in project.things(call.func, use) if t.call is not None
    ]
    names = [n.id for n in inner if isinstance(n, ast.Name) and n.id in use.scope.bindings]
    bound = [
        b for name in names for b in use.scope.reaching(name, use) if b.value is not None and b.use.scope is use.scope
    ]
    behind = (_is_of_model(project, b.value, b.use, depth + 1) for b in bound if b.value is not None)
    return any(is_module(project, thing) for thing in made) or any(behind)


def _choice(project: Project, node: ast.expr, use: Use, depth: int) -> Source | None:
    if depth > DEEP:
        return None
    if isinstance(node, ast.Name):
        found = use.scope.reaching(node.id, use) if node.id in use.scope.bindings else []
        return _of_binding(project, found[0], depth) if len(found) == 1 else None
    if isinstance(node, ast.Compare):
        return Source(node, use)
    if _is_place(node):
        return Source(node, use)
    func = node.func if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or not isinstance(func, ast.Attribute):
        return None
    if func.attr in CHOOSE:
        return Source(node, use)
    plain = func.attr in ALIKE and not project.dotted(func, use)
    return _choice(project, func.value, use, depth + 1) if plain else None


def _of_binding(project: Project, bound: Binding, depth: int) -> Source | None:
    """``_, predicted = torch.max(scores, 1)``, or what a name was given."""
    if bound.value is None or bound.parameter:
        return None
    if bound.index:
        return Source(bound.value, bound.use) if bound.index == (1,) and _finds_best(bound.value) else None
    return _choice(project, bound.value, bound.use, depth + 1)


def _is_place(node: ast.expr) -> bool:
    """``scores.max(1)[1]``, and ``scores.max(1).indices``."""
    second = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 1
    named = isinstance(node, ast.Attribute) and node.attr == "indices"
    return (second or named) and _finds_best(node.value)  # type: ignore[attr-defined]


def _finds_best(node: ast.expr) -> bool:
    func = node.func if isinstance(node, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr in BEST
