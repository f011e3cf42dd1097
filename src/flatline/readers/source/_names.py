"""What a name stands for: its bindings, and what imports stand for in other files of the project."""

from __future__ import annotations

import ast
import os
from typing import TYPE_CHECKING

from flatline.readers.source import _managed, _values
from flatline.readers.source._given import parameter
from flatline.readers.source._scopes import Binding, Module, Use, bindings_at
from flatline.readers.source._things import Thing, plain_name
from flatline.readers.source._values import DEPTH, Source

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project


ABOVE = 6  # folders in which an import is looked for


def dotted(node: ast.expr, use: Use) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    found = bindings_at(node.id, use)
    names = {binding.imported for binding in found}
    if len(names) != 1 or not (name := names.pop()):
        return ""
    return plain_name(".".join([name, *parts[::-1]]))


def module_of(project: Project, dotted: str, near: Module) -> Module | None:
    """The file of the project that an import names."""
    folder = os.path.dirname(near.text.path)
    if (dotted, folder) not in project.files:
        beside = os.path.join(folder, *dotted.lstrip(".").split(".")) + ".py"
        project.files[dotted, folder] = beside if beside in project.modules else _file_of(dotted, folder)
    path = project.files[dotted, folder]
    return project.load(path) if path else None


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


def imported(project: Project, dotted: str, use: Use, depth: int) -> tuple[Thing, ...]:
    """What an import of the project names, or the dotted name itself."""
    if dotted.startswith("torch."):
        return (Thing(plain_name(dotted), use),)
    head, _, last = dotted.rpartition(".")
    module = project.module_of(head, use.scope.module) if head.strip(".") or head else None
    if module is None and head and set(head) == {"."}:
        module = project.module_of(dotted, use.scope.module)
    if module is None or depth > DEPTH:
        return (Thing(plain_name(dotted), use),)
    end = Use(module.top, len(module.top.statements), (), module.tree.body[-1]) if module.tree.body else use
    return project.name(last, end, depth + 1) or ()


def elsewhere(project: Project, dotted: str, use: Use) -> Source | None:
    """The name that an import stands for, where another file of the project binds it."""
    head, _, last = dotted.rpartition(".")
    module = project.module_of(head, use.scope.module) if head and not dotted.startswith("torch.") else None
    if module is None or not module.tree.body or last not in module.top.bindings:
        return None
    if (id(module), last) not in project.ends:
        end = Use(module.top, len(module.top.statements), (), module.tree.body[-1])
        project.ends[id(module), last] = Source(ast.Name(last, ast.Load()), end)
    return project.ends[id(module), last]


def named(project: Project, name: str, use: Use, depth: int = 0) -> tuple[Thing, ...]:
    """All things that a name may stand for; nothing if one of them is unknown."""
    if name in use.scope.masked.get(id(use.statement), ()):
        return ()
    found = project.bindings_of(name, use)
    return all_of(project, name, found, depth) if found else _starred(project, name, use, depth)


def all_of(project: Project, name: str, bindings: list[Binding], depth: int) -> tuple[Thing, ...]:
    things: dict[tuple[str, str], Thing] = {}
    for binding in bindings:
        if binding.value is not None and _values.is_none(binding.value):
            continue
        found = (
            parameter(project, name, binding.use, depth) if binding.parameter else _bound(project, binding, depth + 1)
        )
        if not found:
            return ()
        things |= {(thing.name, thing.identity()): thing for thing in found}
    return tuple(things.values())


def _bound(project: Project, binding: Binding, depth: int) -> tuple[Thing, ...]:
    use = binding.use
    if binding.definition is not None:
        module = use.scope.module
        made, function = module.classes.get(id(binding.definition)), module.functions.get(id(binding.definition))
        name = getattr(binding.definition, "name", "")
        return (Thing(f"{module.text.path}:{name}", use, made_of=made, function=function),)
    if binding.imported:
        return imported(project, binding.imported, use, depth)
    if binding.value is None:
        return project.things_of(_managed.entered(project, binding), depth)
    return project.things(binding.value, use, depth, binding.index)


def _starred(project: Project, name: str, use: Use, depth: int) -> tuple[Thing, ...]:
    for star in use.scope.module.stars:
        module = project.module_of(star, use.scope.module) if depth < DEPTH else None
        if module is not None and module.tree.body:
            end = Use(module.top, len(module.top.statements), (), module.tree.body[-1])
            if found := project.name(name, end, depth + 1):
                return found
    return ()


def is_local(node: ast.expr, use: Use) -> bool:
    """Whether the first name is bound by something else than an import."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return not isinstance(node, ast.Name) or not all(b.imported for b in bindings_at(node.id, use))
