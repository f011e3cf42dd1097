"""Hooks that may put something else in the place of what a layer gives: ``register_forward_hook``."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flatline.readers.source._imported import one_says
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import Module, Scope, Use
from flatline.readers.source._values import is_none

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

REGISTERS = ("register_forward_hook", "register_module_forward_hook")
SAID = re.compile(r"register_(module_)?forward_hook")
INNER = re.compile(r"\.(layer\d|layers|features|blocks?|stages|backbone|trunk|encoder)\b")  # with more layers behind
KEEPS = re.compile(r"(^print|^setattr|\.(append|extend|update|__setitem__|add_scalar|info|debug))\(")


def gives_another(project: Project, module: Module) -> bool:
    """A file registers a hook that returns something, or one that is not known."""
    return bool(project.recalled(module, "forward hooks", lambda: _giving(project, module)))


def _giving(project: Project, module: Module) -> list[ast.Call]:
    calls = [pair for scope in module.scopes for pair in scope.calls if one_says([module], SAID)]
    return [call for call, use in calls if _name(call) in REGISTERS and _returns(project, call, use)]


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else unparsed(call.func)


def _returns(project: Project, call: ast.Call, use: Use) -> bool:
    hooks = call.args[:1] or [k.value for k in call.keywords if k.arg == "hook"]
    functions = _functions(project, hooks[0], use) if hooks else []
    inner = isinstance(call.func, ast.Attribute) and INNER.search(unparsed(call.func.value)) is not None
    return (not functions and not inner) or any(_gives(value) for each in functions for value, _ in each.returns)


def _functions(project: Project, node: ast.expr, use: Use) -> Sequence[Scope]:
    """A function, a lambda, a method, or what a function makes; nothing if one of them is not known."""
    if isinstance(node, ast.Attribute) and (owner := project.class_of(node.value, use)) is not None:
        method = project.method(owner, node.attr)
        return [method] if method is not None else []
    things = project.things(node, use)
    owners = [project.method(t.made_of, "__call__") if t.made_of is not None and t.call else t.function for t in things]
    found = [each for each in owners if each is not None]
    return found if len(found) == len(things) else []


def _gives(value: ast.expr | None) -> bool:
    """Something else than None."""
    if value is None or is_none(value):
        return False
    return not (isinstance(value, ast.Call) and KEEPS.search(f"{unparsed(value.func)}("))
