"""All calls of a project, sorted by how they are written."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TypeAlias

from flatline.readers.source import _listed, _partials, _tables, _values
from flatline.readers.source._scopes import Module, Scope, Use, bindings_at, is_bound, spelled

Site: TypeAlias = tuple[ast.Call, Use]


@dataclass(slots=True)
class Calls:
    """Where the calls of a function are looked for."""

    certain: dict[int, list[Site]] = field(default_factory=dict)  # by the function that the name alone tells
    outside: dict[str, list[Site]] = field(default_factory=dict)  # of imported names
    methods: dict[str, list[Site]] = field(default_factory=dict)  # of methods, by name
    plain: list[Site] = field(default_factory=list)  # of objects, by a name
    by_name: dict[str, list[Site]] = field(default_factory=dict)  # the same
    keyed: list[Site] = field(default_factory=list)  # of entries of tables
    partials: dict[str, list[Site]] = field(default_factory=dict)  # of partial(), by function

    def add(self, module: Module) -> None:
        """All calls of a file."""
        for name, pair in _partials.made_in(module):
            self.partials.setdefault(name, []).append(pair)
        for scope in module.scopes:
            for call, use in scope.calls:
                self._sort(call, use)

    def _sort(self, call: ast.Call, use: Use) -> None:
        function = certain(call, use)
        if function is not None:
            self.certain.setdefault(id(function.node), []).append((call, use))
        elif name := _last_imported(call, use):
            self.outside.setdefault(name, []).append((call, use))
        elif isinstance(call.func, ast.Attribute):
            self.methods.setdefault(call.func.attr, []).append((call, use))
        elif isinstance(call.func, ast.Name) and is_bound(call.func.id, use.scope):
            self.plain.append((call, use))
            self.by_name.setdefault(call.func.id, []).append((call, use))
            if _listed.asked_for(call.func, use) is not call.func:
                self.methods.setdefault("getattr", []).append((call, use))
        elif _tables.is_entry(call.func, use.scope.module):
            self.keyed.append((call, use))
        elif isinstance(call.func, ast.Call) and spelled(call.func.func) == "getattr" and call.func.args:
            self.methods.setdefault("getattr", []).append((call, use))

    def under(self, name: str) -> list[Site]:
        """The calls of classes and objects by a name, and of what other modules have under it."""
        return self.by_name.get(name, []) + self.outside.get(name, [])

    def of_method(self, name: str) -> list[Site]:
        """The calls of a method of objects that are not known by their names."""
        return self.methods.get(name, [])

    def in_file(self, name: str, module: Module) -> list[Site]:
        """The calls of a method, or of a module that is an attribute, in a file."""
        return [pair for pair in self.methods.get(name, ()) if pair[1].scope.module is module]


def certain(call: ast.Call, use: Use) -> Scope | None:
    """The function of this module that a call is certain to reach by its name alone."""
    func = call.func
    if isinstance(func, ast.Name):
        found = [b for b in bindings_at(func.id, use) if b.definition is not None]
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


def _last_imported(call: ast.Call, use: Use) -> str:
    """The name of a function or class that a call finds in another module; nothing for torch."""
    func = call.func
    first = func
    while isinstance(first, ast.Attribute):
        first = first.value
    found = bindings_at(first.id, use) if isinstance(first, ast.Name) else []
    name = found[0].imported if len(found) == 1 else ""
    if not name or name.startswith("torch"):
        return ""
    return func.attr if isinstance(func, ast.Attribute) else name.rpartition(".")[2]
