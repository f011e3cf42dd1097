"""What an expression stands for: names, attributes, entries of tables, and what calls make."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flatline.readers.source import _values
from flatline.readers.source._called import called
from flatline.readers.source._names import all_of, imported
from flatline.readers.source._scopes import LAMBDA, Binding, Use
from flatline.readers.source._things import Thing
from flatline.readers.source._values import DEPTH, Source

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project


def stands_for(project: Project, node: ast.expr, use: Use, depth: int, index: tuple[int, ...]) -> tuple[Thing, ...]:
    if isinstance(node, ast.Name):
        return project.name(node.id, use, depth) if not index else ()
    if isinstance(node, ast.Attribute):
        return _attribute(project, node, use, depth) if not index else ()
    if isinstance(node, ast.IfExp):
        parts = [part for part in _values.chosen(project, node, use) if not _values.is_none(part)]
        both = [project.things(part, use, depth + 1, index) for part in parts]
        return tuple(thing for each in both for thing in each) if all(both) else ()
    if isinstance(node, ast.Tuple) and index and index[0] < len(node.elts):
        return project.things(node.elts[index[0]], use, depth + 1, index[1:])
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)) and index:
        part = _turn(project, node, index[0], use)
        return project.things(part, use, depth + 1, index[1:]) if part is not None else ()
    if isinstance(node, ast.Call):
        return called(project, node, use, depth, index)
    if isinstance(node, ast.Lambda) and not index:
        module = use.scope.module
        place = f"{module.text.path}:{node.lineno}:{node.col_offset}:{LAMBDA}"
        return (Thing(place, use, function=module.of_lambda(node, use)),)
    if isinstance(node, ast.Subscript) and not index and isinstance(node.slice, ast.Constant):
        if found := _entry(project, node.value, node.slice.value, use, depth + 1):
            return found
    return project.things_of(_values.sources(project, node, use, depth), depth) if not index else ()


def _turn(project: Project, node: ast.GeneratorExp | ast.ListComp, place: int, use: Use) -> ast.Call | None:
    """``loader("val")``, the second of ``(loader(s) for s in ("train", "val"))``."""
    (head, *more), call = node.generators, node.elt
    listed = head.iter.elts if isinstance(head.iter, (ast.Tuple, ast.List)) else []
    constant = place < len(listed) and isinstance(listed[place], ast.Constant)
    if more or head.ifs or not constant or not isinstance(call, ast.Call) or not isinstance(head.target, ast.Name):
        return None
    key = id(call), place
    if key not in project.turns:
        name, value = head.target.id, listed[place]
        args = [value if isinstance(a, ast.Name) and a.id == name else a for a in call.args]
        made = project.turns[key] = ast.copy_location(ast.Call(call.func, args, call.keywords), call)
        project.turned[id(made)] = made, use
    return project.turns[key]


def came_by(project: Project, thing: Thing) -> tuple[ast.Call, Use] | None:
    """The call of the function that made a thing, where the function is called more than once."""
    sites = {id(call): (call, use) for call, use in project.calls_of(thing.use.scope)}
    return next((known for place in thing.via if (known := sites.get(place) or project.turned.get(place))), None)


def things_of(project: Project, sources: Sequence[Source], depth: int) -> tuple[Thing, ...]:
    """The things that all of these expressions stand for."""
    found: list[Thing] = []
    for each in sources:
        inner = project.things(each.node, each.use, depth + 1)
        if not inner:
            return ()
        found += [replace(t, via=(*each.via, *t.via)) if each.via and t.call is not None else t for t in inner]
    return tuple({(t.name, t.identity()): t for t in found}.values())


def _entry(project: Project, node: ast.expr, key: object, use: Use, depth: int) -> tuple[Thing, ...]:
    """What a dictionary holds that is written out, and not written to."""
    if depth > DEPTH or not isinstance(key, str):
        return ()
    if isinstance(node, ast.Dict):
        found = [
            v for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant) and k.value == key
        ]
        return project.things(found[0], use, depth + 1) if len(found) == 1 and None not in node.keys else ()
    if isinstance(node, ast.DictComp):
        return tuple(
            replace(thing, via=(hash(key), *thing.via))
            for thing in project.things(node.value, use, depth + 1)
            if thing.call
        )
    if isinstance(node, ast.Call):
        default = project.dotted(node.func, use) == "collections.defaultdict" and len(node.args) == 1
        found_classes = project.things(node.args[0], use, depth + 1) if default else ()
        return tuple(Thing(t.name, use, node, t.made_of, via=(hash(key),)) for t in found_classes if t.made_of)
    bindings = project.holding(node, use, depth)
    each = [_entry(project, b.value, key, b.use, depth + 1) for b in bindings if b.value is not None and not b.index]
    if not each or len(each) != len(bindings) or not all(each) or project.written_to(node, use):
        return ()
    return tuple({(t.name, t.identity()): t for things in each for t in things}.values())


def holding(project: Project, node: ast.expr, use: Use, depth: int) -> list[Binding]:
    """The bindings of a name, or of an attribute of self."""
    if isinstance(node, ast.Name):
        return project.bindings_of(node.id, use)
    owner = project.class_behind(node.value, use, depth) if isinstance(node, ast.Attribute) else None
    return project.attributes(owner, node.attr) if owner is not None and isinstance(node, ast.Attribute) else []


def _attribute(project: Project, node: ast.Attribute, use: Use, depth: int) -> tuple[Thing, ...]:
    if (dotted := project.dotted(node, use)) and not project.is_local(node, use):
        return imported(project, dotted, use, depth)
    if node.attr == "module":
        return project.things(node.value, use, depth + 1)
    owner = project.class_behind(node.value, use, depth)
    found = all_of(project, node.attr, project.attributes(owner, node.attr), depth) if owner else ()
    return found or project.things_of(_values.sources(project, node, use, depth), depth)
