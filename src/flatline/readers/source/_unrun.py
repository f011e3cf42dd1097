"""Methods that no object runs, as the classes below put others in their place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from flatline.readers.source._concrete import method
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Class, Module, Scope


def text_of(project: Project, files: Sequence[Module], word: str) -> str:
    """The lines of some files, but for those with a word in methods that no object runs."""
    unrun = {place for each in files for place in _lines_unrun(project, each, files, word)}
    return "\n".join(
        line for each in files for number, line in enumerate(each.text.lines, 1) if (id(each), number) not in unrun
    )


def _lines_unrun(project: Project, module: Module, files: Sequence[Module], word: str) -> Iterator[tuple[int, int]]:
    for scope in module.scopes:
        if scope.owner is None or not any(_has(call.func, word) for call, _ in scope.calls):
            continue
        if is_unrun(project, scope, files):
            node = scope.node
            first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", 0)
            yield from ((id(module), number) for number in range(first, last + 1))


def is_unrun(project: Project, function: Scope, files: Sequence[Module]) -> bool:
    """Another method takes its place in every class of which objects are made, and nobody asks for it by its class."""
    owner, name = function.owner, getattr(function.node, "name", "")
    heirs = [*project.heirs(owner)] if owner is not None else []
    if owner is None or not heirs or _is_asked_for(owner, name, files):
        return False
    made = [each for each in (owner, *heirs) if _is_made(project, each)]
    return bool(made) and all(method(project, each, name) is not function for each in made)


def _is_asked_for(owner: Class, name: str, files: Sequence[Module]) -> bool:
    """``super().begin()`` and ``Base.begin(self)``."""
    asked = re.compile(rf"(super\([^)]*\)|\b{owner.node.name})\.{name}\b")
    return any(asked.search(line) for each in files for line in each.text.lines)


def _is_made(project: Project, owner: Class) -> bool:
    """Something mentions the class beside those that inherit from it, or a decorator is handed it."""
    if owner.node.decorator_list:
        return True
    written = re.compile(rf"\b{owner.node.name}\b(?!['\"])")
    known = re.compile(rf"^\s*(class |from |import )|\b{owner.node.name}\.")
    modules = [each for each in project.modules.values() if each is not None]
    return any(written.search(line) and not known.search(line) for each in modules for line in each.text.lines)


def _has(node: object, word: str) -> bool:
    return getattr(node, "attr", "") == word
