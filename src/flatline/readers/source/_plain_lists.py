"""Layers in a list or dictionary of a module, which registers none of them."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._resolve import Project, Thing
from flatline.readers.source._scopes import Binding, Module, Scope, Use, plain_call, spelled
from flatline.readers.source._seen import is_module, is_module_class
from flatline.readers.source._values import Source, origins

OWN = re.compile(r"\bself\.(\w+)")
FILLED = re.compile(r"\bself\.(\w+)(?:\.append\(|\[[^\]]*\] = |(?:: [\w\[\]., ]+)? = )")


def plain_lists(project: Project, module: Module, methods: dict[str, Scope]) -> Iterator[SourceFact]:
    """Layers in a list or dictionary of a module, which registers none of them."""
    start, forward = methods.get("__init__"), methods.get("forward")
    if start is None or forward is None or start.owner is None:
        return
    if not is_module_class(project, start):
        return
    lists = {
        name: shown
        for name, bindings in start.owner.attributes.items()
        if (shown := _list_of(project, bindings, start))
    }
    if not lists:
        return
    text, run = ast.unparse(start.node), Counter(_learning(forward.node))
    ran = Counter(OWN.findall(ast.unparse(forward.node)))
    whole, made = Counter(OWN.findall(ast.unparse(start.owner.node))), Counter(OWN.findall(text))
    filled, added = Counter(FILLED.findall(text)), _appended(start)
    for attribute, (binding, listed) in lists.items():
        only = made[attribute] == filled[attribute] and "add_module" not in text and "setattr" not in text
        if not only or not run[attribute] or whole[attribute] > ran[attribute] + made[attribute]:
            continue
        layers = [layer for layer in (*listed, *added.get(attribute, ())) if _parametric(project, *layer)]
        if layers:
            yield SourceFact(
                kind="plain dict" if isinstance(binding.value, (ast.Dict, ast.DictComp)) else "plain list",
                name=attribute,
                text=spelled(layers[0][0]),
                where=module.where(binding.use.statement, start),
            )


def _learning(forward: ast.AST) -> Iterator[str]:
    """The attributes of self that a forward asks for outside of no_grad, once each time."""
    heads = [n for n in ast.walk(forward) if isinstance(n, ast.With) and "no_grad" in ast.unparse(n.items[0])]
    off = {id(inner) for head in heads for inner in ast.walk(head)}
    for node in ast.walk(forward):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node) not in off:
            yield from [node.attr] if node.value.id == "self" else []


def _list_of(
    project: Project, bindings: list[Binding], start: Scope
) -> tuple[Binding, list[tuple[ast.expr, Use]]] | None:
    """The one list that an attribute is given, and what it begins with."""
    (binding, *more) = bindings
    value, held = _unlisted(binding.value), []
    if more or binding.use.scope is not start or binding.index:
        return None
    source = binding.use
    if isinstance(value, ast.Name):
        found = start.reaching(value.id, source) if value.id in start.bindings else []
        held = _put_into(start, value.id)
        if len(found) != 1 or _loads(start.node, value.id) != len(held) + 1:
            return None  # it is given to something else, too, which may register what it holds
        value, source = found[0].value, found[0].use
    value = _unlisted(value)
    if isinstance(value, ast.Call) and len(made := origins(project, value, source)) == 1:
        held += _filled_by(project.callee(value, source), made[0])
        value, source = made[0].node, made[0].use
    value = _unlisted(value)
    if isinstance(value, (ast.List, ast.Tuple)):
        return binding, [*((element, source) for element in value.elts), *held]
    if isinstance(value, ast.Dict):
        return binding, [*((element, source) for element in value.values), *held]
    if isinstance(value, ast.DictComp):
        return binding, [(value.value, source)]
    return (binding, [(value.elt, source), *held]) if isinstance(value, (ast.ListComp, ast.GeneratorExp)) else None


def _unlisted(value: ast.expr | None) -> ast.expr | None:
    """``blocks`` in ``list(blocks)``."""
    plain = isinstance(value, ast.Call) and ast.unparse(value.func) in ("list", "tuple") and len(value.args) == 1
    return value.args[0] if plain and isinstance(value, ast.Call) else value


def _put_into(scope: Scope, name: str) -> list[tuple[ast.expr, Use]]:
    """What a function puts into a list or dictionary."""
    found = [(c.args[0], use) for c, use in scope.calls if ast.unparse(c.func) == f"{name}.append" and c.args]
    for use in scope.statements:
        target = use.statement.targets[0] if isinstance(use.statement, ast.Assign) else None
        if isinstance(target, ast.Subscript) and ast.unparse(target.value) == name:
            found.append((use.statement.value, use))  # type: ignore[attr-defined]
    return found


def _filled_by(function: Scope | None, made: Source) -> list[tuple[ast.expr, Use]]:
    """What a function puts into what it returns, if it does nothing else with it."""
    names = {value.id for value, _ in function.returns if isinstance(value, ast.Name)} if function is not None else ()
    name = next(iter(names), "")
    if function is None or len(names) != 1 or len(function.returns) != 1 or made.use.scope is not function:
        return []
    found = _put_into(function, name)
    return found if _loads(function.node, name) == len(found) + 1 else []


def _loads(node: ast.AST, name: str) -> int:
    return sum(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in ast.walk(node))


def _appended(start: Scope) -> dict[str, list[tuple[ast.expr, Use]]]:
    """What is put into lists later, by attribute."""
    found: dict[str, list[tuple[ast.expr, Use]]] = {}
    for call, use in start.calls:
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr == "append" and isinstance(func.value, ast.Attribute):
            if call.args and isinstance(func.value.value, ast.Name) and func.value.value.id == "self":
                found.setdefault(func.value.attr, []).append((call.args[0], use))
    for node, use in ((use.statement, use) for use in start.statements):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Subscript):
            if (held := ast.unparse(target.value)).startswith("self."):
                found.setdefault(held.removeprefix("self."), []).append((node.value, use))
    return found


def _parametric(project: Project, node: ast.expr, use: Use) -> bool:
    things, made = project.things(node, use), plain_call(node) if isinstance(node, ast.Call) else node
    return bool(things) and all(_is_made_by(t, made) and is_module(project, t) for t in things)


def _is_made_by(thing: Thing, node: ast.expr) -> bool:
    """By a call itself, by the function that it calls, or with what ``partial()`` added to it."""
    place = operator.attrgetter("lineno", "col_offset", "end_lineno", "end_col_offset")
    merged = thing.call is not None and isinstance(node, ast.Call) and place(thing.call) == place(node)
    return thing.call is node or thing.via[:1] == (id(node),) or merged
