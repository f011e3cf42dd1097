"""Objects that hold things by name: ``@MODELS.register("mlp")`` fills them, ``MODELS.build("mlp")`` asks them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from flatline.readers.source._arguments import argument
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import Class, Module, Scope, Use
from flatline.readers.source._values import Source

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

FINDS = re.compile(r"import_module|iter_modules|walk_packages|entry_points|__import__|spec_from_file|pkgutil")


@dataclass(frozen=True, slots=True)
class Asked:
    """What one call of a registry finds, and whether the call makes something of it."""

    entry: Source
    key: str  # the parameter that holds the name
    makes: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing of a registry."""

    holder: str  # which object
    name: object  # None where it is not known
    source: Source


def asked(project: Project, call: ast.Call, use: Use, function: Scope) -> Asked | None:
    """What ``MODELS.build("mlp", width)`` and ``MODELS.get("mlp")`` find; None for any other call."""
    owner, values = function.owner, function.returns
    if owner is None or len(values) != 1 or values[0][0] is None or not isinstance(call.func, ast.Attribute):
        return None
    value, place = _behind_name(values[0][0], values[0][1])
    makes = isinstance(value, ast.Call) and not _is_get(value)
    inner, place = _behind_name(value.func, place) if makes and isinstance(value, ast.Call) else (value, place)
    table, key = _looked_up(inner)
    own = function.params[:1]
    if not isinstance(key, ast.Name) or key.id not in function.params or table is None:
        return None
    if not isinstance(table.value, ast.Name) or own != (table.value.id,):
        return None
    name = project.constant(argument(call, function, key.id), use)
    found = [e for e in entries(project, owner, table.attr) if e.holder == holder(project, call.func.value, use)]
    known = [e for e in found if e.name == name.value] if name is not None else _all_there_are(project, found)
    return Asked(known[0].source, key.id, makes) if len(known) == 1 else None


def _all_there_are(project: Project, found: Sequence[Entry]) -> Sequence[Entry]:
    """What a name out of a settings file may stand for; nothing if files that nobody sees imported may put more in."""
    hidden = len(found) != 1 or any(_finds_files(each) for each in project.modules.values() if each is not None)
    return [] if hidden else found


@cache
def _finds_files(module: Module) -> bool:
    return FINDS.search(module.whole) is not None


def _behind_name(node: ast.expr, use: Use) -> tuple[ast.expr, Use]:
    found = use.scope.reaching(node.id, use) if isinstance(node, ast.Name) and node.id in use.scope.bindings else []
    plain = len(found) == 1 and not found[0].index and found[0].value is not None
    return (found[0].value, found[0].use) if plain else (node, use)  # type: ignore[return-value]


def _is_get(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute) and call.func.attr == "get" and isinstance(call.func.value, ast.Attribute)
    )


