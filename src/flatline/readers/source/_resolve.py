"""A project: its files, and what is asked of the names, calls and objects in them. A question with no single answer has none."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flatline.readers.source import (
    _called,
    _constants,
    _given,
    _lineage,
    _names,
    _owners,
    _partials,
    _sites,
    _spread,
    _stands_for,
    _tables,
    _tensors,
    _values,
    _written,
)
from flatline.readers.source._calls import Calls, Site
from flatline.readers.source._files import Unparsable, parse, read
from flatline.readers.source._made import Made
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import Binding, Class, Module, Scope, Use, bindings_at
from flatline.readers.source._things import Thing
from flatline.readers.source._values import DEPTH, Source

ENTRIES = 60  # calls of entries of tables that are looked at


@dataclass(slots=True)
class Project:
    """All modules that were read so far, and what is known of names in them."""

    modules: dict[str, Module | None] = field(default_factory=dict)
    calls: Calls = field(default_factory=Calls)
    decorated: dict[str, list[Scope]] = field(default_factory=dict)  # functions by their decorators
    inheriting: dict[str, list[Class]] = field(default_factory=dict)  # classes by what they inherit from
    lambdas: bool = False  # whether there are any

    files: dict[tuple[str, str], str] = field(default_factory=dict)  # behind imports, by folder
    ends: dict[tuple[int, str], Source] = field(default_factory=dict)  # names at the end of a file
    options: dict[int, dict[str, list[tuple[ast.expr, Use]]]] = field(default_factory=dict)  # of the command line
    changed: dict[int, set[tuple[str, int]]] = field(default_factory=dict)  # what is written to by key, by module
    set_outside: dict[int, set[str]] = field(default_factory=dict)  # attributes that are set from outside, by module
    turns: dict[tuple[int, int], ast.Call] = field(default_factory=dict)  # calls in comprehensions, one by one
    turned: dict[int, Site] = field(default_factory=dict)  # the same, and calls of what partial() made
    rewritten: dict[tuple[int, int], ast.Call] = field(default_factory=dict)  # calls as they would be without partial()
    bound_at: dict[int, Use] = field(default_factory=dict)  # where partial() was called

    # what was concluded, and is forgotten when the next file is judged
    _names: dict[tuple[int, Use], str] = field(default_factory=dict)
    _things: dict[tuple[int, Use, tuple[int, ...]], tuple[Thing, ...]] = field(default_factory=dict)
    _callees: dict[tuple[int, Use], Scope | None] = field(default_factory=dict)
    _truths: dict[int, bool | None] = field(default_factory=dict)  # of conditions
    answered: dict[int, list[Site]] = field(default_factory=dict)  # calls of functions
    by_entry: dict[int, list[Site]] = field(default_factory=dict)  # calls of entries of tables, by function
    alive: list[ast.AST] = field(default_factory=list)  # what was put together, and is known by its identity
    seen: dict[int, object] = field(default_factory=dict)  # what _facts.py knows of a scope
    registries: dict[tuple[int, str], list[Any]] = field(default_factory=dict)  # what else was asked once

    def forget(self) -> None:
        """What was concluded so far: more calls of a function may be known by now."""
        for memory in (
            self._names,
            self._things,
            self._callees,
            self.seen,
            self.answered,
            self._truths,
            self.registries,
            self.by_entry,
            self.alive,
        ):
            memory.clear()

    def recalled(self, about: object, what: str, asked: Callable[[], list[Any]]) -> list[Any]:
        """What is asked about a thing once for each file that is judged; nothing while it is asked."""
        key = id(about), what
        if key not in self.registries:
            self.registries[key] = []
            self.registries[key] = asked()
        return self.registries[key]

    def load(self, path: str) -> Module | None:
        """A file of the project; None if it cannot be parsed."""
        path = os.path.normpath(path)
        if path not in self.modules:
            self.modules[path] = None
            try:
                text = read(path)
                self.add(Module(text, parse(text)), path)
            except (Unparsable, RecursionError):
                return None
        return self.modules[path]

    def add(self, module: Module, path: str) -> None:
        """A module that is parsed already."""
        self.modules[os.path.normpath(path)] = module
        self.lambdas = self.lambdas or module.lambdas
        for made in module.classes.values():
            for base in made.node.bases:
                self.inheriting.setdefault(unparsed(base).rpartition(".")[2], []).append(made)
        for below in module.functions.values():
            for head in getattr(below.node, "decorator_list", ()):
                name = unparsed(head.func if isinstance(head, ast.Call) else head)
                self.decorated.setdefault(name, []).append(below)
        self.calls.add(module)

    def look_into_tables(self) -> None:
        """Which functions the entries of tables are that are called; nothing is kept of what this concludes on the way."""
        memories: tuple[dict[Any, Any], ...] = (self._things, self._callees, self.answered, self._truths)
        self.by_entry, sizes, found = {}, [len(memory) for memory in memories], dict[int, list[Site]]()
        for name, call, use in _sites.of_entries(self) if len(self.calls.keyed) <= ENTRIES else ():
            found.setdefault(name, []).append((call, use))
        for memory, size in zip(memories, sizes, strict=True):
            while len(memory) > size:
                memory.popitem()
        self.by_entry = found

    # ----------------------------------------------------------------------- names

    def dotted(self, node: ast.expr, use: Use) -> str:
        """``F.cross_entropy`` -> ``torch.nn.functional.cross_entropy``; nothing if it does not begin with an import."""
        known = self._names.get((id(node), use))
        if known is None:
            known = self._names[id(node), use] = _names.dotted(node, use)
        return known

    def module_of(self, dotted: str, near: Module) -> Module | None:
        """The file of the project that an import names."""
        return _names.module_of(self, dotted, near)

    def elsewhere(self, dotted: str, use: Use) -> Source | None:
        """The name that an import stands for, where another file of the project binds it."""
        return _names.elsewhere(self, dotted, use)

    def name(self, name: str, use: Use, depth: int = 0) -> tuple[Thing, ...]:
        """All things that a name may stand for; nothing if one of them is unknown."""
        return _names.named(self, name, use, depth)

    def bindings_of(self, name: str, use: Use) -> list[Binding]:
        """What may have given a name its value, as far as conditions are known."""
        found = bindings_at(name, use)
        return _values.possible(self, found, use) if len(found) > 1 else found

    @staticmethod
    def is_local(node: ast.expr, use: Use) -> bool:
        """Whether the first name is bound by something else than an import."""
        return _names.is_local(node, use)

    def truth(self, node: ast.If, scope: Scope) -> bool | None:
        """What a condition always is; None where that is not known."""
        place = (
            next((use for use in scope.statements if use.statement is node), None)
            if id(node) not in self._truths
            else None
        )
        return self.once(node, lambda: _values.truth_of(self, node.test, place) if place is not None else None)

    def once(self, node: ast.AST, asked: Callable[[], bool | None]) -> bool | None:
        """What is asked about a place of the source, and is asked once; None while it is asked."""
        if id(node) not in self._truths:
            self._truths[id(node)] = None
            self._truths[id(node)] = asked()
        return self._truths[id(node)]

    # ----------------------------------------------------------------------- objects

    def things(self, node: ast.expr | None, use: Use, depth: int = 0, index: tuple[int, ...] = ()) -> tuple[Thing, ...]:
        """All things that an expression may stand for; nothing if one of them is unknown."""
        if node is None or depth > DEPTH:
            return ()
        key = (id(node), use, index)
        if key not in self._things:
            self._things[key] = ()  # of itself nothing can be made
            self._things[key] = _stands_for.stands_for(self, node, use, depth, index)
        return self._things[key]

    def things_of(self, sources: Sequence[Source], depth: int) -> tuple[Thing, ...]:
        """The things that all of these expressions stand for."""
        return _stands_for.things_of(self, sources, depth)

    def came_by(self, thing: Thing) -> Site | None:
        """The call of the function that made a thing, where the function is called more than once."""
        return _stands_for.came_by(self, thing)

    def holding(self, node: ast.expr, use: Use, depth: int) -> list[Binding]:
        """The bindings of a name, or of an attribute of self."""
        return _stands_for.holding(self, node, use, depth)

    def made(self, node: ast.expr | None, use: Use, depth: int = 0, index: tuple[int, ...] = ()) -> tuple[Made, ...]:
        """The operations that may have made a tensor; nothing if one of them is unknown."""
        return _tensors.made(self, node, use, depth, index)

    # ----------------------------------------------------------------------- classes

    def class_behind(self, node: ast.expr, use: Use, depth: int) -> Class | None:
        """The one class of what an expression stands for, some steps behind a question."""
        return _owners.class_behind(self, node, use, depth)

    def class_of(self, node: ast.expr, use: Use) -> Class | None:
        """The one class of the project that an object is made of."""
        return _owners.class_behind(self, node, use, DEPTH - 8)

    def wrapper(self, function: Scope) -> tuple[Scope, str] | None:
        """What the decorator of the project puts around a function, and how that calls it."""
        return _owners.wrapper(self, function)

    def bases(self, owner: Class, depth: int = 0) -> Iterator[Class]:
        """The class and those of the project that it inherits from."""
        return _lineage.bases(self, owner, depth)

    def attributes(self, owner: Class, name: str) -> list[Binding]:
        """The assignments to an attribute of self; of a mixin, those of the classes that it is mixed into."""
        return _lineage.attributes(self, owner, name)

    def heirs(self, owner: Class, depth: int = 0) -> Iterator[Class]:
        """The classes of the project that inherit from one."""
        return _lineage.heirs(self, owner, depth)

    def method(self, owner: Class, name: str) -> Scope | None:
        """The method, perhaps inherited."""
        return _lineage.method(self, owner, name)

    # ----------------------------------------------------------------------- calls

    def calls_of(self, function: Scope) -> list[Site]:
        """All calls of a function that are known."""
        return _sites.calls_of(self, function)

    def sites_of(self, function: Scope) -> list[Site]:
        """All calls of a function; of a forward, those of its module, too."""
        return _sites.sites_of(self, function)

    def callee(self, node: ast.Call, use: Use, depth: int = 0) -> Scope | None:
        """The one function or method of the project that a call runs; of a module, its forward."""
        key = (id(node), use)
        if key not in self._callees:
            self._callees[key] = None
            self._callees[key] = _called.called_function(self, node, use, depth)
        return self._callees[key]

    def returns(self, function: Scope) -> list[tuple[ast.expr | None, Use]]:
        """What a function may give back, and where."""
        return _values.returns(self, function)

    def merged(self, given: ast.Call, node: ast.Call | None, use: Use) -> Site:
        """The same, as one of the calls of a function."""
        return _partials.merged(self, given, node, use)

    def given(self, name: str, use: Use) -> list[tuple[ast.expr, Use]]:
        """What the calls of a function give for a parameter, or leave it at; nothing if one of them is unknown."""
        return _given.given(self, name, use)

    # ----------------------------------------------------------------------- values

    def number(self, node: ast.expr | None, use: Use, depth: int = 0) -> float | None:
        """A number that is written out, here or where a name got it; the default of an option of the command line."""
        found = self.constant(node, use, depth)
        return float(found.value) if found is not None and isinstance(found.value, (int, float)) else None

    def constant(self, node: ast.expr | None, use: Use, depth: int = 0, *, strict: bool = False) -> ast.Constant | None:
        """What is written out, here or where a name got it; strictly, if it is never counted up, or set elsewhere."""
        return _constants.constant(self, node, use, depth, strict=strict)

    def defaults(self, name: str, module: Module) -> list[tuple[ast.expr, Use]]:
        """``default`` of ``add_argument("--name", ...)``."""
        return _constants.defaults(self, name, module)

    def written_to(self, node: ast.expr, use: Use) -> bool:
        """Whether ``name[...] = ...`` or ``name.update(...)`` is anywhere in the file."""
        return _written.written_to(self, node, use)

    def written_below(self, node: ast.expr, key: ast.Constant | None, use: Use) -> bool:
        """Whether ``name["head"]["width"] = ...`` is anywhere in the file."""
        return _written.written_below(self, node, key, use)

    def names_in(self, node: ast.expr, use: Use) -> dict[str, ast.expr] | None:
        """The names in a table that is written out; None if there may be others."""
        return _spread.spread(self, node, use)

    def set_from_outside(self, name: str, module: Module) -> bool:
        """Whether ``something.name = ...`` is anywhere in the file, but for a method's own object."""
        return _written.set_from_outside(self, name, module)

    def put(self, node: ast.expr, key: ast.Constant | None, use: Use) -> Sequence[Source]:
        """What was put into a table under a key."""
        return _tables.put(self, node, key, use)
