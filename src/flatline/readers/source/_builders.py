"""Functions that make what settings name: ``HEADS[cfg.pop("type")](**cfg)``, ``build_from_cfg(cfg, REGISTRY)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from flatline.readers.source import _registries, _spread
from flatline.readers.source._arguments import argument, default
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._scopes import Module, Scope, Use, plain_call

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project
    from flatline.readers.source._things import Thing

STEPS = 6  # from a name in a builder to what the call gives
SITES = 12  # calls of one builder that are looked at
ROUNDS = 2  # builders in what a builder makes
COPIES = {"dict", "copy", "deepcopy"}
ASKS = {"get", "pop"}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a builder returns: a call of something that it looks up."""

    made: ast.Call
    table: ast.expr  # or the module of getattr()
    key: ast.expr
    how: ast.expr  # the lookup
    use: Use


def builders_in(module: Module) -> list[Scope]:
    """The functions of a file that look up what they make."""
    return [scope for scope in module.scopes if scope is not module.top and shape(scope) is not None]


@cache
def shape(function: Scope) -> Shape | None:
    """How a function looks up what it makes; None for any other function."""
    values = [(value, use) for value, use in function.returns if value is not None]
    if len(values) != 1:
        return None
    value, use = _behind(*values[0])
    made = plain_call(value) if isinstance(value, ast.Call) else None
    head, use = _behind(made.func, use) if made is not None else (None, use)
    if made is None or head is None:
        return None
    if isinstance(head, ast.Subscript) and not isinstance(head.slice, (ast.Slice, ast.Constant)):
        return Shape(made, head.value, head.slice, head, use)
    args = head.args if isinstance(head, ast.Call) else []
    if isinstance(head, ast.Call) and isinstance(head.func, ast.Name) and head.func.id == "getattr" and len(args) > 1:
        return Shape(made, args[0], args[1], head, use)
    if isinstance(head, ast.Call) and isinstance(head.func, ast.Attribute) and len(args) == 1:
        return Shape(made, head.func.value, args[0], head, use)
    return None


def _behind(node: ast.expr, use: Use) -> tuple[ast.expr, Use]:
    """What the one assignment to a name of the function gave it."""
    for _ in range(STEPS):
        found = use.scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
        if len(found) != 1 or found[0].index or found[0].value is None:
            break
        node, use = found[0].value, found[0].use
    return node, use


def sites(project: Project, builders: Sequence[Scope]) -> Iterator[tuple[int, ast.Call, Use]]:
    """The calls that builders make, by the function that each of them runs."""
    for function in builders:
        for call, use in project.calls_of(function)[:SITES]:
            for thing in made_by(project, call, use, function):
                start = project.method(thing.made_of, "__init__") if thing.made_of is not None else thing.function
                if start is not None and thing.call is not None:
                    yield id(start.node), thing.call, use


def built(project: Project, call: ast.Call, use: Use, function: Scope, depth: int) -> tuple[Thing, ...]:
    """What one call of a builder gives back; nothing if that is not known."""
    found = made_by(project, call, use, function)
    inner = found[0].function if len(found) == 1 else None
    return project.returned(inner, call, depth) if inner is not None else found


def made_by(project: Project, call: ast.Call, use: Use, function: Scope) -> tuple[Thing, ...]:
    """What is made by one call of a builder, or the function that it calls, with the call that is made."""
    known = shape(function)
    if known is None:
        return ()
    key = id(call), id(use)
    if key not in project.built:
        project.built[key] = call, ()
        project.built[key] = call, _made(project, _Given(project, call, use, function), known)
    return project.built[key][1]


def _made(project: Project, given: _Given, known: Shape) -> tuple[Thing, ...]:
    held = _held(project, given, known)
    if len(held) != 1 or held[0].call is not None or held[0].given is not None:
        return ()
    return (replace(held[0], use=given.use, call=given.call_made(known)),)


