"""What a name stands for, and what a tensor was made by. A question with no single answer has none."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from flatline.readers.source import (
    _builders,
    _by_word,
    _forwarded,
    _handlers,
    _hooks,
    _kept_objects,
    _listed,
    _managed,
    _object_lists,
    _objects,
    _partials,
    _registered,
    _registries,
    _spread,
    _submodules,
    _tables,
    _tensors,
    _values,
)
from flatline.readers.source._files import Unparsable, parse, read
from flatline.readers.source._for_keys import for_key
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import LAMBDA, SAME, Binding, Class, Module, Scope, Use, spelled
from flatline.readers.source._tensors import UNBOUNDED, Made
from flatline.readers.source._values import DEPTH, SHORT, Source

ABOVE = 6  # folders in which an import is looked for
SITES = 12  # calls of a method name that are looked at
ENTRIES = 60  # calls of entries of tables that are looked at
WRAPPERS = re.compile(
    r"torch\.(nn\.(DataParallel|parallel\.(DataParallel|DistributedDataParallel)|SyncBatchNorm\.convert_sync_batchnorm)"
    r"|compile|jit\.script|distributed\.fsdp\.FullyShardedDataParallel)|copy\.deepcopy"
)


@dataclass(frozen=True, slots=True)
class Thing:
    """A class, a function, or an object that one call made."""

    name: str  # the dotted name of its class or function
    use: Use
    call: ast.Call | None = None  # that made it; None for the class or function itself
    made_of: Class | None = None
    function: Scope | None = None
    via: tuple[int, ...] = ()  # calls of functions that returned it: each call makes another one
    given: ast.Call | None = None  # the partial() that gave some of its arguments

    def identity(self) -> str:
        """Equal for one object."""
        return f"{self.use.scope.module.text.path}:{id(self.call)}:{self.via}" if self.call else self.name

    @property
    def is_optimizer(self) -> bool:
        """One of torch's, built."""
        return self.call is not None and builds_optimizer(self.name)


