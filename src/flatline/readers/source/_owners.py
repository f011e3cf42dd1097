"""The class of an object, also where a method or a decorator was handed it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from flatline.readers.source import _listed, _values
from flatline.readers.source._scopes import Class, Scope, Use
from flatline.readers.source._values import DEPTH

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project


def class_behind(project: Project, node: ast.expr, use: Use, depth: int) -> Class | None:
    """The one class of what an expression stands for, some steps behind a question."""
    if isinstance(node, ast.Name) and use.scope.owner and use.scope.own == (node.id,):
        return use.scope.owner
    things = project.things(node, use, depth + 1)
    found = {id(thing.made_of): thing.made_of for thing in things if thing.call}
    if not things and isinstance(node, ast.Name) and node.id in use.scope.params:
        first = use.scope.owner is None and use.scope.params[:1] == (node.id,) and use.scope.parent is not None
        return _handed_over(project, node.id, use) or (_around(project, use.scope) if first else None)
    if not things and isinstance(node, ast.Attribute) and depth < DEPTH:
        return _kept_from(project, node, use, depth)
    return next(iter(found.values())) if len(found) == 1 else None


def _kept_from(project: Project, node: ast.Attribute, use: Use, depth: int) -> Class | None:
    """The class of ``self.trainer``, which a method was handed by the object itself: ``hook.attach(self)``."""
    owner = project.class_behind(node.value, use, depth + 1) if isinstance(node.value, ast.Name) else None
    bound = (
        [b for b in project.attributes(owner, node.attr) if not b.value or not _values.is_none(b.value)]
        if owner
        else []
    )
    given = bound[0].value if len(bound) == 1 and not bound[0].index else None
    if not isinstance(given, ast.Name) or given.id not in bound[0].use.scope.params:
        return None
    return _handed_over(project, given.id, bound[0].use)


def wrapper(project: Project, function: Scope) -> tuple[Scope, str] | None:
    """What the decorator of the project puts around a function, and how that calls it."""
    module, heads = function.module, getattr(function.node, "decorator_list", ())
    end = Use(module.top, len(module.top.statements), (), module.tree.body[-1]) if heads else None
    for head in heads:
        func = head.func if isinstance(head, ast.Call) else head
        things = project.things(func, end, DEPTH - 8) if isinstance(func, ast.Name) and end is not None else ()
        outer = things[0].function if len(things) == 1 else None
        outer = _inner(outer) if outer is not None and isinstance(head, ast.Call) else outer
        inner = _inner(outer) if outer is not None else None
        if outer is None or inner is None or not outer.params:
            continue
        if any(isinstance(c.func, ast.Name) and c.func.id == outer.params[0] for c, _ in inner.calls):
            return inner, outer.params[0]
    return None


def _inner(function: Scope) -> Scope | None:
    """The function that another one makes and returns."""
    value = function.returns[0][0] if len(function.returns) == 1 else None
    found = function.bindings.get(value.id, []) if isinstance(value, ast.Name) else []
    return function.module.functions.get(id(found[0].definition)) if len(found) == 1 else None


def _around(project: Project, scope: Scope) -> Class | None:
    """The one class whose methods a decorator is put above, of the function that takes their place."""
    makers = {each.name for each in (scope.parent, scope.parent.parent if scope.parent else None) if each}
    found = {id(f.owner): f for name in makers for f in project.decorated.get(name, ())}
    fits = [f.owner for f in found.values() if (made := project.wrapper(f)) is not None and made[0] is scope]
    return fits[0] if len(fits) == len(found) == 1 else None


def _handed_over(project: Project, name: str, use: Use) -> Class | None:
    """The class of an object that gives itself to every call of a function: ``hook.after(self)``."""
    if not all(binding.parameter for binding in use.scope.bindings[name]):
        return None
    given = [*_listed.handing(project, name, use.scope, 0)]
    own = all(isinstance(node, ast.Name) and scope.own == (node.id,) for node, scope in given)
    owners = {id(scope.owner): scope.owner for _, scope in given}
    return next(iter(owners.values())) if own and len(owners) == 1 else None


def class_itself(project: Project, node: ast.expr, use: Use, depth: int) -> Class | None:
    """``Net`` in ``Net.build()``."""
    things = project.things(node, use, depth + 1) if isinstance(node, ast.Name) else ()
    return things[0].made_of if len(things) == 1 and things[0].call is None else None
