"""Tables that are filled while the program runs: by a decorator, by key, in a loop over names."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from flatline.readers.source._arguments import argument
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import Class, Module, Scope, Use
from flatline.readers.source._values import Source

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project

Entry = tuple[object, Source]


def put(project: Project, node: ast.expr, key: ast.Constant | None, use: Use) -> Sequence[Source]:
    """What was put into a table under a key, in this function or by decorators."""
    if not isinstance(node, ast.Name):
        return _appended(project, node, use) if key is None and isinstance(node, ast.Attribute) else []
    if node.id in use.scope.bindings:
        found = _put_here(node.id, key, use)
        if found or use.scope is not use.scope.module.top:
            return found
    return _registered(project, node, key, use)


def _appended(project: Project, node: ast.Attribute, use: Use) -> Sequence[Source]:
    """What the methods of a class append to ``self.hooks``, which begins empty; of a parameter, what each call gives."""
    owner = use.scope.owner if isinstance(node.value, ast.Name) and use.scope.own == (node.value.id,) else None
    begun = project.attributes(owner, node.attr) if owner is not None else []
    empty = len(begun) == 1 and isinstance(begun[0].value, ast.List) and not begun[0].value.elts and not begun[0].index
    found: list[Source] = []
    for method in owner.methods.values() if owner is not None and empty else ():
        for call, place in method.calls:
            if unparsed(call.func) == f"{unparsed(node)}.append" and len(call.args) == 1:
                given = call.args[0]
                name = given.id if isinstance(given, ast.Name) and given.id in method.params else ""
                pairs = project.given(name, method.bindings[name][0].use) if name else [(given, place)]
                found += [Source(*pair) for pair in pairs]
    return found


def _put_here(name: str, key: ast.Constant | None, use: Use) -> Sequence[Source]:
    """``out["probs"] = ...``, once in this function and on every way to here."""
    found = _entries(name, use.scope)
    if key is None or None in [k for k, _ in found] or not all(_is_before(k, place, use) for k, place in found):
        return []
    own = [(k, place) for k, place in found if k is not None and key.value in k]
    if len(own) != 1:
        return []
    (names, place), value = own[0], own[0][1].statement.value  # type: ignore[attr-defined]
    return [Source(value, place, (hash(key.value),) if len(names or ()) > 1 else ())]


def _entries(name: str, scope: Scope) -> list[tuple[tuple[object, ...] | None, Use]]:
    """The keys of each statement that puts something into a table; None where they are not known."""
    found: list[tuple[tuple[object, ...] | None, Use]] = []
    for use in scope.statements:
        for target in use.statement.targets if isinstance(use.statement, ast.Assign) else ():
            if isinstance(target, ast.Subscript) and unparsed(target.value) == name:
                found.append((_keys(target.slice, use), use))
    return found


def _is_before(keys: tuple[object, ...] | None, place: Use, use: Use) -> bool:
    """Whether every way comes by it; a loop over names that are written out is gone through."""
    around = place.path[:-1] if keys is not None and len(keys) > 1 else place.path
    return place.order < use.order and use.path[: len(around)] == around


def _keys(node: ast.expr, use: Use) -> tuple[object, ...] | None:
    """``"train"``, and ``split`` in ``for split in ("train", "val")`` around it."""
    if isinstance(node, ast.Constant):
        return (node.value,)
    found = use.scope.reaching(node.id, use) if isinstance(node, ast.Name) and node.id in use.scope.bindings else []
    loop = found[0].use.statement if len(found) == 1 else None
    if not isinstance(loop, ast.For) or use.path[-1:] != ((id(loop), "body"),) or unparsed(loop.target) != node.id:  # type: ignore[attr-defined]
        return None
    listed = loop.iter.elts if isinstance(loop.iter, (ast.Tuple, ast.List)) else []
    plain = [each.value for each in listed if isinstance(each, ast.Constant)]
    return tuple(plain) if plain and len(plain) == len(listed) else None


# --------------------------------------------------------------------------- decorators


def _registered(project: Project, node: ast.Name, key: ast.Constant | None, use: Use) -> Sequence[Source]:
    """``@register("mlp")`` above a function, which a table holds from then on; all of them, if it is not known which."""
    bindings = use.scope.module.top.bindings.get(node.id, [])
    if len(bindings) != 1:
        return []
    module = use.scope.module
    if bindings[0].imported:
        head, _, name = bindings[0].imported.rpartition(".")
        found = project.module_of(head, module) if head.strip(".") or head else None
        module, node = (found, ast.Name(name)) if found is not None else (module, node)
    if key is None:
        return _all_of_one_file(_filled(project, module, node.id), module) if _fills(module, node.id) else []
    entries = _filled(project, module, node.id)
    own = [source for name, source in entries if name == key.value]
    return own if len(own) == 1 else []


@cache
def _fills(module: Module, table: str) -> bool:
    """Whether the decorator that puts things into a table stands above several in the same file."""
    registers = [scope for scope in module.scopes if scope is not module.top and _entries(table, scope)]
    names = {each.name.rpartition(".")[2] for s in registers for each in (s, s.parent) if each is not None} - {""}
    return any(module.whole.count(f"@{name}") > 1 for name in names)


def _all_of_one_file(entries: Sequence[Entry], module: Module) -> Sequence[Source]:
    """All that a table may give, where its own file puts in several: others may put in more, and are not known."""
    found = [source for _, source in entries]
    return found if len(found) > 1 and all(each.use.scope.module is module for each in found) else []


def _filled(project: Project, module: Module, name: str) -> Sequence[Entry]:
    """What the decorators of a file put into one of its tables; nothing if anything else does."""
    return project.recalled(module, name, lambda: list(_decorated(project, module, name)))


def _decorated(project: Project, module: Module, table: str) -> list[Entry]:
    registers = [scope for scope in module.scopes if scope is not module.top and _entries(table, scope)]
    if not registers and not _entries(table, module.top):
        return _into_given(project, module, table)
    if len(registers) != 1 or _entries(table, module.top) or _moved(registers[0], table):
        return []
    maker = registers[0].parent if registers[0].parent is not None else module.top
    outer = registers[0] if maker is module.top else maker
    return _above(project, outer)


def _above(project: Project, outer: Scope) -> list[Entry]:
    found: list[Entry] = []
    for each in [m for m in project.modules.values() if m is not None]:
        owners: list[Class | Scope] = [*each.classes.values(), *each.functions.values()]
        for owner in owners:
            found += _named_above(project, owner, outer, each)
    return found


def _into_given(project: Project, module: Module, table: str) -> list[Entry]:
    """``@register(HEADS, "mlp")``, where the decorator is given the table."""
    found: list[Entry] = []
    for each in [m for m in project.modules.values() if m is not None and table in m.top.bindings]:
        same = each is module or all(b.imported for b in each.top.bindings[table])
        owners: list[Class | Scope] = [*each.classes.values(), *each.functions.values()] if same else []
        for owner in owners:
            for head in getattr(owner.node, "decorator_list", ()):
                if isinstance(head, ast.Call) and any(unparsed(part) == table for part in head.args):
                    end = Use(each.top, len(each.top.statements), (), each.tree.body[-1])
                    named = ast.Name(getattr(owner.node, "name", ""), ast.Load())
                    found += _given_name(project, head, table, Source(named, end))
    return found


def _given_name(project: Project, head: ast.Call, table: str, source: Source) -> list[Entry]:
    things = project.things(head.func, source.use)
    maker = things[0].function if len(things) == 1 else None
    names = _filled_by(maker) if maker is not None else None
    if maker is None or names is None:
        return []
    given, key = (argument(head, maker, name) for name in names)
    if not isinstance(given, ast.Name) or given.id != table:
        return []
    name = key.value if isinstance(key, ast.Constant) else None
    return [(name, source)]


def _filled_by(maker: Scope) -> tuple[str, str] | None:
    """The parameters of a maker of decorators that are the table and the name in it."""
    for inner in maker.module.scopes:
        for use in inner.statements if inner.parent is maker else ():
            target = use.statement.targets[0] if isinstance(use.statement, ast.Assign) else None
            if not isinstance(target, ast.Subscript) or not isinstance(use.statement, ast.Assign):
                continue
            names, value = (unparsed(target.value), unparsed(target.slice)), use.statement.value
            plain = isinstance(value, ast.Name) and value.id in inner.params
            return names if plain and {*names} <= {*maker.params} else None
    return None


def _moved(scope: Scope, table: str) -> bool:
    """It puts something else in than what it is given."""
    values = [place.statement.value for _, place in _entries(table, scope)]  # type: ignore[attr-defined]
    return not all(isinstance(value, ast.Name) and value.id in scope.params for value in values)


def _named_above(project: Project, owner: Class | Scope, register: Scope, module: Module) -> list[Entry]:
    """The name that ``@register("mlp")`` gives, or the function's own."""
    node = owner.node
    found: list[Entry] = []
    if isinstance(node, ast.Module):
        return []
    for head in node.decorator_list:
        func = head.func if isinstance(head, ast.Call) else head
        end = Use(module.top, len(module.top.statements), (), module.tree.body[-1])
        things = project.things(func, end) if isinstance(func, ast.Name) else ()
        if len(things) == 1 and things[0].function is register:
            given = head.args[0] if isinstance(head, ast.Call) and len(head.args) == 1 else None
            name = given.value if isinstance(given, ast.Constant) else None if given is not None else node.name
            found.append((name, Source(ast.Name(node.name, ast.Load()), end)))
    return found


# --------------------------------------------------------------------------- calls of entries


def is_entry(func: ast.expr, module: Module) -> bool:
    """``MODELS[name]`` and ``MODELS.get(name)``, of a table that a file binds or imports."""
    if isinstance(func, ast.Call) and isinstance(func.func, ast.Attribute) and func.func.attr == "get" and func.args:
        table: ast.expr = func.func.value
    else:
        table = func.value if isinstance(func, ast.Subscript) and not isinstance(func.slice, ast.Slice) else func
    return table is not func and isinstance(table, ast.Name) and table.id in module.top.bindings