@dataclass(slots=True)
class Project:
    """All modules that were read so far, and what is known of names in them."""

    modules: dict[str, Module | None] = field(default_factory=dict)
    sites: dict[int, list[tuple[ast.Call, Use]]] = field(default_factory=dict)
    _turns: dict[tuple[int, int], ast.Call] = field(default_factory=dict)  # calls in comprehensions, one by one
    turned: dict[int, tuple[ast.Call, Use]] = field(default_factory=dict)
    _plain: list[tuple[ast.Call, Use]] = field(default_factory=list)  # calls of objects, by a name
    _by_name: dict[str, list[tuple[ast.Call, Use]]] = field(default_factory=dict)  # the same
    _keyed: list[tuple[ast.Call, Use]] = field(default_factory=list)  # calls of entries of tables
    _by_entry: dict[int, list[tuple[ast.Call, Use]]] = field(default_factory=dict)  # the same, by function
    _outside: dict[str, list[tuple[ast.Call, Use]]] = field(default_factory=dict)  # calls of imported names
    _names: dict[tuple[int, Use], str] = field(default_factory=dict)
    _things: dict[tuple[int, Use, tuple[int, ...]], tuple[Thing, ...]] = field(default_factory=dict)
    _callees: dict[tuple[int, Use], Scope | None] = field(default_factory=dict)
    _files: dict[tuple[str, str], str] = field(default_factory=dict)
    _options: dict[int, dict[str, list[tuple[ast.expr, Use]]]] = field(
        default_factory=dict
    )  # of the command line, by module
    seen: dict[int, object] = field(default_factory=dict)  # what _facts.py knows of a scope
    _changed: dict[int, set[tuple[str, int]]] = field(default_factory=dict)  # what is written to by key, by module
    _asked: dict[str, list[tuple[ast.Call, Use]]] = field(default_factory=dict)  # calls of methods, by name
    _sites_of: dict[int, list[tuple[ast.Call, Use]]] = field(default_factory=dict)
    _truths: dict[int, bool | None] = field(default_factory=dict)  # of conditions
    _set: dict[int, set[str]] = field(default_factory=dict)  # attributes that are set from outside, by module
    _merged: dict[tuple[int, int], ast.Call] = field(default_factory=dict)  # calls of what partial() made

    built: dict[tuple[int, int], tuple[ast.Call, tuple[Thing, ...]]] = field(default_factory=dict)  # by builders
    keyed: dict[tuple[int, object], tuple[ast.expr, ast.expr | None]] = field(
        default_factory=dict
    )  # parts of comprehensions
    bound_at: dict[int, Use] = field(default_factory=dict)  # where partial() was called
    alive: list[ast.AST] = field(default_factory=list)  # what was put together, and is known by its identity
    builders: list[Scope] = field(default_factory=list)  # functions that look up what they make

    registries: dict[tuple[int, str], list[Any]] = field(default_factory=dict)  # filled by decorators
    lambdas: bool = False  # whether there are any
    _elsewhere: dict[tuple[int, str], Source] = field(default_factory=dict)  # names at the end of a file
    _partials: dict[str, list[tuple[ast.Call, Use]]] = field(default_factory=dict)  # calls of partial(), by function
    _decorated: dict[str, list[Scope]] = field(default_factory=dict)  # functions by their decorators
    _heirs: dict[str, list[Class]] = field(default_factory=dict)  # classes by what they inherit from

    def forget(self) -> None:
        """What was concluded so far: more calls of a function may be known by now."""
        for memory in (
            self._names,
            self._things,
            self._callees,
            self.seen,
            self._sites_of,
            self._truths,
            self.registries,
            self._by_entry,
            self.built,
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
        for name, pair in _partials.made_in(module):
            self._partials.setdefault(name, []).append(pair)
        for made in module.classes.values():
            for base in made.node.bases:
                self._heirs.setdefault(unparsed(base).rpartition(".")[2], []).append(made)
        for below in module.functions.values():
            for head in getattr(below.node, "decorator_list", ()):
                name = unparsed(head.func if isinstance(head, ast.Call) else head)
                self._decorated.setdefault(name, []).append(below)
        self.builders += _builders.builders_in(module)
        for scope in module.scopes:
            for call, use in scope.calls:
                self._sort(call, use)

    def _sort(self, call: ast.Call, use: Use) -> None:
        """A call, to where the calls of a function are looked for."""
        function = self._callee(call, use)
        if function is not None:
            self.sites.setdefault(id(function.node), []).append((call, use))
        elif name := _last_imported(call, use):
            self._outside.setdefault(name, []).append((call, use))
        elif isinstance(call.func, ast.Attribute):
            self._asked.setdefault(call.func.attr, []).append((call, use))
        elif isinstance(call.func, ast.Name) and _is_bound(call.func.id, use.scope):
            self._plain.append((call, use))
            self._by_name.setdefault(call.func.id, []).append((call, use))
            if _listed.asked_for(call.func, use) is not call.func:
                self._asked.setdefault("getattr", []).append((call, use))
        elif _tables.is_entry(call.func, use.scope.module):
            self._keyed.append((call, use))
        elif isinstance(call.func, ast.Call) and spelled(call.func.func) == "getattr" and call.func.args:
            self._asked.setdefault("getattr", []).append((call, use))

    def look_into_tables(self, reached: Collection[Module] = ()) -> None:
        """Which functions the entries of tables are that are called, and the calls that builders make."""
        self._by_entry = {}
        keyed = self._tried(self._of_entries) if len(self._keyed) <= ENTRIES else {}
        self._by_entry, near = keyed, [each for each in self.builders if each.module in reached]
        for _ in range(_builders.ROUNDS if near else 0):
            made = self._tried(partial(_builders.sites, self, near))
            self._by_entry = {n: [*keyed.get(n, ()), *made.get(n, ())] for n in {**keyed, **made}}

    def _tried(self, asked: Callable[[], Iterator[tuple[int, ast.Call, Use]]]) -> dict[int, list[tuple[ast.Call, Use]]]:
        """Calls by their functions; nothing is kept of what this concludes on the way."""
        memories: tuple[dict[Any, Any], ...] = (
            self._things, self._callees, self._sites_of, self._truths, self.built,
        )  # fmt: skip
        sizes, found = [len(memory) for memory in memories], dict[int, list[tuple[ast.Call, Use]]]()
        for name, call, use in asked():
            found.setdefault(name, []).append((call, use))
        for memory, size in zip(memories, sizes, strict=True):
            while len(memory) > size:
                memory.popitem()
        return found

    def _of_entries(self) -> Iterator[tuple[int, ast.Call, Use]]:
        for call, use in self._keyed:
            for thing in self.things(call.func, use):
                function = self.method(thing.made_of, "__init__") if thing.made_of is not None else thing.function
                if thing.call is None and function is not None:
                    yield id(function.node), call, use

    def calls_of(self, function: Scope) -> list[tuple[ast.Call, Use]]:
        """All calls of a function that are known."""
        node = function.node
        if isinstance(node, ast.Module):
            return []
        if id(node) not in self._sites_of:
            name = function.owner.node.name if function.owner and node.name == "__init__" else node.name
            outside = [pair for pair in self._outside.get(name, ()) if self._reaches(*pair, function)]
            found = self._sites_of[id(node)] = self.sites.get(id(node), []) + outside
            if node.name == "__init__" and function.owner is not None:
                found += [pair for pair in _forwarded.made_below(self, function) if pair not in found]
                found += [pair for pair in _forwarded.from_below(self, function) if pair not in found]
            mine = self._partials.get(name, [])
            found += [*_partials.calls(self, function, mine, self._asked_partly(mine))] if mine else []
            found += _handlers.handed(self, function) if not found else []
            found += [pair for pair in self._by_entry.get(id(node), ()) if pair not in found]
            found += _hooks.sites(self, function) if not found else []
            found += self._by_its_name(function) if name == LAMBDA and not found else []
            asked = self._asked.get(name, []) if function.owner is not None and not name.startswith("__") else []
            if name == "__call__" and function.owner is not None:
                known = [pair for pair in self._plain if _knows(pair[1].scope.module, function)]
                found += [pair for pair in known if self.callee(*pair) is function or self._is_each(*pair, function)]
            if not asked and function.owner is not None and not node.name.startswith("__"):
                asked = [pair for pair in self._asked.get("getattr", ()) if _listed.may_name(*pair, node.name)]
            near = [p for p in asked if _knows(p[1].scope.module, function) or _listed.calls(self, *p, function)]
            near = near or (self._far(asked, function) if not found else [])
            found += [pair for pair in near if self._may_reach(*pair, function)] if len(near) <= SITES else []
            found += [pair for pair in self._of_abstract(function) if pair not in found]
        return self._sites_of[id(node)]

    def _far(self, asked: list[tuple[ast.Call, Use]], function: Scope) -> list[tuple[ast.Call, Use]]:
        """Calls in files that are handed the object and import nothing of its class, where one is certain to reach it."""
        certain = len(asked) <= SITES and any(self.callee(*pair) is function for pair in asked)
        return asked if certain else []

    def _of_abstract(self, function: Scope) -> Iterator[tuple[ast.Call, Use]]:
        """The calls of the method of a class above that this one alone fills in."""
        name = getattr(function.node, "name", "")
        above = self.bases(function.owner) if function.owner is not None and function.owner.node.bases else ()
        for owner in above if not name.startswith("__") else ():
            method = owner.methods.get(name)
            if method is not None and method is not function and self._filled_in(owner, method) is function:
                yield from self.calls_of(method)

    def _by_its_name(self, function: Scope) -> list[tuple[ast.Call, Use]]:
        """The calls of a lambda that was given a name."""
        outer = function.parent.bindings.items() if function.parent is not None else ()
        bound = {n for n, each in outer if any(b.value is not None and _is_at(b.value, function.node) for b in each)}
        return [pair for name in bound for pair in self._by_name.get(name, ()) if self.callee(*pair) is function]

    def _asked_partly(self, mine: list[tuple[ast.Call, Use]]) -> list[tuple[ast.Call, Use]]:
        """The calls of names that partial() made of a function."""
        named = {_partials.name_of(*pair) for pair in mine} - {""}
        plain = [(c, u) for c, u in self._plain if isinstance(c.func, ast.Name) and c.func.id in named]
        return plain + [pair for name in named for pair in self._asked.get(name, ())]

    def sites_of(self, function: Scope) -> list[tuple[ast.Call, Use]]:
        """All calls of a function; of a forward, those of its module, too."""
        found = self.calls_of(function)
        return found + [pair for pair in self._forwarded(function) if pair not in found]

    def _forwarded(self, function: Scope) -> list[tuple[ast.Call, Use]]:
        """``criterion(scores, labels)``, calls of modules that a forward answers."""
        if function.owner is None or getattr(function.node, "name", "") not in ("forward", "__call__"):
            return []
        known = [pair for pair in self._plain if _knows(pair[1].scope.module, function) and _fits(pair[0], function)]
        found = [pair for pair in known[:SITES] if self.callee(*pair) is function] or _submodules.calls(self, function)
        return found or _registered.calls(self, function) or _kept_objects.calls(self, function)

    def objects_called(self) -> list[tuple[ast.Call, Use]]:
        """The calls of objects by a name."""
        return self._plain

    def calls_by(self, name: str) -> list[tuple[ast.Call, Use]]:
        """The calls of classes and objects by a name, and of what other modules have under it."""
        return self._by_name.get(name, []) + self._outside.get(name, [])

    def list_of(self, owner: Class, name: str, depth: int) -> Sequence[Source] | None:
        """The objects in a list that an object of a class keeps; None where one of them is not known."""
        return _object_lists.held_by(self, owner, name, depth)

    def asked_of(self, name: str) -> list[tuple[ast.Call, Use]]:
        """The calls of a method of objects that are not known by their names."""
        return self._asked.get(name, [])

    def asked(self, name: str, module: Module) -> list[tuple[ast.Call, Use]]:
        """The calls of a method, or of a module that is an attribute, in a file."""
        return [pair for pair in self._asked.get(name, ()) if pair[1].scope.module is module]

    def _is_each(self, call: ast.Call, use: Use, function: Scope) -> bool:
        """``hook(self)`` in a loop over objects, of which one is of this class."""
        each = _objects.in_turn(self, call.func.id, use) if isinstance(call.func, ast.Name) else ()
        return any(t.made_of is function.owner for s in each for t in self.things(s.node, s.use) if t.call)

    def _may_reach(self, call: ast.Call, use: Use, function: Scope) -> bool:
        """A call of a method of an object whose class is this one, or is not known."""
        func, name = _listed.asked_for(call.func, use), getattr(function.node, "name", "")
        receiver = func.value if isinstance(func, ast.Attribute) else func.args[0]  # type: ignore[attr-defined]
        if isinstance(receiver, ast.Name) and use.scope.owner and use.scope.own == (receiver.id,):
            return self.method(use.scope.owner, name) is function
        things = self.things(receiver, use, DEPTH - 6)
        return _fits(call, function) and (
            not things or any(t.made_of is not None and self.method(t.made_of, name) is function for t in things)
        )

    def _reaches(self, call: ast.Call, use: Use, function: Scope) -> bool:
        things = self.things(call.func, use, DEPTH - 6)
        found = any(t.function is function or (t.made_of and t.made_of is function.owner) for t in things)
        of_object = function.owner is not None and isinstance(call.func, ast.Attribute)
        return found or (of_object and self.callee(call, use) is function)

    def _callee(self, call: ast.Call, use: Use) -> Scope | None:
        """The function of this module that a call is certain to reach by its name alone."""
        func = call.func
        if isinstance(func, ast.Name):
            found = [b for b in _bindings(func.id, use) if b.definition is not None]
            if len(found) == 1:
                definition = found[0].definition
                made = use.scope.module.classes.get(id(definition))
                if made is not None:
                    return made.methods.get("__init__") or _values.inherited(made, "__init__")
                return use.scope.module.functions.get(id(definition))
        if isinstance(func, ast.Attribute) and _values.is_super(func.value):
            return _values.inherited(use.scope.owner, func.attr)
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and use.scope.owner:
            if use.scope.own == (func.value.id,):
                return use.scope.owner.methods.get(func.attr) or _values.inherited(use.scope.owner, func.attr)
        return None

    # ----------------------------------------------------------------------- names

    def dotted(self, node: ast.expr, use: Use) -> str:
        """``F.cross_entropy`` -> ``torch.nn.functional.cross_entropy``; nothing if it does not begin with an import."""
        known = self._names.get((id(node), use))
        if known is None:
            known = self._names[id(node), use] = self._dotted(node, use)
        return known

    def _dotted(self, node: ast.expr, use: Use) -> str:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        found = _bindings(node.id, use)
        names = {binding.imported for binding in found}
        if len(names) != 1 or not (name := names.pop()):
            return ""
        return _plain(".".join([name, *parts[::-1]]))

    def module_of(self, dotted: str, near: Module) -> Module | None:
        """The file of the project that an import names."""
        folder = os.path.dirname(near.text.path)
        if (dotted, folder) not in self._files:
            beside = os.path.join(folder, *dotted.lstrip(".").split(".")) + ".py"
            self._files[dotted, folder] = beside if beside in self.modules else _file_of(dotted, folder)
        path = self._files[dotted, folder]
        return self.load(path) if path else None

    def _imported(self, dotted: str, use: Use, depth: int) -> tuple[Thing, ...]:
        """What an import of the project names, or the dotted name itself."""
        if dotted.startswith("torch."):
            return (Thing(_plain(dotted), use),)
        head, _, last = dotted.rpartition(".")
        module = self.module_of(head, use.scope.module) if head.strip(".") or head else None
        if module is None and head and set(head) == {"."}:
            module = self.module_of(dotted, use.scope.module)
        if module is None or depth > DEPTH:
            return (Thing(_plain(dotted), use),)
        end = Use(module.top, len(module.top.statements), (), module.tree.body[-1]) if module.tree.body else use
        return self.name(last, end, depth + 1) or ()

    def elsewhere(self, dotted: str, use: Use) -> Source | None:
        """The name that an import stands for, where another file of the project binds it."""
        head, _, last = dotted.rpartition(".")
        module = self.module_of(head, use.scope.module) if head and not dotted.startswith("torch.") else None
        if module is None or not module.tree.body or last not in module.top.bindings:
            return None
        if (id(module), last) not in self._elsewhere:
            end = Use(module.top, len(module.top.statements), (), module.tree.body[-1])
            self._elsewhere[id(module), last] = Source(ast.Name(last, ast.Load()), end)
        return self._elsewhere[id(module), last]

    def name(self, name: str, use: Use, depth: int = 0) -> tuple[Thing, ...]:
        """All things that a name may stand for; nothing if one of them is unknown."""
        if name in use.scope.masked.get(id(use.statement), ()):
            return ()
        found = self.bindings_of(name, use)
        return self._all(name, found, depth) if found else self._starred(name, use, depth)

    def bindings_of(self, name: str, use: Use) -> list[Binding]:
        """What may have given a name its value, as far as conditions are known."""
        found = _bindings(name, use)
        return _values.possible(self, found, use) if len(found) > 1 else found

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

    def returns(self, function: Scope) -> list[tuple[ast.expr | None, Use]]:
        """What a function may give back, and where."""
        return _values.returns(self, function)

    def _all(self, name: str, bindings: list[Binding], depth: int) -> tuple[Thing, ...]:
        things: dict[tuple[str, str], Thing] = {}
        for binding in bindings:
            if binding.value is not None and _values.is_none(binding.value):
                continue
            found = self._parameter(name, binding.use, depth) if binding.parameter else self._bound(binding, depth + 1)
            if not found:
                return ()
            things |= {(thing.name, thing.identity()): thing for thing in found}
        return tuple(things.values())

    def given(self, name: str, use: Use) -> list[tuple[ast.expr, Use]]:
        """What the calls of a function give for a parameter, or leave it at; nothing if one of them is unknown."""
        found: list[tuple[ast.expr, Use]] = []
        usual = default(use.scope, name)
        for call, site in self.sites_of(use.scope):
            value = argument(call, use.scope, name)
            if value is not None:
                found.append((value, site))
            elif _is_spread(call):
                inner = _forwarded.handed_on(self, call, site, use.scope, name)
                inner = self._from_table(call, site, name) if inner is None else inner
                if not inner and (inner is None or usual is None):
                    return []
                found += inner or [(each, use) for each in (usual,) if each is not None]
            elif usual is None:
                return []
            else:
                found.append((usual, use))
        return found

    def _from_table(self, call: ast.Call, site: Use, name: str) -> list[tuple[ast.expr, Use]] | None:
        """What ``**options`` of a call give for a parameter: nothing where they do not have it, None if that is not known."""
        tables = [k.value for k in call.keywords if k.arg is None]
        if len(tables) != 1 or any(isinstance(each, ast.Starred) for each in call.args):
            return None
        if found := _values.held(self, tables[0], ast.Constant(name), site, 0):
            return [(each.node, each.use) for each in found]
        names = _spread.spread(self, tables[0], site)
        return [] if names is not None and name not in names else None

    def _bound(self, binding: Binding, depth: int) -> tuple[Thing, ...]:
        use = binding.use
        if binding.definition is not None:
            module = use.scope.module
            made, function = module.classes.get(id(binding.definition)), module.functions.get(id(binding.definition))
            name = getattr(binding.definition, "name", "")
            return (Thing(f"{module.text.path}:{name}", use, made_of=made, function=function),)
        if binding.imported:
            return self._imported(binding.imported, use, depth)
        if binding.value is None:
            return self.things_of(_managed.entered(self, binding), depth)
        return self.things(binding.value, use, depth, binding.index)

    def _parameter(self, name: str, use: Use, depth: int) -> tuple[Thing, ...]:
        """What every call of the function in the project gives for a parameter."""
        things: dict[tuple[str, str], Thing] = {}
        if use.scope.owner is not None and use.scope.marked("classmethod") and use.scope.params[0] == name:
            owner = use.scope.owner
            return (Thing(f"{owner.module.text.path}:{owner.node.name}", owner.use, made_of=owner),)
        usual = default(use.scope, name)
        for call, site in self.sites_of(use.scope) if depth < DEPTH else ():
            given = argument(call, use.scope, name)
            if isinstance(given, ast.Name) and given.id == name and site.scope is use.scope:
                continue  # it hands on its own
            left = given is None and not _is_spread(call)
            value, place = (usual, use) if left else (given, site)
            if value is not None and _values.is_none(value):
                continue
            found = (
                self.things(value, place, depth + 1) if value is not None else self._spread(call, site, use.scope, name)
            )
            if not found:
                return ()
            things |= {(thing.name, thing.identity()): thing for thing in found}
        return tuple(things.values())

    def _spread(self, call: ast.Call, site: Use, function: Scope, name: str) -> tuple[Thing, ...]:
        """What ``fit(model, *loaders, epochs)`` gives for a parameter, where a function returned the loaders."""
        if (handed := _forwarded.handed_on(self, call, site, function, name)) is not None:
            return self.things_of([Source(*pair) for pair in handed if not _values.is_none(pair[0])], DEPTH - 8)
        starred = [place for place, given in enumerate(call.args) if isinstance(given, ast.Starred)]
        tables = [k.value for k in call.keywords if k.arg is None]
        if len(tables) == 1 and not starred:
            return self.things_of(_values.held(self, tables[0], ast.Constant(name), site, 0), DEPTH - 8)
        if len(starred) != 1 or tables:
            return ()
        value, use = call.args[starred[0]].value, site  # type: ignore[attr-defined]
        if isinstance(value, ast.Name):
            found = _bindings(value.id, site)
            binding = found[0] if len(found) == 1 and not found[0].index else None
            value, use = (binding.value, binding.use) if binding is not None else (None, site)
        made = self.callee(value, use) if isinstance(value, ast.Call) else None
        returns = [value for value, _ in made.returns] if made else []
        size = len(returns[0].elts) if len(returns) == 1 and isinstance(returns[0], ast.Tuple) else 0
        place = function.params.index(name) - (function.owner is not None) - starred[0]
        if size and 0 <= place < size:
            return self.things(value, use, DEPTH - 8, (place,))
        later = starred[0] + place - size + 1
        return (
            self.things(call.args[later], site, DEPTH - 8) if size and size <= place and later < len(call.args) else ()
        )

    def _starred(self, name: str, use: Use, depth: int) -> tuple[Thing, ...]:
        for star in use.scope.module.stars:
            module = self.module_of(star, use.scope.module) if depth < DEPTH else None
            if module is not None and module.tree.body:
                end = Use(module.top, len(module.top.statements), (), module.tree.body[-1])
                if found := self.name(name, end, depth + 1):
                    return found
        return ()

    # ----------------------------------------------------------------------- objects

    def things(self, node: ast.expr | None, use: Use, depth: int = 0, index: tuple[int, ...] = ()) -> tuple[Thing, ...]:
        """All things that an expression may stand for; nothing if one of them is unknown."""
        if node is None or depth > DEPTH:
            return ()
        key = (id(node), use, index)
        if key not in self._things:
            self._things[key] = ()  # of itself nothing can be made
            self._things[key] = self._found(node, use, depth, index)
        return self._things[key]

    def _found(self, node: ast.expr, use: Use, depth: int, index: tuple[int, ...]) -> tuple[Thing, ...]:
        if isinstance(node, ast.Name):
            return self.name(node.id, use, depth) if not index else ()
        if isinstance(node, ast.Attribute):
            return self._attribute(node, use, depth) if not index else ()
        if isinstance(node, ast.IfExp):
            parts = [part for part in _values.chosen(self, node, use) if not _values.is_none(part)]
            both = [self.things(part, use, depth + 1, index) for part in parts]
            return tuple(thing for each in both for thing in each) if all(both) else ()
        if isinstance(node, ast.Tuple) and index and index[0] < len(node.elts):
            return self.things(node.elts[index[0]], use, depth + 1, index[1:])
        if isinstance(node, (ast.GeneratorExp, ast.ListComp)) and index:
            part = self._turn(node, index[0], use)
            return self.things(part, use, depth + 1, index[1:]) if part is not None else ()
        if isinstance(node, ast.Call):
            return self._called(node, use, depth, index)
        if isinstance(node, ast.Lambda) and not index:
            module = use.scope.module
            place = f"{module.text.path}:{node.lineno}:{node.col_offset}:{LAMBDA}"
            return (Thing(place, use, function=module.of_lambda(node, use)),)
        if isinstance(node, ast.Subscript) and not index and isinstance(node.slice, ast.Constant):
            if found := self._entry(node.value, node.slice.value, use, depth + 1):
                return found
        return self.things_of(_values.sources(self, node, use, depth), depth) if not index else ()

    def _turn(self, node: ast.GeneratorExp | ast.ListComp, place: int, use: Use) -> ast.Call | None:
        """``loader("val")``, the second of ``(loader(s) for s in ("train", "val"))``."""
        (head, *more), call = node.generators, node.elt
        listed = head.iter.elts if isinstance(head.iter, (ast.Tuple, ast.List)) else []
        constant = place < len(listed) and isinstance(listed[place], ast.Constant)
        if more or head.ifs or not constant or not isinstance(call, ast.Call) or not isinstance(head.target, ast.Name):
            return None
        key = id(call), place
        if key not in self._turns:
            name, value = head.target.id, listed[place]
            args = [value if isinstance(a, ast.Name) and a.id == name else a for a in call.args]
            made = self._turns[key] = ast.copy_location(ast.Call(call.func, args, call.keywords), call)
            self.turned[id(made)] = made, use
        return self._turns[key]

    def came_by(self, thing: Thing) -> tuple[ast.Call, Use] | None:
        """The call of the function that made a thing, where the function is called more than once."""
        sites = {id(call): (call, use) for call, use in self.calls_of(thing.use.scope)}
        return next((known for place in thing.via if (known := sites.get(place) or self.turned.get(place))), None)

    def things_of(self, sources: Sequence[Source], depth: int) -> tuple[Thing, ...]:
        """The things that all of these expressions stand for."""
        found: list[Thing] = []
        for each in sources:
            inner = self.things(each.node, each.use, depth + 1)
            if not inner:
                return ()
            found += [replace(t, via=(*each.via, *t.via)) if each.via and t.call is not None else t for t in inner]
        return tuple({(t.name, t.identity()): t for t in found}.values())

    def _entry(self, node: ast.expr, key: object, use: Use, depth: int) -> tuple[Thing, ...]:
        """What a dictionary holds that is written out, and not written to."""
        if depth > DEPTH or not isinstance(key, str):
            return ()
        if isinstance(node, ast.Dict):
            found = [
                v for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant) and k.value == key
            ]
            return self.things(found[0], use, depth + 1) if len(found) == 1 and None not in node.keys else ()
        if isinstance(node, ast.DictComp) and (value := for_key(self, node, ast.Constant(key))) is not None:
            return self.things(value, use, depth + 1)
        if isinstance(node, ast.DictComp):
            return tuple(
                replace(thing, via=(hash(key), *thing.via))
                for thing in self.things(node.value, use, depth + 1)
                if thing.call
            )
        if isinstance(node, ast.Call):
            default = self.dotted(node.func, use) == "collections.defaultdict" and len(node.args) == 1
            found_classes = self.things(node.args[0], use, depth + 1) if default else ()
            return tuple(Thing(t.name, use, node, t.made_of, via=(hash(key),)) for t in found_classes if t.made_of)
        bindings = self.holding(node, use, depth)
        each = [self._entry(b.value, key, b.use, depth + 1) for b in bindings if b.value is not None and not b.index]
        if not each or len(each) != len(bindings) or not all(each) or self.written_to(node, use):
            return ()
        return tuple({(t.name, t.identity()): t for things in each for t in things}.values())

    def holding(self, node: ast.expr, use: Use, depth: int) -> list[Binding]:
        """The bindings of a name, or of an attribute of self."""
        if isinstance(node, ast.Name):
            return self.bindings_of(node.id, use)
        owner = self.class_behind(node.value, use, depth) if isinstance(node, ast.Attribute) else None
        return self.attributes(owner, node.attr) if owner is not None and isinstance(node, ast.Attribute) else []

    def written_to(self, node: ast.expr, use: Use) -> bool:
        """Whether ``name[...] = ...`` or ``name.update(...)`` is anywhere in the file."""
        module = use.scope.module
        if id(module) not in self._changed:
            self._changed[id(module)] = set(_changed(module))
        scope: Scope | None = use.scope
        while scope is not None and isinstance(node, ast.Name) and node.id not in scope.bindings:
            scope = scope.parent
        text, changed = unparsed(node), self._changed[id(module)]
        return (text, 0) in changed or (text, id(scope)) in changed

    def written_below(self, node: ast.expr, key: ast.Constant | None, use: Use) -> bool:
        """Whether ``name["head"]["width"] = ...`` is anywhere in the file."""
        self.written_to(node, use)
        part = f"{unparsed(node)}[{repr(key.value) + ']' if key is not None else ''}"
        return any(text.startswith(part) for text, _ in self._changed[id(use.scope.module)])

    def put(self, node: ast.expr, key: ast.Constant | None, use: Use) -> Sequence[Source]:
        """What was put into a table under a key."""
        return _tables.put(self, node, key, use)

    def _attribute(self, node: ast.Attribute, use: Use, depth: int) -> tuple[Thing, ...]:
        if (dotted := self.dotted(node, use)) and not self.is_local(node, use):
            return self._imported(dotted, use, depth)
        if node.attr == "module":
            return self.things(node.value, use, depth + 1)
        owner = self.class_behind(node.value, use, depth)
        found = self._all(node.attr, self.attributes(owner, node.attr), depth) if owner else ()
        return found or self.things_of(_values.sources(self, node, use, depth), depth)

    def set_from_outside(self, name: str, module: Module) -> bool:
        """Whether ``something.name = ...`` is anywhere in the file, but for a method's own object."""
        if id(module) not in self._set:
            self._set[id(module)] = set(_set_outside(module))
        return name in self._set[id(module)]

    def is_local(self, node: ast.expr, use: Use) -> bool:
        """Whether the first name is bound by something else than an import."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return not isinstance(node, ast.Name) or not all(b.imported for b in _bindings(node.id, use))

    def class_behind(self, node: ast.expr, use: Use, depth: int) -> Class | None:
        """The one class of what an expression stands for, some steps behind a question."""
        if isinstance(node, ast.Name) and use.scope.owner and use.scope.own == (node.id,):
            return use.scope.owner
        things = self.things(node, use, depth + 1)
        found = {id(thing.made_of): thing.made_of for thing in things if thing.call}
        if not things and isinstance(node, ast.Name) and node.id in use.scope.params:
            first = use.scope.owner is None and use.scope.params[:1] == (node.id,) and use.scope.parent is not None
            return self._handed_over(node.id, use) or (self._around(use.scope) if first else None)
        if not things and isinstance(node, ast.Attribute) and depth < DEPTH:
            return self._kept_from(node, use, depth)
        return next(iter(found.values())) if len(found) == 1 else None

    def class_of(self, node: ast.expr, use: Use) -> Class | None:
        """The one class of the project that an object is made of."""
        return self.class_behind(node, use, DEPTH - 8)

    def _kept_from(self, node: ast.Attribute, use: Use, depth: int) -> Class | None:
        """The class of ``self.trainer``, which a method was handed by the object itself: ``hook.attach(self)``."""
        owner = self.class_behind(node.value, use, depth + 1) if isinstance(node.value, ast.Name) else None
        bound = (
            [b for b in self.attributes(owner, node.attr) if not b.value or not _values.is_none(b.value)]
            if owner
            else []
        )
        given = bound[0].value if len(bound) == 1 and not bound[0].index else None
        if not isinstance(given, ast.Name) or given.id not in bound[0].use.scope.params:
            return None
        return self._handed_over(given.id, bound[0].use)

    def wrapper(self, function: Scope) -> tuple[Scope, str] | None:
        """What the decorator of the project puts around a function, and how that calls it."""
        module, heads = function.module, getattr(function.node, "decorator_list", ())
        end = Use(module.top, len(module.top.statements), (), module.tree.body[-1]) if heads else None
        for head in heads:
            func = head.func if isinstance(head, ast.Call) else head
            things = self.things(func, end, DEPTH - 8) if isinstance(func, ast.Name) and end is not None else ()
            outer = things[0].function if len(things) == 1 else None
            outer = _inner(outer) if outer is not None and isinstance(head, ast.Call) else outer
            inner = _inner(outer) if outer is not None else None
            if outer is None or inner is None or not outer.params:
                continue
            if any(isinstance(c.func, ast.Name) and c.func.id == outer.params[0] for c, _ in inner.calls):
                return inner, outer.params[0]
        return None

    def _around(self, scope: Scope) -> Class | None:
        """The one class whose methods a decorator is put above, of the function that takes their place."""
        makers = {each.name for each in (scope.parent, scope.parent.parent if scope.parent else None) if each}
        found = {id(f.owner): f for name in makers for f in self._decorated.get(name, ())}
        fits = [f.owner for f in found.values() if (made := self.wrapper(f)) is not None and made[0] is scope]
        return fits[0] if len(fits) == len(found) == 1 else None

    def _handed_over(self, name: str, use: Use) -> Class | None:
        """The class of an object that gives itself to every call of a function: ``hook.after(self)``."""
        if not all(binding.parameter for binding in use.scope.bindings[name]):
            return None
        given = [*_listed.handing(self, name, use.scope, 0)]
        own = all(isinstance(node, ast.Name) and scope.own == (node.id,) for node, scope in given)
        owners = {id(scope.owner): scope.owner for _, scope in given}
        return next(iter(owners.values())) if own and len(owners) == 1 else None

    def _class_itself(self, node: ast.expr, use: Use, depth: int) -> Class | None:
        """``Net`` in ``Net.build()``."""
        things = self.things(node, use, depth + 1) if isinstance(node, ast.Name) else ()
        return things[0].made_of if len(things) == 1 and things[0].call is None else None

    def bases(self, owner: Class, depth: int = 0) -> Iterator[Class]:
        """The class and those of the project that it inherits from."""
        yield owner
        for base in owner.node.bases if depth < 6 else ():
            for thing in self.things(base, owner.use, DEPTH - 4):
                if thing.made_of is not None and thing.call is None and thing.made_of is not owner:
                    yield from self.bases(thing.made_of, depth + 1)

    def attributes(self, owner: Class, name: str) -> list[Binding]:
        """The assignments to an attribute of self; of a mixin, those of the classes that it is mixed into."""
        found = [b for each in self.bases(owner) for b in each.attributes.get(name, ())]
        mixed = {id(c): c for heir in self.heirs(owner) for c in self.bases(heir)} if not found else {}
        return found or [b for each in mixed.values() for b in each.attributes.get(name, ())]

    def heirs(self, owner: Class, depth: int = 0) -> Iterator[Class]:
        """The classes of the project that inherit from one."""
        for heir in self._heirs.get(owner.node.name, ()) if depth < 4 else ():
            if heir is not owner and any(each is owner for each in self.bases(heir)):
                yield heir
                yield from self.heirs(heir, depth + 1)

    def _filled_in(self, owner: Class, method: Scope) -> Scope:
        """What the one class that inherits from it puts in the place of an abstract method."""
        if not _is_abstract(method):
            return method
        name = getattr(method.node, "name", "")
        found = {id(m): m for heir in self.heirs(owner) if (m := heir.methods.get(name)) is not None}
        return next(iter(found.values())) if len(found) == 1 else method

    def method(self, owner: Class, name: str) -> Scope | None:
        """The method, perhaps inherited."""
        return next((each.methods[name] for each in self.bases(owner) if name in each.methods), None)

    def _called(self, node: ast.Call, use: Use, depth: int, index: tuple[int, ...]) -> tuple[Thing, ...]:
        func = node.func
        dotted = self.dotted(func, use)
        if WRAPPERS.fullmatch(dotted) and node.args:
            inner = self.things(node.args[0], use, depth + 1, index)
            return _via(node, inner) if dotted == "copy.deepcopy" else inner
        if isinstance(func, ast.Name) and func.id == "getattr" and not index:
            return self._named(node, use)
        if dotted == "functools.partial" and node.args and not index:
            return self._partial(node, use, depth)
        if isinstance(func, ast.Attribute) and not dotted:
            if func.attr in SAME and not self._gives_another(func, use, depth):
                return self.things(func.value, use, depth + 1, index)
            if func.attr in ("prepare", "setup") and node.args and (index or len(node.args) == 1):
                return (
                    self.things(node.args[index[0] if index else 0], use, depth + 1)
                    if (index or (0,))[0] < len(node.args)
                    else ()
                )
        if isinstance(func, ast.Attribute) and (function := self.callee(node, use, depth)) is not None:
            return self._by_method(function, node, use, depth, index)
        found: list[Thing] = []
        for thing in self.things(func, use, depth + 1):
            if thing.call is not None:
                function = self.callee(node, use, depth) if thing.made_of is not None else None
                return _via(node, self._returned(function, depth, index)) if function is not None else ()
            if thing.function is not None:
                inner = self._by_function(thing, node, use, depth, index)
                if not inner:
                    return ()
                found += inner
            elif not index:
                made = self._with(thing.given, node, use) if thing.given is not None else node
                found.append(Thing(thing.name, use, made, thing.made_of))
        return tuple(found) or (self.things_of(_values.sources(self, node, use, depth), depth) if not index else ())

    def _gives_another(self, func: ast.Attribute, use: Use, depth: int) -> bool:
        """``data.train()``, a method of the project that gives back something else than its object, and is none of torch's."""
        owner = self.class_behind(func.value, use, depth)
        method = self.method(owner, func.attr) if owner is not None else None
        if method is None or owner is None or not method.returns or _is_fluent(method):
            return False
        return all(
            not self.dotted(b, each.use).startswith("torch.") for each in self.bases(owner) for b in each.node.bases
        )

    def _by_function(
        self, thing: Thing, node: ast.Call, use: Use, depth: int, index: tuple[int, ...]
    ) -> tuple[Thing, ...]:
        """What a function gives back: what it looks up and makes, or returns."""
        assert thing.function is not None
        built = _builders.built(self, node, use, thing.function, depth) if not index else ()
        site = self.merged(thing.given, node, use)[0] if thing.given is not None else node
        chosen = _by_word.returned(self, thing.function, node, use) if not built else None
        return built or _via(site, self._returned(thing.function, depth, index, chosen))

    def _by_method(
        self, function: Scope, node: ast.Call, use: Use, depth: int, index: tuple[int, ...]
    ) -> tuple[Thing, ...]:
        """What a method gives back: its own object, what it made, or what a registry holds."""
        if not index and _is_fluent(function) and isinstance(node.func, ast.Attribute):
            return self.things(node.func.value, use, depth + 1)
        asked = _registries.asked(self, node, use, function) if function.owner is not None else None
        if asked is None and not index and (built := _builders.built(self, node, use, function, depth)):
            return built
        chosen = _by_word.returned(self, function, node, use) if asked is None else None
        returned = self._returned(function, depth, index, chosen) if asked is None else ()
        return _via(node, returned) if asked is None else self._registered(asked, node, use, depth)

    def _registered(self, asked: _registries.Asked, node: ast.Call, use: Use, depth: int) -> tuple[Thing, ...]:
        """What a registry holds under a name, or makes of that."""
        held = self.things(asked.entry.node, asked.entry.use, depth + 1)
        if not asked.makes or len(held) != 1 or held[0].call is not None:
            return held if not asked.makes else ()
        if held[0].function is not None:
            return _via(node, self._returned(held[0].function, depth, ()))
        key = id(node), 0
        if key not in self._merged:
            named = any(k.arg == asked.key for k in node.keywords)
            kept = [k for k in node.keywords if k.arg != asked.key]
            made = ast.Call(node.func, node.args if named else node.args[1:], kept)
            self._merged[key] = ast.copy_location(made, node)
        return (Thing(held[0].name, use, self._merged[key], held[0].made_of),)

    @staticmethod
    def usual(function: Scope, name: str) -> ast.expr | None:
        """What a parameter is when a call gives nothing."""
        return default(function, name)

    @staticmethod
    def argument(call: ast.Call, function: Scope, name: str) -> ast.expr | None:
        """What a call gives for a parameter."""
        return argument(call, function, name)

    def keywords(self, call: ast.Call, use: Use) -> dict[str | None, ast.expr]:
        """What a call is given by name, also by ``**options`` of a dictionary that is written out; None if there are others."""
        found: dict[str | None, ast.expr] = {k.arg: k.value for k in call.keywords if k.arg is not None}
        for spread in (k.value for k in call.keywords if k.arg is None):
            inner = _spread.spread(self, spread, use)
            if inner is None:
                return {**found, None: spread}
            found.update(inner)
        return found

    def names_in(self, node: ast.expr, use: Use) -> dict[str, ast.expr] | None:
        """The names in a table that is written out; None if there may be others."""
        return _spread.spread(self, node, use)

    def _named(self, node: ast.Call, use: Use) -> tuple[Thing, ...]:
        """``getattr(nn, "CrossEntropyLoss")``, ``getattr(torch, "float16")``."""
        name = self.constant(node.args[1], use) if len(node.args) > 1 else None
        dotted = self.dotted(node.args[0], use) if name is not None else ""
        known = f"{dotted}.".startswith("torch.") and not self.is_local(node.args[0], use)
        if dotted and not known and name is not None and self.module_of(dotted, use.scope.module) is not None:
            return self._imported(f"{dotted}.{name.value!s}", use, 0)
        return (Thing(_plain(f"{dotted}.{name.value!s}"), use),) if known and name is not None else ()

    def _partial(self, node: ast.Call, use: Use, depth: int) -> tuple[Thing, ...]:
        """A class, or a function, of which some arguments are known before it is called."""
        things = self.things(node.args[0], use, depth + 1)
        kept = _partials.is_plain(node)
        self.bound_at[id(node)] = use
        plain = all(
            t.call is None and (t.name.startswith("torch.") or t.made_of or (kept and t.function)) and t.given is None
            for t in things
        )
        return tuple(replace(thing, given=node) for thing in things) if plain else ()

    def _with(self, given: ast.Call, node: ast.Call | None, use: Use) -> ast.Call:
        """The call that a call of what ``partial()`` made comes to."""
        key = id(given), id(node)
        if key not in self._merged:
            args, named = (node.args, node.keywords) if node is not None else ([], [])
            later = {k.arg for k in named}
            first = [self._from_there(each, given, use) for each in given.args[1:]]
            kept = [k for k in given.keywords if k.arg not in later]
            kept = [ast.keyword(k.arg, self._from_there(k.value, given, use)) for k in kept]
            made = ast.Call(given.args[0], [*first, *args], [*kept, *named])
            self._merged[key] = ast.copy_location(made, node or given)
        return self._merged[key]

    def _from_there(self, node: ast.expr, given: ast.Call, use: Use) -> ast.expr:
        """What ``partial()`` was given, as far as it means the same where the rest is given."""
        near = self.bound_at.get(id(given))
        if near is None or near.scope is use.scope or isinstance(node, ast.Constant):
            return node
        return self.constant(node, near) or _spread.UNKNOWN

    def merged(self, given: ast.Call, node: ast.Call | None, use: Use) -> tuple[ast.Call, Use]:
        """The same, as one of the calls of a function."""
        made = self._with(given, node, use)
        return self.turned.setdefault(id(made), (made, use))

    def callee(self, node: ast.Call, use: Use, depth: int = 0) -> Scope | None:
        """The one function or method of the project that a call runs; of a module, its forward."""
        key = (id(node), use)
        if key not in self._callees:
            self._callees[key] = None
            self._callees[key] = self._called_function(node, use, depth)
        return self._callees[key]

    def _called_function(self, node: ast.Call, use: Use, depth: int) -> Scope | None:
        func = node.func
        outside = isinstance(func, ast.Attribute) and self.dotted(func, use).startswith("torch.")
        if isinstance(func, ast.Attribute) and not (outside and not self.is_local(func, use)):
            if _values.is_super(func.value) and use.scope.owner is not None:
                above = (each.methods.get(func.attr) for each in [*self.bases(use.scope.owner)][1:])
                return next((method for method in above if method is not None), None)
            owner = self.class_behind(func.value, use, depth + 1) or self._class_itself(func.value, use, depth)
            if owner is not None and (method := self.method(owner, func.attr)) is not None:
                return self._filled_in(owner, method) if use.scope.owner is owner else method
            for heir in self.heirs(owner) if owner is not None and owner is use.scope.owner else ():
                if (method := self.method(heir, func.attr)) is not None:
                    return method
        if isinstance(func, ast.Name) and use.scope.owner is not None and use.scope.own == (func.id,):
            return self.method(use.scope.owner, "__call__") or self._own_forward(use.scope.owner)
        found = self.things(func, use, depth + 1)
        if len({id(t.made_of) for t in found}) == 1 and found[0].call is not None and found[0].made_of is not None:
            return self.method(found[0].made_of, "forward") or self.method(found[0].made_of, "__call__")
        functions = {id(t.function): t.function if t.given is None else None for t in found}
        return next(iter(functions.values())) if len(functions) == 1 else None

    def _own_forward(self, owner: Class) -> Scope | None:
        """What ``self(x)`` runs in a module: the one forward that it and the classes below it have."""
        above = self.method(owner, "forward")
        known = [] if above is None or _is_abstract(above) else [above]
        found = {id(m): m for m in (*known, *(h.methods.get("forward") for h in self.heirs(owner))) if m is not None}
        return next(iter(found.values())) if len(found) == 1 else None

    def returned(self, function: Scope, call: ast.Call, depth: int) -> tuple[Thing, ...]:
        """What one call of a function gives back."""
        return _via(call, self._returned(function, depth, ()))

    def _returned(
        self,
        function: Scope,
        depth: int,
        index: tuple[int, ...],
        chosen: Sequence[tuple[ast.expr | None, Use]] | None = None,
    ) -> tuple[Thing, ...]:
        found: list[Thing] = []
        for value, use in self.returns(function) if chosen is None else chosen:
            if value is not None:
                inner = self.things(value, use, depth + 1, index)
                if not inner:
                    return ()
                found += inner
        return tuple(found)

    # ----------------------------------------------------------------------- numbers

    def number(self, node: ast.expr | None, use: Use, depth: int = 0) -> float | None:
        """A number that is written out, here or where a name got it; the default of an option of the command line."""
        found = self.constant(node, use, depth)
        return float(found.value) if found is not None and isinstance(found.value, (int, float)) else None

    def constant(self, node: ast.expr | None, use: Use, depth: int = 0, *, strict: bool = False) -> ast.Constant | None:
        """What is written out, here or where a name got it; strictly, if it is never counted up, or set elsewhere."""
        if isinstance(node, ast.Constant):
            return node
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and depth < SHORT:
            inner = self.constant(node.operand, use, depth + 1, strict=strict)
            return ast.copy_location(ast.Constant(not inner.value), node) if inner is not None else None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and depth < SHORT:
            listed = [
                self.constant(s.node, s.use, depth + 1, strict=strict) for s in _values.sources(self, node, use, 0)
            ]
            return _only(listed)
        if not isinstance(node, (ast.Name, ast.Attribute)) or depth >= SHORT:
            return None
        bindings = self.holding(node, use, DEPTH - 6)
        known = [b for b in bindings if not isinstance(b.use.statement, ast.AugAssign)]
        outside = isinstance(node, ast.Attribute) and self.set_from_outside(node.attr, use.scope.module)
        if strict and (outside or len(known) != len(bindings) or len(known) > SHORT):
            return None
        found = [c for b in known[:SHORT] for c in self._constants(node, b, depth, strict)]
        if not known and isinstance(node, ast.Attribute):
            fields = _values.sources(self, node, use, DEPTH - 6)
            found = [self.constant(each.node, each.use, depth + 1, strict=strict) for each in fields] or [
                self.constant(value, place, depth + 1, strict=strict)
                for value, place in self.defaults(node.attr, use.scope.module)
            ]
        return _only(found)

    def _constants(
        self, node: ast.Name | ast.Attribute, binding: Binding, depth: int, strict: bool
    ) -> Iterator[ast.Constant | None]:
        if not binding.parameter or not isinstance(node, ast.Name):
            yield self.constant(binding.value, binding.use, depth + 1, strict=strict) if not binding.index else None
            return
        usual = default(binding.use.scope, node.id)
        sites: list[tuple[ast.Call | None, Use]] = [*self.sites_of(binding.use.scope)[:SITES]]
        for call, site in sites or ([] if strict else [(None, binding.use)]):
            given = argument(call, binding.use.scope, node.id) if call is not None else None
            if call is None or given is not None or not _is_spread(call):
                yield self.constant(given or usual, site, depth + 1, strict=strict)
                continue
            inner = self._from_table(call, site, node.id)
            if not inner:
                yield self.constant(usual, site, depth + 1, strict=strict) if inner is not None else None
            for value, place in inner or ():
                yield self.constant(value, place, depth + 1, strict=strict)

    def defaults(self, name: str, module: Module) -> list[tuple[ast.expr, Use]]:
        """``default`` of ``add_argument("--name", ...)``."""
        if id(module) not in self._options:
            known: dict[str, list[tuple[ast.expr, Use]]] = {}
            for call, use in _arguments_added(module):
                given = [k.value for k in call.keywords if k.arg == "default"] or _unset(call)
                names = [k.value for k in call.keywords if k.arg == "dest"] or call.args
                for option in map(_option, names):
                    known.setdefault(option, []).extend((each, use) for each in given)
            self._options[id(module)] = known
        return self._options[id(module)].get(name, [])

    # ----------------------------------------------------------------------- tensors

    def made(self, node: ast.expr | None, use: Use, depth: int = 0, index: tuple[int, ...] = ()) -> tuple[Made, ...]:
        """The operations that may have made a tensor; nothing if one of them is unknown."""
        return _tensors.made(self, node, use, depth, index)

    @property
    def unbounded(self) -> set[str]:
        """What a layer of weights makes."""
        return UNBOUNDED

    @staticmethod
    def made_here(by: str, node: ast.AST, use: Use) -> Made:
        """A tensor that an expression makes."""
        return Made(by, node, use)

    def _own_call(self, things: Sequence[Thing]) -> Scope | None:
        """The ``__call__`` that a class of modules puts around its forward, or a class above."""
        owners = {id(thing.made_of): thing.made_of for thing in things if thing.call is not None}
        (owner, *more) = owners.values() or [None]
        return self.method(owner, "__call__") if owner is not None and not more else None


