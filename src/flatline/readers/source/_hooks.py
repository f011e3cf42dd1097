"""Functions that decorators or calls put into a list or a table of lists, and that a loop over it calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from flatline.readers.source._arguments import argument
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import FUNCTIONS, Class, Module, Scope, Use

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

Site = tuple[ast.Call, Use]


@dataclass(frozen=True, slots=True)
class List:
    """A list, or the lists of a table, that a file or a class has under a name."""

    holder: Module | Class
    name: str


@dataclass(frozen=True, slots=True)
class Hooked:
    """A function in a list, under the key of a table."""

    function: Scope
    key: object
    of: str = ""  # the object whose list it is


def behind(project: Project, node: ast.expr, use: Use) -> tuple[List, ast.expr | None] | None:
    """The list behind ``HOOKS[event]``, ``self.hooks.get(event, [])`` or ``HOOKS``, and the key."""
    node, key = _keyed(node)
    if isinstance(node, ast.Name):
        module = _file_of(project, node.id, use)
        return (List(module, node.id), key) if module is not None else None
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return None
    owner = use.scope.owner or (use.scope.parent.owner if use.scope.parent is not None else None)
    first = {*use.scope.own, *(use.scope.parent.own if use.scope.parent is not None else ())}
    return (List(owner, node.attr), key) if owner is not None and node.value.id in first else None


def _keyed(node: ast.expr) -> tuple[ast.expr, ast.expr | None]:
    """A table, and what is asked of it; or a list."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("list", "tuple"):
        return _keyed(node.args[0]) if len(node.args) == 1 else (node, None)
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Call) and isinstance(func, ast.Attribute) and func.attr in ("get", "setdefault"):
        return func.value, node.args[0] if node.args else None
    return (node.value, node.slice) if isinstance(node, ast.Subscript) else (node, None)


def _file_of(project: Project, name: str, use: Use) -> Module | None:
    """The file in which a name of the file is bound, once."""
    scope: Scope | None = use.scope
    while scope is not None and name not in scope.bindings:
        scope = scope.parent
    found = scope.bindings[name] if scope is not None and scope is scope.module.top else []
    if len(found) != 1 or not found[0].imported:
        return use.scope.module if len(found) == 1 and found[0].value is not None else None
    head, _, last = found[0].imported.rpartition(".")
    module = project.module_of(head, use.scope.module) if last == name and head.strip(".") else None
    return module if module is not None and len(module.top.bindings.get(name, ())) == 1 else None


def hooked(project: Project) -> Mapping[List, Sequence[Hooked]]:
    """All lists of functions, in the order in which they are filled; without those of which not all is known."""
    known = project.recalled(project, "hooks", lambda: [_all(project)])
    return known[0] if known else {}


def _all(project: Project) -> dict[List, list[Hooked]]:
    found: dict[List, list[Hooked]] = {}
    unknown: set[List] = set()
    for scope, call, use in _appends(project):
        place = behind(project, call.func.value, use)  # type: ignore[attr-defined]
        if place is None:
            continue
        each = [*_put_by(project, scope, call.args[0], place[1], use)]
        found.setdefault(place[0], []).extend(e for e in each if e is not None)
        if None in each or begun(project, place[0]) != []:
            unknown.add(place[0])
    return {k: v for k, v in found.items() if k not in unknown and len({e.of for e in v}) == 1}


def begun(project: Project, place: List) -> list[Hooked] | None:
    """The functions that a list, or the lists of a table, begin with; None where that is not known."""
    holder = place.holder
    bound = (
        holder.top.bindings.get(place.name, []) if isinstance(holder, Module) else holder.attributes.get(place.name, [])
    )
    value = bound[0].value if len(bound) == 1 and not bound[0].index else None
    if isinstance(value, ast.Call):
        return (
            []
            if unparsed(value) in ("defaultdict(list)", "collections.defaultdict(list)", "dict()", "list()")
            else None
        )
    if isinstance(value, ast.DictComp):
        return [] if unparsed(value.value) == "[]" else None
    if not isinstance(value, (ast.Dict, ast.List)):
        return None
    pairs = [*zip(value.keys, value.values, strict=True)] if isinstance(value, ast.Dict) else [(None, value)]
    found: list[Hooked] = []
    for key, each in pairs:
        plain = isinstance(each, (ast.List, ast.Tuple)) and (key is None) == isinstance(value, ast.List)
        for inner in each.elts if plain else [each]:  # type: ignore[attr-defined]
            things = project.things(inner, bound[0].use) if plain else ()
            word = _word(project, key, bound[0].use)
            if len(things) != 1 or things[0].function is None or things[0].call is not None or word is _UNKNOWN:
                return None
            found.append(Hooked(things[0].function, word))
    return found


