"""Calls of modules that are attributes of others: ``self.pool(features)`` runs the forward of the pool's class."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from flatline.readers.source._scopes import Module, Scope, Use, plain_call

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

SITES = 12  # calls that are looked at


def calls(project: Project, forward: Scope) -> list[tuple[ast.Call, Use]]:
    """The calls of a forward by attributes; none where an object of its class is kept in any other way."""
    owner = forward.owner
    found: list[tuple[ast.Call, Use]] = []
    for module in project.modules.values() if owner is not None else ():
        if module is None or owner is None or (name := owner.node.name) not in module.top.bindings:
            continue
        made, kept = _built(module)[name], _kept(module).get(name, ())
        if made != len(kept) or module.top.bindings[name][0].use.scope is not module.top:
            return []
        asked = [pair for attribute in set(kept) for pair in project.calls.in_file(attribute, module)]
        found += [pair for pair in asked[: SITES + 1] if project.callee(*pair) is forward]
    return found if len(found) <= SITES else []


@cache
def _built(module: Module) -> Counter[str]:
    """How often each name is called."""
    return Counter(_last(call.func) for scope in module.scopes for call, _ in scope.calls)


@cache
def _kept(module: Module) -> dict[str, tuple[str, ...]]:
    """The attributes of self that are given what a call of a name makes."""
    found: dict[str, tuple[str, ...]] = {}
    for owner in module.classes.values():
        for attribute, bindings in owner.attributes.items():
            for binding in bindings:
                if isinstance(binding.value, ast.Call) and not binding.index:
                    name = _last(plain_call(binding.value).func)
                    found[name] = (*found.get(name, ()), attribute)
    return found


def _last(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