def _only(found: Sequence[ast.Constant | None]) -> ast.Constant | None:
    """The value that all of them are."""
    values = {(type(each.value), each.value) if each is not None else None for each in found}
    return found[0] if len(values) == 1 else None


def _via(node: ast.Call, things: tuple[Thing, ...]) -> tuple[Thing, ...]:
    return tuple(replace(thing, via=(id(node), *thing.via)) if thing.call is not None else thing for thing in things)


def _file_of(dotted: str, folder: str) -> str:
    """Looked for beside the file that imports, and in the folders above it."""
    level = len(dotted) - len(dotted.lstrip("."))
    parts = [part for part in dotted.lstrip(".").split(".") if part]
    for _ in range(level - 1):
        folder = os.path.dirname(folder)
    for _ in range(1 if level else ABOVE):
        for path in (os.path.join(folder, *parts) + ".py", os.path.join(folder, *parts, "__init__.py")):
            if parts and os.path.isfile(path):
                return path
        if folder == os.path.dirname(folder):
            break
        folder = os.path.dirname(folder)
    return ""


def default(function: Scope, name: str) -> ast.expr | None:
    """What a parameter is when a call gives nothing."""
    if isinstance(function.node, ast.Module):
        return None
    given = function.node.args
    names = [a.arg for a in (*given.posonlyargs, *given.args)]
    pairs = [*zip(names[::-1], given.defaults[::-1], strict=False)]
    pairs += [(a.arg, value) for a, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value is not None]
    return dict(pairs).get(name)