def _held(project: Project, given: _Given, known: Shape) -> tuple[Thing, ...]:
    """What is looked up."""
    word = given.constant(known.key, known.use)
    if word is None:
        return ()
    table, function = known.table, given.function
    first = table.value if isinstance(table, ast.Attribute) else table
    if isinstance(first, ast.Name) and function.owner is not None and function.own == (first.id,):
        receiver = given.call.func.value if isinstance(given.call.func, ast.Attribute) else None
        holder = _registries.holder(project, receiver, given.use) if receiver is not None else ""
        entries = _registries.entries(project, function.owner, table.attr if isinstance(table, ast.Attribute) else "")
        found = [e.source for e in entries if e.holder == holder and e.name == word.value]
        if found:
            return project.things(found[0].node, found[0].use) if len(found) == 1 else ()
    if isinstance(table, ast.Call) and isinstance(table.func, ast.Name) and table.func.id == "globals":
        return project.name(str(word.value), known.use)
    inner, place = given.put(table, known.use), given.use
    if inner is None:
        inner, place = table, known.use
    project.alive.append(asked := _asked(known.how, inner, word))
    return project.things(asked, place)


def _asked(how: ast.expr, table: ast.expr, word: ast.Constant) -> ast.expr:
    """The same lookup, of a table and a name that are known."""
    if isinstance(how, ast.Subscript):
        return ast.copy_location(ast.Subscript(table, word, ast.Load()), how)
    assert isinstance(how, ast.Call)
    if isinstance(how.func, ast.Name):
        return ast.copy_location(ast.Call(how.func, [table, word], []), how)
    func = ast.Attribute(table, how.func.attr, ast.Load())  # type: ignore[attr-defined]
    return ast.copy_location(ast.Call(func, [word], []), how)


