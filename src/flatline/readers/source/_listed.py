"""Methods that a loop calls on each object of a list, in a file that need not know their classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from flatline.readers.source._arguments import argument
from flatline.readers.source._objects import in_turn
from flatline.readers.source._scopes import Module, Scope, Use

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

HANDED = 3  # functions that hand an object on


def calls(project: Project, call: ast.Call, use: Use, function: Scope) -> bool:
    """``hook.after(self)`` in a loop over objects, of which one has this method."""
    func, name = asked_for(call.func, use), getattr(function.node, "name", "")
    getter = isinstance(func, ast.Call) and bool(func.args)
    receiver = func.value if isinstance(func, ast.Attribute) else func.args[0] if getter else None  # type: ignore[attr-defined]
    for each in in_turn(project, receiver.id, use) if isinstance(receiver, ast.Name) else ():
        for thing in project.things(each.node, each.use):
            if thing.call is not None and thing.made_of is not None and project.method(thing.made_of, name) is function:
                return True
    return False


def may_name(call: ast.Call, use: Use, name: str) -> bool:
    """Whether ``getattr(hook, event)`` may ask for a method, as far as the words say that its file has in quotes."""
    words = quoted(use.scope.module)
    func = asked_for(call.func, use)
    made = func.args[1] if isinstance(func, ast.Call) and len(func.args) > 1 else None
    joined = isinstance(made, (ast.JoinedStr, ast.BinOp))
    return name in words or (joined and any(name.endswith(word) or name.startswith(word) for word in words))


@cache
def quoted(module: Module) -> frozenset[str]:
    """The words that a file has in quotes."""
    return frozenset(found for line in module.text.lines for found in re.findall(r"['\"](\w+)['\"]", line))


def asked_for(func: ast.expr, use: Use) -> ast.expr:
    """``getattr(hook, name)``, also where its result got a name before."""
    bound = use.scope.reaching(func.id, use) if isinstance(func, ast.Name) and func.id in use.scope.bindings else []
    value = bound[0].value if len(bound) == 1 and not bound[0].index else None
    made = value if isinstance(value, ast.Call) else func
    plain = isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id == "getattr"
    return made if plain else func


def handing(project: Project, name: str, scope: Scope, depth: int) -> Iterator[tuple[ast.expr | None, Scope]]:
    """What the calls of a function give for a parameter, behind functions that only hand it on; and where."""
    for call, site in project.calls_of(scope):
        node = argument(call, scope, name)
        on = isinstance(node, ast.Name) and node.id in site.scope.params and site.scope.own != (node.id,)
        if on and isinstance(node, ast.Name) and depth < HANDED and len(site.scope.bindings[node.id]) == 1:
            yield from handing(project, node.id, site.scope, depth + 1)
        else:
            yield node, site.scope
