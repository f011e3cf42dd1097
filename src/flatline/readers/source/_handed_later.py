"""Methods of other objects that a finished object hands itself to: ``hook.before_fit(self)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Class, Module, Scope, Use
from flatline.readers.source._seen import Seen, seen_in


def handed_later(seen: Seen, name: str) -> Iterator[Seen]:
    """Those that change something of the object, and can only run when ``__init__``, which this is, is over."""
    owner, project = seen.scope.owner, seen.project
    if owner is None or owner.methods.get("__init__") is not seen.scope:
        return
    modules = [m for m in project.modules.values() if m is not None]
    again = any(project.set_from_outside(name.removeprefix("self."), m) for m in modules if _writers(m))
    for function in [] if again else [function for each in modules for function in _writers(each)]:
        calls = project.calls_of(function) if function.owner is not owner and _is_made(project, function) else []
        places = [place for call, use in calls for place in callers_of(project, function, call, use)]
        known = all(use.scope.owner is owner or _hands_over(project, call, use, owner) for call, use in calls)
        begins = any(runs_in_start(seen.scope, place.scope) for place in places)
        if places and known and not begins and not all(map(_is_last, places)):
            yield seen_in(project, function)


def _hands_over(project: Project, call: ast.Call, use: Use, owner: Class) -> bool:
    """``adapt(engine)``, of an object that is finished."""
    given = [each for each in call.args if isinstance(each, (ast.Name, ast.Attribute))]
    return any(t.made_of is owner and t.call is not None for each in given for t in project.things(each, use))


@cache
def _writers(module: Module) -> Sequence[Scope]:
    """The functions of a file that give a part of what they are handed a part of its own."""
    return [s for s in module.scopes if s is not module.top and any(map(_writes_part, s.statements))]


def _writes_part(use: Use) -> bool:
    """``engine.model.head = ...``, and ``model.head = ...`` of ``model = engine.model``."""
    target = use.statement.targets[0] if isinstance(use.statement, ast.Assign) else None
    part = behind_name(target.value, use) if isinstance(target, ast.Attribute) else None
    deep = isinstance(part, ast.Attribute)
    while isinstance(part, ast.Attribute):
        part = part.value
    given = use.scope.params[len(use.scope.own) :]
    return deep and isinstance(part, ast.Name) and part.id in given


def behind_name(node: ast.expr, use: Use) -> ast.expr:
    """``engine.model``, where that got a name."""
    found = use.scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    value = found[0].value if len(found) == 1 and not found[0].index else None
    return value if isinstance(value, ast.Attribute) else node


def _is_made(project: Project, function: Scope) -> bool:
    """An object of its class is made somewhere."""
    name = function.owner.node.name if function.owner is not None else ""
    start = project.method(function.owner, "__init__") if function.owner is not None else None
    made = (unparsed(call.func) for call, _ in project.calls_of(start)) if start is not None else ()
    return not name or bool(project.calls.under(name)) or name in (each.rpartition(".")[2] for each in made)


def _is_last(place: Use) -> bool:
    """Behind the last loop of its function, with one before it: the training is over."""
    loops = [u.order for u in place.scope.statements if isinstance(u.statement, (ast.For, ast.While))]
    outer = [block for block, _ in place.path if block in place.scope.loops]
    own = isinstance(place.statement, (ast.For, ast.While)) or bool(outer)
    head = next((u.order for u in place.scope.statements if id(u.statement) in outer), place.order)
    before = [order for order in loops if order < head]
    return bool(before) and max(loops) <= (head if own else place.order)


def callers_of(project: Project, function: Scope, call: ast.Call, use: Use) -> Iterator[Use]:
    """Where it is called; of ``getattr(hook, name)(self)`` where its name is given."""
    if not isinstance(call.func, ast.Call):
        yield use
        return
    name = getattr(function.node, "name", "")
    for outer, place in project.calls_of(use.scope):
        if any(isinstance(each, ast.Constant) and each.value == name for each in outer.args):
            yield place


def runs_in_start(start: Scope, scope: Scope) -> bool:
    """``__init__`` itself, or what it calls."""
    return scope is start or f".{getattr(scope.node, 'name', '')}(" in unparsed(start.node)
