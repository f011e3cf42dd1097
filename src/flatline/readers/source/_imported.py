"""The files of the project that a file imports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module

FILES = 48  # that one file comes by, and those come by


def reached(project: Project, module: Module) -> list[Module]:
    """The module, and those of the project that it imports."""
    return project.recalled(module, "imports", lambda: _reached(project, module))


def _reached(project: Project, module: Module) -> list[Module]:
    found = {module.text.path: module}
    for name in _names(module):
        imported = project.module_of(name, module)
        if imported is not None:
            found.setdefault(imported.text.path, imported)
    return list(found.values())


def all_reached(project: Project, module: Module) -> list[Module]:
    """The same, with all that these import themselves."""
    return project.recalled(module, "all imports", lambda: _all_reached(project, module))


def _all_reached(project: Project, module: Module) -> list[Module]:
    found = {module.text.path: module}
    waiting = [module]
    while waiting and len(found) < FILES:
        for each in reached(project, waiting.pop()):
            if each.text.path not in found:
                found[each.text.path] = each
                waiting.append(each)
    return list(found.values())


def beside(project: Project, module: Module) -> list[Module]:
    """What may run together with a file: all that is imported by the files that import it, and by those that import these."""
    return project.recalled(module, "beside", lambda: _beside(project, module))


def _beside(project: Project, module: Module) -> list[Module]:
    everyone = [each for each in project.modules.values() if each is not None]
    found: dict[str, Module] = {}
    for each in everyone:
        files = all_reached(project, each)
        if any(one is module for one in files):
            found |= {one.text.path: one for one in files}
    return list(found.values())


def one_says(files: Iterable[Module], pattern: re.Pattern[str]) -> bool:
    """A file among some has what a pattern looks for."""
    return any(_says(each, pattern) for each in files)


@cache
def _says(module: Module, pattern: re.Pattern[str]) -> bool:
    return pattern.search(module.whole) is not None


@cache
def _names(module: Module) -> tuple[str, ...]:
    """The dotted names that may be modules of the project."""
    return tuple(dict.fromkeys(_imports(module)))


def _imports(module: Module) -> Iterator[str]:
    bindings = [b for scope in module.scopes for each in scope.bindings.values() for b in each if b.imported]
    for name in dict.fromkeys(binding.imported for binding in bindings):
        if name.startswith("torch"):
            continue
        for part in (name, name.rpartition(".")[0]):
            if part.strip("."):
                yield part
