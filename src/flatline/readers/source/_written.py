"""What a file writes into tables, and into the attributes of objects."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import Module, Scope, Use

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

COPIES = {"dict", "copy", "deepcopy"}


def written_to(project: Project, node: ast.expr, use: Use) -> bool:
    """Whether ``name[...] = ...`` or ``name.update(...)`` is anywhere in the file."""
    module = use.scope.module
    if id(module) not in project.changed:
        project.changed[id(module)] = set(_changed(module))
    scope: Scope | None = use.scope
    while scope is not None and isinstance(node, ast.Name) and node.id not in scope.bindings:
        scope = scope.parent
    text, changed = unparsed(node), project.changed[id(module)]
    return (text, 0) in changed or (text, id(scope)) in changed


def written_below(project: Project, node: ast.expr, key: ast.Constant | None, use: Use) -> bool:
    """Whether ``name["head"]["width"] = ...`` is anywhere in the file."""
    project.written_to(node, use)
    part = f"{unparsed(node)}[{repr(key.value) + ']' if key is not None else ''}"
    return any(text.startswith(part) for text, _ in project.changed[id(use.scope.module)])


def _changed(module: Module) -> Iterator[tuple[str, int]]:
    """What is written to by key, or by a method of dictionaries, and in which function if it is one's own."""
    for scope in module.scopes:
        for node, use in _written(scope):
            name = node.id if isinstance(node, ast.Name) else ""
            found = scope.bindings.get(name, [])
            last = scope.reaching(name, use) if len(found) > 1 else []
            if last and all(b.value is not None and _is_copy(b.value, name) for b in last):
                found = last
            own = bool(found) and scope is not module.top and not any(b.parameter for b in found)
            yield unparsed(node), id(scope) if own else 0


def _written(scope: Scope) -> Iterator[tuple[ast.expr, Use]]:
    for use in scope.statements:
        node = use.statement
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from ((t.value, use) for t in targets if isinstance(t, ast.Subscript))
    for call, use in scope.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("update", "setdefault", "pop", "clear"):
            yield call.func.value, use


def set_from_outside(project: Project, name: str, module: Module) -> bool:
    """Whether ``something.name = ...`` is anywhere in the file, but for a method's own object."""
    if id(module) not in project.set_outside:
        project.set_outside[id(module)] = set(_set_outside(module))
    return name in project.set_outside[id(module)]


def _set_outside(module: Module) -> Iterator[str]:
    """Attributes of anything but the object of a method that are given a value."""
    for scope in module.scopes:
        own = scope.params[:1] if scope.owner is not None else ()
        for use in scope.statements:
            node = use.statement
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Attribute) and unparsed(target.value) not in own:
                    yield target.attr


def _is_copy(node: ast.expr, name: str) -> bool:
    """``dict(cfg)``, ``copy.deepcopy(cfg)``, ``cfg.copy()`` and ``{**cfg}``."""
    whole = _copied(node) if isinstance(node, ast.Call) else None
    whole = node.values[0] if isinstance(node, ast.Dict) and node.keys == [None] else whole
    return isinstance(whole, ast.Name) and whole.id == name


def _copied(node: ast.Call) -> ast.expr | None:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in COPIES and len(node.args) == 1 and not node.keywords:
        return node.args[0]
    own = isinstance(node.func, ast.Attribute) and name == "copy" and not node.args
    return node.func.value if own and isinstance(node.func, ast.Attribute) else None
