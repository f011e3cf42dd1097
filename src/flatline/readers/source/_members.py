"""Members of the enumerations of a project, as what a phase is: ``Stage.TRAIN``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Class, Use


@dataclass(frozen=True, slots=True)
class Member:
    """One of the values of an enumeration."""

    owner: Class
    name: str

    @property
    def written(self) -> object:
        """What it stands for, where that is written out."""
        found = self.owner.attributes[self.name][0].value
        return found.value if isinstance(found, ast.Constant) else None

    def answer(self, name: str) -> tuple[ast.expr, Use, str] | None:
        """What one of its properties gives back, where, and how it calls itself there."""
        method = self.owner.methods.get(name)
        given = method.returns if method is not None and method.marked("property", "cached_property") else []
        value, use = given[0] if len(given) == 1 else (None, None)
        plain = method is not None and method.own and value is not None and use is not None and not use.path
        return (value, use, method.own[0]) if plain else None  # type: ignore[union-attr,return-value]


def member(project: Project, node: ast.expr | None, use: Use) -> Member | None:
    """``Stage.TRAIN``."""
    things = project.things(node.value, use) if isinstance(node, ast.Attribute) else ()
    owner = things[0].made_of if len(things) == 1 and things[0].call is None else None
    is_enum = owner is not None and any(unparsed(base).endswith("Enum") for base in owner.node.bases)
    return _of(owner, node.attr) if owner is not None and is_enum and isinstance(node, ast.Attribute) else None


def beside(known: Iterable[object], node: ast.Attribute) -> Member | None:
    """Another one of the enumeration of one that is known, by the name of its class."""
    named = node.value.id if isinstance(node.value, ast.Name) else ""
    owners = [each.owner for each in known if isinstance(each, Member) and each.owner.node.name == named]
    return _of(owners[0], node.attr) if owners else None


def alike(left: object, right: object) -> bool:
    """Both are members, or neither: one may be equal to the word that it stands for."""
    each = [left, *(right if isinstance(right, tuple) else (right,))]
    members = [isinstance(one, Member) for one in each if one is not None]
    return all(members) or not any(members)


def _of(owner: Class, name: str) -> Member | None:
    return Member(owner, name) if len(owner.attributes.get(name, ())) == 1 else None