def _is_at(node: ast.expr, function: ast.AST) -> bool:
    """The lambda that a function was made of."""
    place = getattr(function, "lineno", 0), getattr(function, "col_offset", 0)
    return isinstance(node, ast.Lambda) and (node.lineno, node.col_offset) == place


def _is_fluent(function: Scope) -> bool:
    """A method that returns its own object, and nothing else."""
    values = [value for value, _ in function.returns]
    return bool(values) and all(isinstance(v, ast.Name) and function.own == (v.id,) for v in values)


def _inner(function: Scope) -> Scope | None:
    """The function that another one makes and returns."""
    value = function.returns[0][0] if len(function.returns) == 1 else None
    found = function.bindings.get(value.id, []) if isinstance(value, ast.Name) else []
    return function.module.functions.get(id(found[0].definition)) if len(found) == 1 else None


def _is_abstract(function: Scope) -> bool:
    """It raises, or does nothing at all."""
    body = [u.statement for u in function.statements if not _is_text(u.statement)]
    first = body[0] if body else None
    raises = isinstance(first, ast.Raise) and "NotImplemented" in unparsed(first)
    return function.marked("abstractmethod") or (len(body) == 1 and (raises or isinstance(first, ast.Pass))) or not body


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _knows(module: Module, function: Scope) -> bool:
    """Whether a file defines or imports the class of a method, or one that it inherits from."""
    owner = function.owner.node if function.owner is not None else None
    if module is function.module or owner is None:
        return module is function.module
    known, bases = module.top.bindings, [base.id for base in owner.bases if isinstance(base, ast.Name)]
    near = [known[name][0].imported for name in bases if name in known]
    return owner.name in known or any(not dotted.startswith("torch") for dotted in near)