class _Given:
    """One call of a builder: what its names are where the call stands."""

    def __init__(self, project: Project, call: ast.Call, use: Use, function: Scope) -> None:
        self.project, self.call, self.use, self.function = project, call, use, function

    def constant(self, node: ast.expr, place: Use) -> ast.Constant | None:
        """A word that is written out, here or where the call stands."""
        there = self.put(node, place)
        if there is None:
            return self.project.constant(node, place)
        self.project.alive.append(there)
        return self.project.constant(there, self.use)

    def put(self, node: ast.expr | None, place: Use, depth: int = 0) -> ast.expr | None:
        """An expression of the builder, as one of the place of the call; None where it cannot be one."""
        if node is None or depth > STEPS:
            return None
        if isinstance(node, ast.Constant):
            return node
        if isinstance(node, ast.Name):
            return self._name(node, place, depth)
        if isinstance(node, ast.Attribute):
            inner = self.put(node.value, place, depth + 1)
            return ast.copy_location(ast.Attribute(inner, node.attr, ast.Load()), node) if inner is not None else None
        if isinstance(node, ast.Subscript):
            return self._part(node.value, node.slice, place, depth)
        if isinstance(node, ast.Call) and (whole := _copied(node)) is not None:
            return self.put(whole, place, depth + 1)
        if isinstance(node, ast.Call) and _spread.is_of_record(node):
            inner = self.put(node.args[0], place, depth + 1)
            return ast.copy_location(ast.Call(node.func, [inner], []), node) if inner is not None else None
        func = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and isinstance(func, ast.Attribute) and func.attr in ASKS and node.args:
            return self._part(func.value, node.args[0], place, depth, node.args[1:])
        if isinstance(node, ast.Dict) and node.keys == [None]:
            return self.put(node.values[0], place, depth + 1)
        return None

    def _part(
        self, table: ast.expr, key: ast.expr, place: Use, depth: int, usual: Sequence[ast.expr] = ()
    ) -> ast.expr | None:
        inner = self.put(table, place, depth + 1)
        if inner is None or not isinstance(key, ast.Constant):
            return None
        if usual:
            names = _spread.spread(self.project, inner, self.use)
            if names is None or key.value not in names:
                return self.put(usual[0], place, depth + 1) if names is not None else None
        return ast.copy_location(ast.Subscript(inner, key, ast.Load()), key)

    def _name(self, node: ast.Name, place: Use, depth: int) -> ast.expr | None:
        function, bound = self.function, self.function.bindings.get(node.id, [])
        if function.own == (node.id,):
            return self.call.func.value if isinstance(self.call.func, ast.Attribute) else None
        if not bound or place.scope is not function:
            return None
        if bound[0].parameter or node.id == _rest(function):
            copies = all(b.value is not None and is_copy(b.value, node.id) for b in bound[1:])
            return self.argument(node.id) if copies else None
        plain = len(bound) == 1 and not bound[0].index
        return self.put(bound[0].value, bound[0].use, depth + 1) if plain else None

    def argument(self, name: str) -> ast.expr | None:
        """What the call gives for a parameter; for ``**options`` all that goes to no other."""
        if name == _rest(self.function):
            others = [k for k in self.call.keywords if k.arg not in self.function.params]
            keys: list[ast.expr | None] = [ast.Constant(k.arg) if k.arg is not None else None for k in others]
            return ast.copy_location(ast.Dict(keys, [k.value for k in others]), self.call)
        value = argument(self.call, self.function, name)
        usual = default(self.function, name)
        spread = any(k.arg is None for k in self.call.keywords)
        return value if value is not None or spread or not isinstance(usual, ast.Constant) else usual

    def call_made(self, known: Shape) -> ast.Call:
        """The call that the builder makes, as if it stood where the builder is called."""
        args: list[ast.expr] = []
        named: list[ast.keyword] = []
        for each in known.made.args:
            if isinstance(each, ast.Starred):
                more = self._starred(each)
                args += more or []
                named += [ast.keyword(None, _spread.UNKNOWN)] if more is None else []
            else:
                args.append(self._value(each, known.use))
        for keyword in known.made.keywords:
            if keyword.arg is not None:
                named.append(ast.keyword(keyword.arg, self._value(keyword.value, known.use)))
            else:
                named += self._spread(keyword.value, known)
        made = ast.copy_location(ast.Call(known.made.func, args, named), self.call)
        self.project.alive.append(made)
        return made

    def _value(self, node: ast.expr, place: Use) -> ast.expr:
        return self.put(node, place) or self.project.constant(node, place) or _spread.UNKNOWN

    def _starred(self, node: ast.Starred) -> list[ast.expr] | None:
        """What ``*args`` of the builder are in this call."""
        taken = getattr(self.function.node, "args", None)
        own = taken is not None and taken.vararg is not None and unparsed(node.value) == taken.vararg.arg
        places = len(self.function.params) - len(self.function.own) - len(taken.kwonlyargs) if taken is not None else 0
        return self.call.args[places:] if own else None

    def _spread(self, node: ast.expr, known: Shape) -> list[ast.keyword]:
        """What ``**cfg`` gives, less what the builder takes out of it, and what it puts in."""
        parts: list[ast.keyword] = []
        left_out, table = _filtered(_behind(node, known.use)[0])
        if isinstance(table, ast.Dict) and table.keys != [None]:
            for key, value in zip(table.keys, table.values, strict=True):
                word = key.value if isinstance(key, ast.Constant) else None
                more = [ast.keyword(str(word), self._value(value, known.use))] if word is not None else []
                parts += more or self._spread(value, known)
            return _last_of_each(parts)
        there = self.put(table, known.use)
        names = _spread.spread(self.project, there, self.use) if there is not None else None
        taken, added = _edited(self.function)
        left_out |= taken | {known.key.slice.value} if _is_keyed(known.key) else taken  # type: ignore[attr-defined]
        if there is None or names is None:
            parts.append(ast.keyword(None, there or _spread.UNKNOWN))
        else:
            parts += [ast.keyword(k, _entry(there, k)) for k in names if k not in left_out]
        for name, value, place in added:
            parts.append(ast.keyword(name, self._value(value, place) if name is not None else _spread.UNKNOWN))
        return _last_of_each(parts)


