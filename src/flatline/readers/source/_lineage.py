"""Classes, those above and below them, and what they have of each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._scopes import Binding, Class, Scope
from flatline.readers.source._values import DEPTH

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project


def bases(project: Project, owner: Class, depth: int = 0) -> Iterator[Class]:
    """The class and those of the project that it inherits from."""
    yield owner
    for base in owner.node.bases if depth < 6 else ():
        for thing in project.things(base, owner.use, DEPTH - 4):
            if thing.made_of is not None and thing.call is None and thing.made_of is not owner:
                yield from project.bases(thing.made_of, depth + 1)


def attributes(project: Project, owner: Class, name: str) -> list[Binding]:
    """The assignments to an attribute of self; of a mixin, those of the classes that it is mixed into."""
    found = [b for each in project.bases(owner) for b in each.attributes.get(name, ())]
    mixed = {id(c): c for heir in project.heirs(owner) for c in project.bases(heir)} if not found else {}
    return found or [b for each in mixed.values() for b in each.attributes.get(name, ())]


def heirs(project: Project, owner: Class, depth: int = 0) -> Iterator[Class]:
    """The classes of the project that inherit from one."""
    for heir in project.inheriting.get(owner.node.name, ()) if depth < 4 else ():
        if heir is not owner and any(each is owner for each in project.bases(heir)):
            yield heir
            yield from project.heirs(heir, depth + 1)


def filled_in(project: Project, owner: Class, method: Scope) -> Scope:
    """What the one class that inherits from it puts in the place of an abstract method."""
    if not is_abstract(method):
        return method
    name = getattr(method.node, "name", "")
    found = {id(m): m for heir in project.heirs(owner) if (m := heir.methods.get(name)) is not None}
    return next(iter(found.values())) if len(found) == 1 else method


def method(project: Project, owner: Class, name: str) -> Scope | None:
    """The method, perhaps inherited."""
    return next((each.methods[name] for each in project.bases(owner) if name in each.methods), None)


def is_abstract(function: Scope) -> bool:
    """It raises, or does nothing at all."""
    body = [u.statement for u in function.statements if not _is_text(u.statement)]
    first = body[0] if body else None
    raises = isinstance(first, ast.Raise) and "NotImplemented" in unparsed(first)
    return function.marked("abstractmethod") or (len(body) == 1 and (raises or isinstance(first, ast.Pass))) or not body


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