def _appends(project: Project) -> Iterator[tuple[Scope, ast.Call, Use]]:
    """``HOOKS[event].append(function)``."""
    for module in [m for m in project.modules.values() if m is not None]:
        yield from _of_functions(module)


@cache
def _of_functions(module: Module) -> Sequence[tuple[Scope, ast.Call, Use]]:
    """What appends a parameter, or a function of the file, to something."""
    names = {getattr(scope.node, "name", "") for scope in module.scopes if scope.owner is None}
    return [
        (scope, call, use)
        for scope in module.scopes
        for call, use in scope.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and len(call.args) == 1
        if isinstance(given := call.args[0], ast.Name) and (given.id in scope.params or given.id in names)
    ]


def _put_by(project: Project, scope: Scope, given: ast.expr, key: ast.expr | None, use: Use) -> Iterator[Hooked | None]:
    """What one statement puts in; None for something else than a function whose key is known."""
    assert isinstance(given, ast.Name)
    if given.id not in scope.params:
        functions = [t.function for t in project.things(given, use)]
        word = _word(project, key, use)
        yield from (Hooked(f, word) if f is not None and word is not _UNKNOWN else None for f in functions or [None])
        return
    maker = scope.parent if scope.parent is not None and scope.parent is not scope.module.top else scope
    for call, place, function in _uses(project, maker, scope, given.id):
        told = argument(call, maker, key.id) if isinstance(key, ast.Name) and key.id in maker.params else key
        word, of = _word(project, told, place), _object(project, call, place)
        known = function is not None and word is not _UNKNOWN and of is not None
        yield Hooked(function, word, of or "") if known and function is not None else None


def _uses(project: Project, maker: Scope, scope: Scope, name: str) -> Iterator[tuple[ast.Call, Use, Scope | None]]:
    """``@on("end")``, ``@register``, ``on("end")(function)`` and ``register("end", function)``."""
    for module in [m for m in project.modules.values() if m is not None]:
        for function in module.functions.values():
            for head in getattr(function.node, "decorator_list", ()) if function.owner is None else ():
                call, place = _call_of(head), _place_of(function)
                if _named(call) != getattr(maker.node, "name", "") or (call is head) != (maker is not scope):
                    continue
                if place is not None and project.callee(call, place) is maker:
                    yield call, place, function
    for call, use in project.sites_of(maker):
        if any(call is head for head in getattr(use.statement, "decorator_list", ())):
            continue
        given = argument(call, maker, name) if maker is scope else _second(use, call)
        things = project.things(given, use) if given is not None else ()
        yield call, use, things[0].function if len(things) == 1 else _of_object(project, given, use)


def _of_object(project: Project, node: ast.expr | None, use: Use) -> Scope | None:
    """``saver.write``, a method of an object."""
    owner = project.class_of(node.value, use) if isinstance(node, ast.Attribute) else None
    return project.method(owner, node.attr) if owner is not None and isinstance(node, ast.Attribute) else None


def _second(use: Use, call: ast.Call) -> ast.expr | None:
    """``function`` of ``on("end")(function)``."""
    outer = [c for c, _ in use.scope.calls if c.func is call]
    return outer[0].args[0] if len(outer) == 1 and len(outer[0].args) == 1 else None


@cache
def _call_of(head: ast.expr) -> ast.Call:
    """A decorator as a call, also one that is not called."""
    return head if isinstance(head, ast.Call) else ast.copy_location(ast.Call(head, [], []), head)


