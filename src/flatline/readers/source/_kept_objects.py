"""Calls of objects that another object was handed and keeps: ``self.loss(scores, labels)`` of ``Trainer(net, TokenLoss())``."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING

from flatline.readers.source._arguments import default
from flatline.readers.source._scopes import Module, Scope, Use

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

PAIR = 2  # scores and labels
CALLS = 60  # that are looked at
FILES = 40  # of a project that is looked through


def calls(project: Project, forward: Scope) -> list[tuple[ast.Call, Use]]:
    """The calls of a forward, or of a ``__call__``, that compares two things, by attributes that a parameter gave."""
    needed = [name for name in forward.params[1:] if default(forward, name) is None]
    if len(needed) != PAIR:
        return []
    return project.recalled(forward, "kept object", lambda: _looked_for(project, forward))


def _looked_for(project: Project, forward: Scope) -> list[tuple[ast.Call, Use]]:
    modules = [each for each in project.modules.values() if each is not None]
    near = [pair for each in modules[:FILES] for name in _handed(each) for pair in project.calls.in_file(name, each)]
    own = [(call, use) for call, use in near if _is_own(call, use)]
    plain = 0 < len(own) <= CALLS and len(modules) <= FILES
    return [pair for pair in own if project.callee(*pair) is forward] if plain else []


@cache
def _handed(module: Module) -> frozenset[str]:
    """The attributes of self that ``__init__`` gives a parameter, and nothing else."""
    every = [(name, b[0]) for owner in module.classes.values() for name, b in owner.attributes.items() if len(b) == 1]
    given = [(name, bound) for name, bound in every if isinstance(bound.value, ast.Name) and not bound.index]
    return frozenset(name for name, bound in given if bound.value.id in bound.use.scope.params)  # type: ignore[union-attr]


def _is_own(call: ast.Call, use: Use) -> bool:
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(receiver, ast.Name) and use.scope.own == (receiver.id,)
