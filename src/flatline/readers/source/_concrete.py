"""Objects by the class that they are made of: which method runs where a class below takes the place of one above."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flatline.readers.source._arguments import argument
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Class, Scope, Use
from flatline.readers.source._values import is_super

HEIRS = 6  # classes below one; of more, none is looked at alone


@dataclass(frozen=True, slots=True)
class Selves:
    """The class of a method's own object, and those of the objects that a function is handed, by name."""

    own: Class | None = None
    handed: Mapping[str, Class] = field(default_factory=dict)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal classes."""
        return (id(self.own), *((name, id(each)) for name, each in sorted(self.handed.items())))

    def of(self, node: ast.expr | None, use: Use) -> Class | None:
        """The class of what ``self``, or a parameter, stands for."""
        if not isinstance(node, ast.Name):
            return None
        return self.own if use.scope.own == (node.id,) else self.handed.get(node.id)


NOBODY = Selves()


def order(project: Project, owner: Class) -> Sequence[Class]:
    """The classes that a method is looked for in, one after the other, as Python does it."""
    return project.recalled(owner, "order", lambda: _order(project, owner))


def _order(project: Project, owner: Class) -> list[Class]:
    every = [*project.bases(owner)]
    last = {id(each): place for place, each in enumerate(every)}
    return [each for place, each in enumerate(every) if last[id(each)] == place]


def method(project: Project, owner: Class, name: str) -> Scope | None:
    """The one that an object of a class answers with."""
    return next((each.methods[name] for each in order(project, owner) if name in each.methods), None)


def runs(project: Project, call: ast.Call, use: Use, selves: Selves) -> Scope | None:
    """The method that a call runs for these objects; None where their classes say nothing."""
    func = call.func
    if not isinstance(func, ast.Attribute):
        return None
    if is_super(func.value):
        line = order(project, selves.own) if selves.own is not None else ()
        at = next((n for n, each in enumerate(line) if each is use.scope.owner), len(line))
        return next((each.methods[func.attr] for each in line[at + 1 :] if func.attr in each.methods), None)
    owner = selves.of(func.value, use)
    return method(project, owner, func.attr) if owner is not None else None


def within(
    project: Project, function: Scope, call: ast.Call, use: Use, selves: Selves, known: Class | None = None
) -> Selves:
    """The same for what a function knows that is called, perhaps on an object of a known class."""
    func = call.func
    receiver = func.value if isinstance(func, ast.Attribute) else None
    own = selves.own if receiver is not None and is_super(receiver) else selves.of(receiver, use)
    own = known or own
    if own is None and receiver is not None and function.owner is not None:
        own = project.class_of(receiver, use)
    if own is not None and (function.owner is None or function.owner not in order(project, own)):
        own = None
    given = {name: argument(call, function, name) for name in function.params}
    handed = {name: found for name, node in given.items() if (found := selves.of(node, use)) is not None}
    return Selves(own, handed)


def overriding(project: Project, function: Scope) -> Sequence[Scope]:
    """What the classes below put in the place of a method."""
    name = getattr(function.node, "name", "")
    heirs = project.heirs(function.owner) if function.owner is not None else ()
    return list({id(m): m for heir in heirs if (m := heir.methods.get(name)) is not None}.values())


def lowest(project: Project, scope: Scope) -> Sequence[Class]:
    """The classes below that of a method which put something in the place of what it may call; none of too many."""
    heirs = {id(each): each for each in project.heirs(scope.owner)} if scope.owner is not None else {}
    if not heirs or len(heirs) > HEIRS or scope.owner is None:
        return []
    above = {name for each in order(project, scope.owner) for name in each.methods}
    found = [
        each for each in heirs.values() if not any(each is not h and each in project.bases(h) for h in heirs.values())
    ]
    return [each for each in found if above & _own(project, each, scope.owner)]


def _own(project: Project, heir: Class, owner: Class) -> set[str]:
    """The methods that it has itself, or gets from classes before the other one."""
    line = order(project, heir)
    return (
        {name for each in line[: line.index(owner)] for name in each.methods} - {"__init__"} if owner in line else set()
    )
