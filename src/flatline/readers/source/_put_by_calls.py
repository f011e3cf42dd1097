"""Tables that calls fill: ``register(LOSSES, "ce")(nn.CrossEntropyLoss)``, ``register("ce")(Net)`` and ``register("ce", Net)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flatline.readers.source._arguments import argument
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import Module, Scope, Use
from flatline.readers.source._values import Source

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

Entry = tuple[object, Source]


def decorating(module: Module) -> Iterator[tuple[ast.Call, ast.expr, Use]]:
    """``register("ce")`` and ``Net`` of ``register("ce")(Net)``, at the top of a file."""
    for call, use in module.top.calls:
        if isinstance(call.func, ast.Call) and len(call.args) == 1 and not call.keywords:
            yield call.func, call.args[0], use


def put_by_calls(project: Project, module: Module, outer: Scope, inner: Scope, table: str) -> Iterator[Entry]:
    """What the calls of one function put into the one table that it, or what it gives back, fills."""
    for head, given, use in decorating(module) if inner is not outer else ():
        things = project.things(head.func, use)
        if len(things) == 1 and things[0].function is outer:
            yield _name(head.args[0] if len(head.args) == 1 else None), Source(given, use)
    names = _parameters(inner, table) if inner is outer else None
    for call, use in module.top.calls if names is not None else ():
        things = project.things(call.func, use) if isinstance(call.func, (ast.Name, ast.Attribute)) else ()
        if names is not None and len(things) == 1 and things[0].function is outer:
            key, value = (argument(call, outer, name) for name in names)
            if value is not None:
                yield _name(key), Source(value, use)


def _parameters(scope: Scope, table: str) -> tuple[str, str] | None:
    """The parameters that are the name and the thing: ``TABLE[name] = thing``."""
    for use in scope.statements:
        node = use.statement
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(target, ast.Subscript) and unparsed(target.value) == table and isinstance(node, ast.Assign):
            names = unparsed(target.slice), unparsed(node.value)
            return names if {*names} <= {*scope.params} and names[0] != names[1] else None
    return None


def _name(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None