def _looked_up(node: ast.expr) -> tuple[ast.Attribute | None, ast.expr | None]:
    """``self._items`` and ``name``, of ``self._items[name]`` and ``self._items.get(name)``."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
        return node.value, node.slice
    if isinstance(node, ast.Call) and _is_get(node) and node.args:
        return node.func.value, node.args[0]  # type: ignore[attr-defined]
    return None, None


def holder(project: Project, node: ast.expr, use: Use) -> str:
    """Equal for one registry."""
    things = project.things(node, use)
    return things[0].identity() if len(things) == 1 else ""


def entries(project: Project, owner: Class, table: str) -> Sequence[Entry]:
    """All that is put into the registries of a class."""
    key = id(owner), f".{table}"
    known = project.registries.get(key)
    if known is None:
        project.registries[key] = []
        modules = [m for m in project.modules.values() if m is not None and m.tree.body]
        names = {name for name, method in owner.methods.items() if _fills(method, table)}
        names |= {name for name, method in owner.methods.items() if _hands_on(method, names)}
        found = [
            e
            for m in modules
            for e in (*_by_decorators(project, m, owner, names), *_by_calls(project, m, owner, names))
        ]
        found += _by_heirs(project, owner, table) if "__init_subclass__" in names else []
        found += [e for m in modules for e in _by_keys(project, m, owner)] if not table else []
        known = project.registries[key] = found
    return known


def _inner(method: Scope) -> list[Scope]:
    """A method, and the functions in it."""
    return [
        s for s in method.module.scopes if s is method or s.parent is method or (s.parent and s.parent.parent is method)
    ]


def _hands_on(method: Scope, names: set[str]) -> bool:
    """It calls a method that fills, as ``register_module`` calls ``self._register``."""
    calls = [call.func for scope in _inner(method) for call, _ in scope.calls] if names else []
    own = {f"{method.params[0]}.{name}" for name in names} if method.params else set()
    return any(isinstance(func, ast.Attribute) and unparsed(func) in own for func in calls)


def _by_heirs(project: Project, owner: Class, table: str) -> Iterator[Entry]:
    """``class Raw(Head, key="raw")``, where ``__init_subclass__`` puts it in."""
    key = _key_of_heirs(owner.methods["__init_subclass__"], table)
    for heir in {id(each): each for each in project.heirs(owner)}.values():
        given = [k.value for k in heir.node.keywords if k.arg == key]
        own = [b.value for b in heir.attributes.get(key.removeprefix("cls."), ())] if key.startswith("cls.") else given
        word = own[0].value if len(own) == 1 and isinstance(own[0], ast.Constant) else None
        name = heir.node.name if key == "cls.__name__" else word
        end = Use(heir.module.top, len(heir.module.top.statements), (), heir.module.tree.body[-1])
        whose = f"{owner.module.text.path}:{owner.node.name}"
        yield Entry(whose, name, Source(ast.Name(heir.node.name, ast.Load()), end))


def _key_of_heirs(method: Scope, table: str) -> str:
    """What a class is put in under: a keyword of its own, ``cls.name`` or ``cls.__name__``."""
    for use in method.statements:
        target = use.statement.targets[0] if isinstance(use.statement, ast.Assign) else None
        if isinstance(target, ast.Subscript) and _is_table(target.value, table, method):
            key = unparsed(target.slice)
            first = method.params[0] if method.params else ""
            return key if key in method.params else re.sub(rf"^{first}\.", "cls.", key)
    return ""


def _by_keys(project: Project, module: Module, owner: Class) -> Iterator[Entry]:
    """``LOSSES["ce"] = nn.CrossEntropyLoss``, of a registry that is a dictionary."""
    for use in module.top.statements:
        target = use.statement.targets[0] if isinstance(use.statement, ast.Assign) else None
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            if isinstance(use.statement, ast.Assign) and _is_one(project, target.value, use, owner):
                yield Entry(holder(project, target.value, use), target.slice.value, Source(use.statement.value, use))


def _fills(method: Scope, table: str) -> bool:
    """``self._items[name] = given``, in a method or in what it gives back."""
    for scope in _inner(method):
        for use in scope.statements:
            node = use.statement
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Subscript) and _is_table(target.value, table, method):
                value = node.value  # type: ignore[attr-defined]
                return isinstance(value, ast.Name) and value.id in scope.params
    return False


def _is_table(node: ast.expr, table: str, method: Scope) -> bool:
    """``self._items``, or ``self`` of a registry that is a dictionary."""
    if not table:
        return isinstance(node, ast.Name) and node.id in method.params[:1]
    return isinstance(node, ast.Attribute) and node.attr == table


def _by_decorators(project: Project, module: Module, owner: Class, names: set[str]) -> Iterator[Entry]:
    """``@MODELS.register("mlp")`` above a class or a function."""
    owners: list[Class | Scope] = [*module.classes.values(), *module.functions.values()]
    nodes = [each.node for each in owners if not isinstance(each.node, ast.Module)]
    end = Use(module.top, len(module.top.statements), (), module.tree.body[-1])
    for node in nodes:
        for head in node.decorator_list:
            func = head.func if isinstance(head, ast.Call) else head
            if isinstance(func, ast.Attribute) and func.attr in names and _is_one(project, func.value, end, owner):
                given = _name_given(head) if isinstance(head, ast.Call) else None
                name = node.name if given is None else given.value if isinstance(given, ast.Constant) else None
                yield Entry(holder(project, func.value, end), name, Source(ast.Name(node.name, ast.Load()), end))


def _by_calls(project: Project, module: Module, owner: Class, names: set[str]) -> Iterator[Entry]:
    """``MODELS.register("mlp", Net)`` and ``MODELS.register("mlp")(Net)``."""
    for scope in module.scopes:
        for call, use in scope.calls:
            head = call.func if isinstance(call.func, ast.Call) else call
            func, given = head.func, call.args[-1:] if head is not call else head.args[1:2]
            if (
                given
                and isinstance(func, ast.Attribute)
                and func.attr in names
                and _is_one(project, func.value, use, owner)
            ):
                name = _name_given(head)
                known = name.value if isinstance(name, ast.Constant) else None
                yield Entry(holder(project, func.value, use), known, Source(given[0], use))


def _name_given(call: ast.Call) -> ast.expr | None:
    named = [k.value for k in call.keywords if k.arg in ("name", "key")]
    return call.args[0] if call.args else named[0] if named else None


def _is_one(project: Project, node: ast.expr, use: Use, owner: Class) -> bool:
    return any(t.made_of is owner for t in project.things(node, use))