def _is_keyed(key: ast.expr) -> bool:
    return isinstance(key, ast.Subscript) and isinstance(key.slice, ast.Constant)


def _entry(table: ast.expr, key: str) -> ast.expr:
    """``table["key"]``, or what is written there."""
    if isinstance(table, ast.Dict) and None not in table.keys:
        found = [
            v for k, v in zip(table.keys, table.values, strict=True) if isinstance(k, ast.Constant) and k.value == key
        ]
        if found:
            return found[-1]
    return ast.copy_location(ast.Subscript(table, ast.Constant(key), ast.Load()), table)


def _last_of_each(parts: Sequence[ast.keyword]) -> list[ast.keyword]:
    found = {part.arg: part for part in parts if part.arg is not None}
    return [*found.values(), *(part for part in parts if part.arg is None)]


def _rest(function: Scope) -> str:
    taken = getattr(getattr(function.node, "args", None), "kwarg", None)
    return taken.arg if taken is not None else ""


def _copied(node: ast.Call) -> ast.expr | None:
    """``cfg`` of ``dict(cfg)``, ``copy.deepcopy(cfg)`` and ``cfg.copy()``."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in COPIES and len(node.args) == 1 and not node.keywords:
        return node.args[0]
    own = isinstance(node.func, ast.Attribute) and name == "copy" and not node.args
    return node.func.value if own and isinstance(node.func, ast.Attribute) else None


def is_copy(node: ast.expr, name: str) -> bool:
    whole = _copied(node) if isinstance(node, ast.Call) else None
    whole = node.values[0] if isinstance(node, ast.Dict) and node.keys == [None] else whole
    return isinstance(whole, ast.Name) and whole.id == name


def _filtered(node: ast.expr) -> tuple[set[object], ast.expr]:
    """``"type"`` and ``cfg`` of ``{k: v for k, v in cfg.items() if k != "type"}``."""
    head = node.generators[0] if isinstance(node, ast.DictComp) and len(node.generators) == 1 else None
    asked = head.iter.func if head is not None and isinstance(head.iter, ast.Call) else None
    plain = head is not None and isinstance(node, ast.DictComp) and isinstance(asked, ast.Attribute)
    if not plain or head is None or unparsed(head.target) != f"({unparsed(node.key)}, {unparsed(node.value)})":  # type: ignore[attr-defined]
        return set(), node
    words: set[object] = {n.value for test in head.ifs for n in walk(test) if isinstance(n, ast.Constant)}
    items = isinstance(asked, ast.Attribute) and asked.attr == "items"
    return words, asked.value if items and isinstance(asked, ast.Attribute) else node


@cache
def _edited(function: Scope) -> tuple[frozenset[object], Sequence[tuple[str | None, ast.expr, Use]]]:
    """The keys that a builder takes out of its settings, and what it puts into them; None for names not known."""
    taken, added = set[object](), list[tuple[str | None, ast.expr, Use]]()
    for call, use in function.calls:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        word = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
        if name == "pop" and word is not None:
            taken.add(word)
        elif name in ("update", "setdefault"):
            added.append(
                (
                    str(word) if word is not None and len(call.args) == 2 else None,
                    call.args[-1] if call.args else call,
                    use,
                )
            )
    for use in function.statements:
        target = use.statement.targets[0] if isinstance(use.statement, ast.Assign) else None
        if isinstance(use.statement, ast.Assign) and isinstance(target, ast.Subscript):
            key = target.slice.value if isinstance(target.slice, ast.Constant) else None
            added.append((str(key) if key is not None else None, use.statement.value, use))
    return frozenset(taken), added
