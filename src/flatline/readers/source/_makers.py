"""What an object was given, whose method made a thing: ``Loading(root, shuffle=True).build()``."""

from __future__ import annotations

import ast

from flatline.readers.source._arguments import argument, default
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._things import Thing
from flatline.readers.source._values import Source, field_of


def of_its_object(project: Project, node: ast.expr | None, thing: Thing) -> Source | None:
    """What ``self.shuffle`` is in the one call that made the object."""
    scope = thing.use.scope
    if not isinstance(node, ast.Attribute) or scope.own != (unparsed(node.value),) or scope.owner is None:
        return None
    known = project.came_by(thing)
    func = known[0].func if known is not None else None
    makers = project.things(func.value, known[1]) if known is not None and isinstance(func, ast.Attribute) else ()
    maker = makers[0] if len(makers) == 1 and makers[0].call is not None else None
    if maker is None or maker.made_of is None or project.set_from_outside(node.attr, scope.module):
        return None
    if maker.made_of.is_record:
        fields = field_of(project, maker, node.attr) if not project.attributes(maker.made_of, node.attr) else ()
        return fields[0] if len(fields) == 1 else None
    return _kept_at_start(project, maker, node.attr)


def _kept_at_start(project: Project, maker: Thing, name: str) -> Source | None:
    """``self.shuffle = shuffle`` in ``__init__``, and nothing else."""
    owner, call = maker.made_of, maker.call
    start, found = (project.method(owner, "__init__"), project.attributes(owner, name)) if owner else (None, [])
    value = found[0].value if len(found) == 1 and not found[0].index and found[0].use.scope is start else None
    if start is None or call is None or not isinstance(value, ast.Name) or value.id not in start.params:
        return None
    if any(not each.parameter for each in start.bindings[value.id]) or any(k.arg is None for k in call.keywords):
        return None
    given = argument(call, start, value.id)
    usual = default(start, value.id)
    if given is not None:
        return Source(given, maker.use)
    return Source(usual, found[0].use) if usual is not None else None