def _fits(call: ast.Call, function: Scope) -> bool:
    """Whether a call gives all that a method needs."""
    needed = [name for name in function.params[1:] if default(function, name) is None]
    return _is_spread(call) or len(call.args) + len(call.keywords) >= len(needed)


def _is_spread(call: ast.Call) -> bool:
    """``f(*given)`` or ``f(**given)``."""
    return any(k.arg is None for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)


def _set_outside(module: Module) -> Iterator[str]:
    """Attributes of anything but the object of a method that are given a value."""
    for scope in module.scopes:
        own = scope.params[:1] if scope.owner is not None else ()
        for use in scope.statements:
            node = use.statement
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Attribute) and unparsed(target.value) not in own:
                    yield target.attr


def _arguments_added(module: Module) -> Iterator[tuple[ast.Call, Use]]:
    for scope in module.scopes:
        for call, use in scope.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                yield call, use


def _unset(call: ast.Call) -> list[ast.expr]:
    """What a switch is that nobody turns."""
    actions = [k.value.value for k in call.keywords if k.arg == "action" and isinstance(k.value, ast.Constant)]
    known = {"store_true": False, "store_false": True}
    return [ast.copy_location(ast.Constant(known[each]), call) for each in actions if each in known]


def _option(node: ast.expr) -> str:
    return (
        node.value.lstrip("-").replace("-", "_")
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        else ""
    )


