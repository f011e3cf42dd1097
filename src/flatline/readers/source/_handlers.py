"""Functions that an object is handed, keeps in a list, and calls later: ``@trainer.on("epoch_end")``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from flatline.readers.source._scopes import FUNCTIONS, Class, Module, Scope, Use

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

Site = tuple[ast.Call, Use]


def handed(project: Project, function: Scope) -> Sequence[Site]:
    """The calls of a function through the lists that it was put into."""
    if function.owner is not None or not isinstance(function.node, FUNCTIONS):
        return []
    found: list[Site] = []
    for head, use in _registrations(function):
        owner = _owner(project, head, use)
        kept = _kept(owner.methods[head.attr]) if owner is not None else ""
        found += _called(owner, kept) if owner is not None and kept else ()
    return found


def _owner(project: Project, head: ast.Attribute, use: Use) -> Class | None:
    """The class of the object that a function is given to, if it has a method of this name."""
    things = project.things(head.value, use)
    owner = things[0].made_of if len(things) == 1 and things[0].call is not None else None
    return owner if owner is not None and head.attr in owner.methods else None


def _registrations(function: Scope) -> Iterator[tuple[ast.Attribute, Use]]:
    """``trainer.on`` of a decorator, and of ``trainer.on("end", function)`` beside the function."""
    outer, node = function.parent or function.module.top, function.node
    place = next((u for u in outer.statements if u.statement is node), None)
    for head in getattr(node, "decorator_list", ()):
        func = head.func if isinstance(head, ast.Call) else head
        if isinstance(func, ast.Attribute) and place is not None:
            yield func, place
    for func, use in _given(function.module).get(getattr(node, "name", ""), ()):
        if use.scope is outer or outer is function.module.top:
            yield func, use


@cache
def _given(module: Module) -> dict[str, list[tuple[ast.Attribute, Use]]]:
    """The methods that a function of the file is given to, by its name."""
    names = {getattr(scope.node, "name", "") for scope in module.scopes if scope.owner is None}
    found: dict[str, list[tuple[ast.Attribute, Use]]] = {}
    for scope in module.scopes:
        for call, use in scope.calls:
            for each in call.args if isinstance(call.func, ast.Attribute) else ():
                if isinstance(each, ast.Name) and each.id in names and isinstance(call.func, ast.Attribute):
                    found.setdefault(each.id, []).append((call.func, use))
    return found


def _kept(method: Scope) -> str:
    """``handlers``, where a method, or a function in it, puts what it is given into ``self.handlers``."""
    for scope in (s for s in method.module.scopes if method in (s, s.parent)):
        for call, _ in scope.calls:
            given = call.args[-1] if call.args else None
            name = given.id if isinstance(given, ast.Name) and given.id in scope.params else ""
            if name and isinstance(call.func, ast.Attribute) and call.func.attr == "append":
                return _attribute(call.func.value, method)
        for use in scope.statements:
            node = use.statement
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Subscript) and isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                if node.value.id in scope.params:
                    return _attribute(target, method)
    return ""


def _attribute(node: ast.expr, method: Scope) -> str:
    """``handlers`` of ``self.handlers[event]`` and ``self.handlers.setdefault(event, [])``."""
    while isinstance(node, (ast.Subscript, ast.Call)) or (
        isinstance(node, ast.Attribute) and node.attr in ("setdefault", "get")
    ):
        node = node.func if isinstance(node, ast.Call) else node.value
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and method.own == (node.value.id,)
    return node.attr if own and isinstance(node, ast.Attribute) else ""


def _called(owner: Class, attribute: str) -> Iterator[Site]:
    """``handler(self)`` in a loop over the list, or what it holds under a key."""
    for method in owner.methods.values():
        for call, use in method.calls:
            node: ast.expr | None = call.func
            if isinstance(node, ast.Name):
                around = {block for block, _ in use.path}
                loops = [b.use.statement for b in method.bindings.get(node.id, ()) if id(b.use.statement) in around]
                node = loops[-1].iter if loops and isinstance(loops[-1], ast.For) else None
            elif not isinstance(node, ast.Subscript):
                continue
            if node is not None and _attribute(node, method) == attribute:
                yield call, use
