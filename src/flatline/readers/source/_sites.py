"""All calls of a function: by its name, by its object, through tables, lists of objects and partial()."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flatline.readers.source import (
    _forwarded,
    _kept_objects,
    _listed,
    _objects,
    _partials,
    _submodules,
)
from flatline.readers.source._arguments import fits
from flatline.readers.source._calls import Site
from flatline.readers.source._lineage import filled_in
from flatline.readers.source._scopes import LAMBDA, Module, Scope, Use
from flatline.readers.source._values import DEPTH

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project


SITES = 12  # calls of a method name that are looked at


def calls_of(project: Project, function: Scope) -> list[Site]:
    """All calls of a function that are known."""
    node = function.node
    if isinstance(node, ast.Module):
        return []
    if id(node) not in project.answered:
        name = function.owner.node.name if function.owner and node.name == "__init__" else node.name
        outside = [pair for pair in project.calls.outside.get(name, ()) if _reaches(project, *pair, function)]
        found = project.answered[id(node)] = project.calls.certain.get(id(node), []) + outside
        if node.name == "__init__" and function.owner is not None:
            found += [pair for pair in _forwarded.made_below(project, function) if pair not in found]
            found += [pair for pair in _forwarded.from_below(project, function) if pair not in found]
        mine = project.calls.partials.get(name, [])
        found += [*_partials.calls(project, function, mine, _asked_partly(project, mine))] if mine else []
        found += [pair for pair in project.by_entry.get(id(node), ()) if pair not in found]
        found += _by_its_name(project, function) if name == LAMBDA and not found else []
        asked = project.calls.methods.get(name, []) if function.owner is not None and not name.startswith("__") else []
        if name == "__call__" and function.owner is not None:
            known = [pair for pair in project.calls.plain if _knows(pair[1].scope.module, function)]
            found += [pair for pair in known if project.callee(*pair) is function or _is_each(project, *pair, function)]
        if not asked and function.owner is not None and not node.name.startswith("__"):
            asked = [pair for pair in project.calls.methods.get("getattr", ()) if _listed.may_name(*pair, node.name)]
        near = [p for p in asked if _knows(p[1].scope.module, function) or _listed.calls(project, *p, function)]
        near = near or (_far(project, asked, function) if not found else [])
        found += [pair for pair in near if _may_reach(project, *pair, function)] if len(near) <= SITES else []
        found += [pair for pair in _of_abstract(project, function) if pair not in found]
    return project.answered[id(node)]


def _far(project: Project, asked: list[Site], function: Scope) -> list[Site]:
    """Calls in files that are handed the object and import nothing of its class, where one is certain to reach it."""
    certain = len(asked) <= SITES and any(project.callee(*pair) is function for pair in asked)
    return asked if certain else []


def _of_abstract(project: Project, function: Scope) -> Iterator[tuple[ast.Call, Use]]:
    """The calls of the method of a class above that this one alone fills in."""
    name = getattr(function.node, "name", "")
    above = project.bases(function.owner) if function.owner is not None and function.owner.node.bases else ()
    for owner in above if not name.startswith("__") else ():
        method = owner.methods.get(name)
        if method is not None and method is not function and filled_in(project, owner, method) is function:
            yield from project.calls_of(method)


def _by_its_name(project: Project, function: Scope) -> list[Site]:
    """The calls of a lambda that was given a name."""
    outer = function.parent.bindings.items() if function.parent is not None else ()
    bound = {n for n, each in outer if any(b.value is not None and _is_at(b.value, function.node) for b in each)}
    return [pair for name in bound for pair in project.calls.by_name.get(name, ()) if project.callee(*pair) is function]


def _is_at(node: ast.expr, function: ast.AST) -> bool:
    """The lambda that a function was made of."""
    place = getattr(function, "lineno", 0), getattr(function, "col_offset", 0)
    return isinstance(node, ast.Lambda) and (node.lineno, node.col_offset) == place


def _asked_partly(project: Project, mine: list[Site]) -> list[Site]:
    """The calls of names that partial() made of a function."""
    named = {_partials.name_of(*pair) for pair in mine} - {""}
    plain = [(c, u) for c, u in project.calls.plain if isinstance(c.func, ast.Name) and c.func.id in named]
    return plain + [pair for name in named for pair in project.calls.methods.get(name, ())]


def sites_of(project: Project, function: Scope) -> list[Site]:
    """All calls of a function; of a forward, those of its module, too."""
    found = project.calls_of(function)
    return found + [pair for pair in _of_module(project, function) if pair not in found]


def _of_module(project: Project, function: Scope) -> list[Site]:
    """``criterion(scores, labels)``, calls of modules that a forward answers."""
    if function.owner is None or getattr(function.node, "name", "") not in ("forward", "__call__"):
        return []
    known = [pair for pair in project.calls.plain if _knows(pair[1].scope.module, function) and fits(pair[0], function)]
    found = [pair for pair in known[:SITES] if project.callee(*pair) is function] or _submodules.calls(
        project, function
    )
    return found or _kept_objects.calls(project, function)


def _is_each(project: Project, call: ast.Call, use: Use, function: Scope) -> bool:
    """``hook(self)`` in a loop over objects, of which one is of this class."""
    each = _objects.in_turn(project, call.func.id, use) if isinstance(call.func, ast.Name) else ()
    return any(t.made_of is function.owner for s in each for t in project.things(s.node, s.use) if t.call)


def _may_reach(project: Project, call: ast.Call, use: Use, function: Scope) -> bool:
    """A call of a method of an object whose class is this one, or is not known."""
    func, name = _listed.asked_for(call.func, use), getattr(function.node, "name", "")
    receiver = func.value if isinstance(func, ast.Attribute) else func.args[0]  # type: ignore[attr-defined]
    if isinstance(receiver, ast.Name) and use.scope.owner and use.scope.own == (receiver.id,):
        return project.method(use.scope.owner, name) is function
    things = project.things(receiver, use, DEPTH - 6)
    return fits(call, function) and (
        not things or any(t.made_of is not None and project.method(t.made_of, name) is function for t in things)
    )


def _reaches(project: Project, call: ast.Call, use: Use, function: Scope) -> bool:
    things = project.things(call.func, use, DEPTH - 6)
    found = any(t.function is function or (t.made_of and t.made_of is function.owner) for t in things)
    of_object = function.owner is not None and isinstance(call.func, ast.Attribute)
    return found or (of_object and project.callee(call, use) is function)


def _knows(module: Module, function: Scope) -> bool:
    """Whether a file defines or imports the class of a method, or one that it inherits from."""
    owner = function.owner.node if function.owner is not None else None
    if module is function.module or owner is None:
        return module is function.module
    known, bases = module.top.bindings, [base.id for base in owner.bases if isinstance(base, ast.Name)]
    near = [known[name][0].imported for name in bases if name in known]
    return owner.name in known or any(not dotted.startswith("torch") for dotted in near)


def of_entries(project: Project) -> Iterator[tuple[int, ast.Call, Use]]:
    for call, use in project.calls.keyed:
        for thing in project.things(call.func, use):
            function = project.method(thing.made_of, "__init__") if thing.made_of is not None else thing.function
            if thing.call is None and function is not None:
                yield id(function.node), call, use