def _changed(module: Module) -> Iterator[tuple[str, int]]:
    """What is written to by key, or by a method of dictionaries, and in which function if it is one's own."""
    for scope in module.scopes:
        for node, use in _written(scope):
            name = node.id if isinstance(node, ast.Name) else ""
            found = scope.bindings.get(name, [])
            last = scope.reaching(name, use) if len(found) > 1 else []
            if last and all(b.value is not None and _builders.is_copy(b.value, name) for b in last):
                found = last
            own = bool(found) and scope is not module.top and not any(b.parameter for b in found)
            yield unparsed(node), id(scope) if own else 0


def _written(scope: Scope) -> Iterator[tuple[ast.expr, Use]]:
    for use in scope.statements:
        node = use.statement
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from ((t.value, use) for t in targets if isinstance(t, ast.Subscript))
    for call, use in scope.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("update", "setdefault", "pop", "clear"):
            yield call.func.value, use


def _bindings(name: str, use: Use) -> list[Binding]:
    """The bindings of a name, in the innermost scope that has any."""
    scope: Scope | None = use.scope
    while scope is not None:
        if name in scope.bindings:
            return scope.reaching(name, use)
        scope = scope.parent
    return []


def _is_bound(name: str, scope: Scope | None) -> bool:
    while scope is not None and name not in scope.bindings:
        scope = scope.parent
    return scope is not None


