"""Context managers and decorators of the project: what a with statement hands out, and what runs without gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import Binding, Class, Module, Scope, Use
from flatline.readers.source._values import Source

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

OFF = re.compile(r"\bno_grad\(|\binference_mode\(\s*(True)?\s*\)|set_grad_enabled\(\s*False\s*\)")


def entered(project: Project, binding: Binding) -> Sequence[Source]:
    """What ``with manager(...) as name`` gives a name: what a generator yields, or what ``__enter__`` gives back."""
    node, use = binding.use.statement, binding.use
    if not isinstance(node, (ast.With, ast.AsyncWith)) or binding.index:
        return []
    own = [
        i for i in node.items if isinstance(i.optional_vars, ast.Name) and use.scope.bindings.get(i.optional_vars.id)
    ]
    heads = [i.context_expr for i in own if binding in use.scope.bindings[i.optional_vars.id]]  # type: ignore[union-attr]
    head = heads[0] if len(heads) == 1 and isinstance(heads[0], ast.Call) else None
    function = project.callee(head, use) if head is not None else None
    if function is not None and function.marked("contextmanager") and head is not None:
        return [Source(y.value, place) for y, place in function.yields if y.value is not None]
    things = project.things(head, use) if head is not None else ()
    owner = things[0].made_of if len(things) == 1 and things[0].call is not None else None
    enter = project.method(owner, "__enter__") if owner is not None else None
    return [Source(value, place) for value, place in enter.returns if value is not None] if enter is not None else []


def is_quiet(project: Project, head: ast.expr, use: Use) -> bool:
    """A manager of the project that switches gradients off while it waits: ``with evaluating(model):``."""
    func = head.func if isinstance(head, ast.Call) else None
    if func is None or not isinstance(head, ast.Call) or _last(func) not in names(project):
        return False
    function = project.callee(head, use)
    if function is not None and function.marked("contextmanager"):
        return _yields_quietly(function)
    things = project.things(head, use)
    owner = things[0].made_of if len(things) == 1 and things[0].call is not None else None
    return owner is not None and _enters_quietly(owner)


def is_wrapped_quietly(project: Project, function: Scope) -> bool:
    """A decorator of the project calls it without gradients."""
    heads = getattr(function.node, "decorator_list", ())
    if not any(_last(h.func if isinstance(h, ast.Call) else h) in names(project) for h in heads):
        return False
    around = project.wrapper(function)
    if around is None:
        return False
    calls = [use for call, use in around[0].calls if isinstance(call.func, ast.Name) and call.func.id == around[1]]
    return bool(calls) and all(_under_none(around[0], use) for use in calls)


def _yields_quietly(function: Scope) -> bool:
    return bool(function.yields) and all(_under_none(function, use) for _, use in function.yields)


def _enters_quietly(owner: Class) -> bool:
    """A class whose ``__enter__`` switches gradients off."""
    enter = owner.methods.get("__enter__")
    text = unparsed(enter.node) if enter is not None else ""
    return "set_grad_enabled(False)" in text or (
        ".__enter__()" in text and OFF.search(unparsed(owner.node)) is not None
    )


def _under_none(function: Scope, use: Use) -> bool:
    """Below ``with torch.no_grad():``, or the decorator of that name."""
    line = use.statement.lineno
    nodes = [u.statement for u in function.statements if isinstance(u.statement, ast.With)]
    around = [n for n in nodes if n.lineno <= line <= (n.end_lineno or 0)]
    return any(OFF.search(f"{unparsed(item.context_expr)}") for n in around for item in n.items)


def names(project: Project) -> frozenset[str]:
    """The managers and decorators of the project that speak of gradients, by their names."""
    modules = (m for m in project.modules.values() if m is not None)
    return frozenset(project.recalled(project, "quiet", lambda: [n for m in modules for n in _quiet_in(m)]))


@cache
def _quiet_in(module: Module) -> frozenset[str]:
    """Functions with a with statement over no_grad around a yield, or a call of what they are given."""
    if not any(OFF.search(line) for line in module.text.lines):
        return frozenset()
    found = {owner.node.name for owner in module.classes.values() if _enters_quietly(owner)}
    for scope in module.scopes:
        plain = scope.owner is None and scope is not module.top
        if plain and scope.yields and scope.marked("contextmanager") and _yields_quietly(scope):
            found.add(scope.name)
        elif plain and scope.parent is not None and scope.parent is not module.top:
            given = {*scope.parent.params, *(scope.parent.parent.params if scope.parent.parent is not None else ())}
            calls = [use for call, use in scope.calls if isinstance(call.func, ast.Name) and call.func.id in given]
            if calls and all(_under_none(scope, use) for use in calls):
                outer = scope.parent
                while outer.parent is not None and outer.parent is not module.top:
                    outer = outer.parent
                found.add(outer.name)
    return frozenset(found)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