def _named(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _place_of(function: Scope) -> Use | None:
    outer = function.parent or function.module.top
    return next((u for u in outer.statements if u.statement is function.node), None)


def _object(project: Project, call: ast.Call, use: Use) -> str | None:
    """Whose list it is; nothing for one of a file, None for one that is not known."""
    func = call.func
    if not isinstance(func, ast.Attribute) or project.dotted(func, use):
        return ""
    things = project.things(func.value, use)
    return things[0].identity() if len(things) == 1 and things[0].call is not None else None


_UNKNOWN = object()


def _word(project: Project, key: ast.expr | None, use: Use) -> object:
    """What a key is; None where there is none."""
    found = project.constant(key, use) if key is not None else None
    return None if key is None else found.value if found is not None else _UNKNOWN


# --------------------------------------------------------------------------- loops


def _loop(call: ast.Call, use: Use) -> ast.expr | None:
    """What the loop goes through whose name is called."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    around = {block for block, _ in use.path}
    bound = [b for b in use.scope.bindings.get(name, ()) if id(b.use.statement) in around]
    loop = bound[-1].use.statement if bound else None
    own = isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) and loop.target.id == name
    return loop.iter if own and isinstance(loop, ast.For) else None


@cache
def _over_lists(module: Module) -> Sequence[tuple[ast.Call, Use, ast.expr]]:
    """The calls of what a loop binds, and what the loop goes through."""
    every = [(call, use) for scope in module.scopes for call, use in scope.calls if isinstance(call.func, ast.Name)]
    return [(call, use, head) for call, use in every if (head := _loop(call, use)) is not None]


def called(project: Project, call: ast.Call, use: Use, keys: Mapping[str, str]) -> Sequence[Scope]:
    """The functions that ``hook(self)`` calls in a loop over a list of them, in their order. Keys spell parameters."""
    head = _loop(call, use)
    place = behind(project, head, use) if head is not None else None
    known = (hooked(project).get(place[0]) or _written_out(project, place[0])) if place is not None else []
    key = place[1] if place is not None else None
    if not known or key is None:
        return [each.function for each in known]
    if isinstance(key, ast.Name) and key.id in keys:
        return [each.function for each in known if repr(each.key) == keys[key.id]]
    given = project.given(key.id, use) if isinstance(key, ast.Name) and key.id in use.scope.params else [(key, use)]
    words = [_word(project, node, site) for node, site in given]
    return [each.function for each in known if each.key in words] if _UNKNOWN not in words else []


def _written_out(project: Project, place: List) -> Sequence[Hooked]:
    """What a list holds that nothing is put into."""
    if (known := project.registries.get((0, f"{id(place.holder)} {place.name}"))) is not None:
        return known
    found = begun(project, place) or []
    if found and any(_puts(m, place.name) for m in project.modules.values() if m is not None):
        found = []
    project.registries[0, f"{id(place.holder)} {place.name}"] = found
    return found


@cache
def _puts(module: Module, name: str) -> bool:
    """Whether something may be put into what has this name in a file."""
    text = re.compile(rf"\b{name}\b.*(\.(append|insert|extend|add|update|setdefault)\(|\] \+?= |\+= )")
    return any(name in line and text.search(line) for line in module.text.lines)


def sites(project: Project, function: Scope) -> Iterator[Site]:
    """The calls of a function in loops over the lists that it was put into."""
    if function.owner is not None or not isinstance(function.node, FUNCTIONS):
        return
    places = [place for place, each in hooked(project).items() if any(e.function is function for e in each)]
    name = function.node.name
    whole = function.module.whole
    listed = whole.count(name) > 1 and re.search(rf"[\[(,]\s*{name}\s*[\]),]", whole) is not None
    for module in [m for m in project.modules.values() if m is not None] if places or listed else ():
        for call, use, head in _over_lists(module):
            found = behind(project, head, use)
            if found is not None and (found[0] in places or function in _functions(project, found[0], listed)):
                yield call, use


def _functions(project: Project, place: List, asked: bool) -> Sequence[Scope]:
    return [each.function for each in _written_out(project, place)] if asked else []
