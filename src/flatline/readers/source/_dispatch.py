"""Methods that a loop calls on each of the objects in a list: callbacks, hooks and optimizers."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flatline.readers.source._listed import asked_for
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._objects import in_turn as in_order
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Class, Scope, Use
from flatline.readers.source._things import Thing
from flatline.readers.source._values import Source, gone_through, held, origins
from flatline.readers.source._values import each_of as held_by

CALLED = "__call__"


@dataclass(frozen=True, slots=True)
class Run:
    """A function that a call runs, perhaps as ``partial()`` has it, and the class of the object that it is called on."""

    function: Scope
    call: ast.Call
    use: Use
    owner: Class | None = None


def is_likely(call: ast.Call, use: Use) -> bool:
    """The call of what a loop or comprehension binds, of what ``getattr`` gave, or of an entry of a table."""
    func = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if isinstance(func, ast.Name):
        bound = use.scope.bindings.get(func.id, ())
        drawn = any(isinstance(b.use.statement, ast.For) or asked_for(func, use) is not func for b in bound)
        return drawn or func.id in use.scope.masked.get(id(use.statement), ())
    getter = isinstance(func, ast.Call) and isinstance(func.func, ast.Name) and func.func.id == "getattr"
    return getter or isinstance(func, ast.Subscript)


def goes_through_objects(project: Project, use: Use) -> bool:
    """A loop over hooks, whose turn is a part of something else."""
    loop = use.statement
    name = loop.target.id if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) else ""
    inside = replace(use, path=(*use.path, (id(loop), "body"))) if name else use
    found = in_order(project, name, inside) if name else ()
    things = [project.things(each.node, each.use) for each in found]
    return bool(things) and all(len(t) == 1 and t[0].call is not None and t[0].made_of is not None for t in things)


def is_unknown(project: Project, call: ast.Call, use: Use) -> bool:
    """A hook of a list that is not known, which is handed the object itself or is asked for by a name."""
    func = asked_for(call.func, use)
    getter = isinstance(func, ast.Call) and len(func.args) > 1 and not isinstance(func.args[1], ast.Constant)
    root = (
        func.args[0]
        if getter and isinstance(func, ast.Call)
        else func.value
        if isinstance(func, ast.Attribute)
        else func
    )
    given = any(isinstance(a, ast.Name) and use.scope.own == (a.id,) for a in call.args)
    if not isinstance(root, ast.Name) or not (getter or given) or not is_likely(call, use):
        return False
    found = in_order(project, root.id, use)
    return not found or not all(project.things(each.node, each.use) for each in found)


def each_of(project: Project, call: ast.Call, use: Use, keys: Mapping[str, str]) -> Sequence[Run]:
    """What a call in a loop over objects runs, in order; nothing if one is unknown. Keys spell what parameters were given."""
    receiver, names, may_lack = called_on(project, call, use, keys)
    found: list[Run] = []
    for each in in_order(project, receiver.id, use) if names and isinstance(receiver, ast.Name) else ():
        things = project.things(each.node, each.use)
        owner = things[0].made_of if len(things) == 1 and things[0].call is not None else None
        methods = [project.method(owner, name) for name in names] if owner is not None else []
        known = [Run(method, call, use, owner) for method in methods if method is not None]
        known = known or (_plainly(project, each, call, use) if names == [CALLED] else [])
        if not known and (owner is None or not (may_lack or _answers_all(project, owner))):
            return []
        found += known
    if found or (isinstance(receiver, ast.Name) and names == [CALLED] and in_order(project, receiver.id, use)):
        return found
    return _kept_as(project, call, use)


def _answers_all(project: Project, owner: Class) -> bool:
    """Its ``__getattr__`` gives ``lambda: None`` for what it lacks."""
    method = project.method(owner, "__getattr__")
    given = [value for value, _ in method.returns] if method is not None else []
    return bool(given) and all(isinstance(v, ast.Lambda) and isinstance(v.body, ast.Constant) for v in given)


def _kept_as(project: Project, call: ast.Call, use: Use) -> list[Run]:
    """``stages["train"]()``, ``run()`` and ``self.run()`` of what ``partial()`` made, or of a method that got a name."""
    func = call.func
    if isinstance(func, ast.Subscript) and not isinstance(func.slice, ast.Slice):
        key = project.constant(func.slice, use)
        found = held(project, func.value, key, use, 0) if key is not None else []
    else:
        plain = _has_value(func, use) and isinstance(func, (ast.Name, ast.Attribute)) and not project.dotted(func, use)
        found = origins(project, func, use) if plain else []
    return _plainly(project, found[0], call, use) if len(found) == 1 and found[0].node is not func else []


def _has_value(func: ast.expr, use: Use) -> bool:
    """A name, or an attribute of self, that is given something else than what a call of the project makes."""
    owner = use.scope.owner
    if isinstance(func, ast.Attribute):
        own = owner is not None and isinstance(func.value, ast.Name) and use.scope.own == (func.value.id,)
        bound = owner.attributes.get(func.attr, []) if own and owner is not None else []
    else:
        bound = use.scope.bindings.get(func.id, []) if isinstance(func, ast.Name) else []
    values = [b.value for b in bound]
    return any(
        isinstance(v, (ast.Attribute, ast.Subscript, ast.Name))
        or (isinstance(v, ast.Call) and "partial" in unparsed(v.func))
        for v in values
    )


def _plainly(project: Project, source: Source, call: ast.Call, use: Use) -> list[Run]:
    """A function in a list, a method of an object, or what ``partial()`` made of either."""
    node, place = source.node, source.use
    if isinstance(node, ast.Call) and project.dotted(node.func, place) == "functools.partial" and node.args:
        inner = _plainly(project, Source(node.args[0], place), call, use)
        return [Run(r.function, *project.merged(node, call, place), r.owner) for r in inner]
    if isinstance(node, ast.Attribute):
        owner = project.class_of(node.value, place)
        method = project.method(owner, node.attr) if owner is not None else None
        return [Run(method, call, use, owner)] if method is not None and not method.marked("property") else []
    things = project.things(node, place)
    function = things[0].function if len(things) == 1 and things[0].call is None and things[0].given is None else None
    return [Run(function, call, use)] if function is not None else []


def called_on(
    project: Project, call: ast.Call, use: Use, keys: Mapping[str, str]
) -> tuple[ast.expr | None, Sequence[str], bool]:
    """``hook`` and its names, of ``hook.before(...)`` and ``getattr(hook, name)(...)``; and whether it may lack them."""
    func = asked_for(call.func, use)
    if isinstance(func, ast.Attribute):
        return func.value, [func.attr], False
    if isinstance(func, ast.Name):
        return func, [CALLED], False
    if not isinstance(func, ast.Call) or len(func.args) < 2:
        return None, [], False
    return func.args[0], _words(project, func.args[1], use, keys), len(func.args) > 2 or _is_asked_for(use)


def _is_asked_for(use: Use) -> bool:
    """``if hasattr(hook, name):`` around it."""
    tests = [use.scope.choices[block].test for block, part in use.path if block in use.scope.choices and part == "body"]
    return any(is_presence(test, use) for test in tests)


def is_presence(test: ast.expr, use: Use) -> bool:
    """``hasattr(hook, name)``, and ``fn is not None`` or ``callable(fn)`` of what ``getattr`` gave."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot) and unparsed(test.comparators[0]) == "None":
        test = test.left
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.args:
        if test.func.id == "hasattr":
            return isinstance(test.args[0], ast.Name)
        test = test.args[0] if test.func.id == "callable" else test
    return isinstance(test, ast.Name) and asked_for(test, use) is not test


