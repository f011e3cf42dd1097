"""Conditions on what an object was made with: ``if self.interval == "step"``."""

from __future__ import annotations

import ast

from flatline.readers.source._nodes import walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Scope


def settled(project: Project, node: ast.If, scope: Scope) -> bool | None:
    """What a condition always is, if it is about words and switches that the object itself keeps."""
    asked = [n for n in walk(node.test) if isinstance(n, ast.Attribute)]
    names = {n.id for n in walk(node.test) if isinstance(n, ast.Name)}
    if not asked or names != {*scope.own} or not _is_plain(node.test):
        return None
    if any(_is_set_elsewhere(project, each.attr) for each in asked):
        return None
    return project.truth(node, scope)


def _is_plain(test: ast.expr) -> bool:
    """A switch, or a comparison with words."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_plain(test.operand)
    if isinstance(test, ast.BoolOp):
        return all(_is_plain(each) for each in test.values)
    if isinstance(test, ast.Compare):
        words = test.comparators[0].elts if isinstance(test.comparators[0], (ast.Tuple, ast.List)) else test.comparators
        return all(isinstance(w, ast.Constant) and isinstance(w.value, (str, bool)) for w in words)
    return isinstance(test, ast.Attribute)


def _is_set_elsewhere(project: Project, name: str) -> bool:
    """Something gives it another value from outside."""
    key = 0, f"set {name}"
    if key not in project.registries:
        modules = [m for m in project.modules.values() if m is not None]
        project.registries[key] = [any(project.set_from_outside(name, each) for each in modules)]
    return bool(project.registries[key][0])