def _last_imported(call: ast.Call, use: Use) -> str:
    """The name of a function or class that a call finds in another module; nothing for torch."""
    func = call.func
    first = func
    while isinstance(first, ast.Attribute):
        first = first.value
    found = _bindings(first.id, use) if isinstance(first, ast.Name) else []
    name = found[0].imported if len(found) == 1 else ""
    if not name or name.startswith("torch"):
        return ""
    return func.attr if isinstance(func, ast.Attribute) else name.rpartition(".")[2]


def argument(call: ast.Call, function: Scope, name: str) -> ast.expr | None:
    """What a call gives for a parameter."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    bound = function.owner is not None and not function.marked("staticmethod")
    place = function.params.index(name) - bound
    if 0 <= place < len(call.args) and not any(isinstance(a, ast.Starred) for a in call.args[: place + 1]):
        return call.args[place]
    return None


def argument_at(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """What a call gives for a parameter of torch's, by name or by place; -1 for one that is given by name only."""
    named = [k.value for k in call.keywords if k.arg == name]
    return named[0] if named else call.args[place] if 0 <= place < len(call.args) else None


def builds_optimizer(dotted: str) -> bool:
    """``torch.optim.Adam``, and no schedule."""
    return dotted.startswith("torch.optim.") and dotted.count(".") == 2 and dotted[12:13].isupper()


PLAIN = (
    (re.compile(r"^torch\.nn\.modules\.\w+\."), "torch.nn."),
    (re.compile(r"^torch\.optim\.(?!lr_scheduler|swa_utils)[a-z_]+\."), "torch.optim."),
    (re.compile(r"^torch\.nn\.utils\.clip_grad\."), "torch.nn.utils."),
    (re.compile(r"^torch\.(cuda\.)?amp\.(grad_scaler|autocast_mode)\."), "torch.amp."),
)


@cache
def _plain(dotted: str) -> str:
    """One name for what torch offers under several."""
    for pattern, put in PLAIN:
        dotted = pattern.sub(put, dotted)
    return dotted
