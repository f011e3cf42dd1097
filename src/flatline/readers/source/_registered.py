"""Calls of modules that a registry made: ``self.loss(scores, labels)`` runs the forward of a class no file names."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING

from flatline.readers.source._scopes import Module, Scope, Use, plain_call

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

CALLS = 60  # that are looked at
FILES = 40  # of a project that is looked through


def calls(project: Project, forward: Scope) -> list[tuple[ast.Call, Use]]:
    """The calls of a forward whose class a decorator put into a table, and that is made by nothing else."""
    return project.recalled(forward, "registered", lambda: _looked_for(project, forward))


def _looked_for(project: Project, forward: Scope) -> list[tuple[ast.Call, Use]]:
    owner = forward.owner
    modules = [each for each in project.modules.values() if each is not None]
    if owner is None or not owner.node.decorator_list or len(modules) > FILES:
        return []
    if any(owner.node.name in _called(each) for each in modules):
        return []
    near = [pair for each in modules for name in _attributes(each) for pair in project.calls.in_file(name, each)]
    near += project.calls.plain
    return [pair for pair in near if project.callee(*pair) is forward] if len(near) <= CALLS else []


@cache
def _called(module: Module) -> frozenset[str]:
    """The names of what it calls."""
    heads = [call.func for scope in module.scopes for call, _ in scope.calls]
    return frozenset(each.id if isinstance(each, ast.Name) else getattr(each, "attr", "") for each in heads)


@cache
def _attributes(module: Module) -> frozenset[str]:
    """The attributes of self that are given what a function or an entry of a table makes."""
    every = [pair for owner in module.classes.values() for pair in owner.attributes.items()]
    return frozenset(name for name, bindings in every if any(_is_built(b.value) for b in bindings))


def _is_built(node: ast.expr | None) -> bool:
    func = plain_call(node).func if isinstance(node, ast.Call) else None
    name = func.id if isinstance(func, ast.Name) else getattr(func, "attr", "")
    return isinstance(func, (ast.Subscript, ast.Call)) or name[:1].islower() or name.isupper()