def _words(project: Project, node: ast.expr, use: Use, keys: Mapping[str, str]) -> list[str]:
    """What a name of a method may be: ``event``, ``"on_" + event`` and ``f"on_{event}"``."""
    if isinstance(node, ast.JoinedStr):
        found = [""]
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            found = [a + b for a in found for b in _words(project, inner, use, keys)]
        return found
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        ends = _words(project, node.right, use, keys)
        return [a + b for a in _words(project, node.left, use, keys) for b in ends]
    if isinstance(node, ast.Name) and node.id in keys:
        return [keys[node.id].strip("'\"")]
    given = project.given(node.id, use) if isinstance(node, ast.Name) and node.id in use.scope.params else [(node, use)]
    return [str(each.value) for each, _ in given if isinstance(each, ast.Constant)]


def in_turn(project: Project, node: ast.expr, use: Use) -> tuple[Thing, ...]:
    """What a name is, also where a loop goes through a list or a table of objects under it."""
    things = project.things(node, use)
    if things or not isinstance(node, ast.Name):
        return things
    head = gone_through(use, node.id)
    each = [project.things(s.node, s.use) for s in held_by(project, head, use)] if head is not None else []
    plain = bool(each) and all(len(found) == 1 and found[0].call is not None for found in each)
    return tuple(found[0] for found in each) if plain else ()
