"""Objects that hold what they were made with: dataclasses, named tuples and bags of names."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flatline.readers.source._scopes import Class, Use

if TYPE_CHECKING:
    from flatline.readers.source._resolve import Project
    from flatline.readers.source._things import Thing

BAGS = {"types.SimpleNamespace", "argparse.Namespace"}
REMADE = re.compile(r"\breplace\(|__dict__|\bsetattr\(|\bcls\(|\bfrom_dict\(|\*\*")


def fields(project: Project, node: ast.Call, use: Use) -> Mapping[str, ast.expr]:
    """What a call gives the fields of the record that it makes; nothing if it makes none."""
    if any(k.arg is None for k in node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
        return {}
    named = {k.arg: k.value for k in node.keywords if k.arg is not None}
    if isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        return named
    things = project.things(node, use)
    thing = things[0] if len(things) == 1 and things[0].call is node else None
    if thing is None or (thing.name not in BAGS and not _is_plain(thing.made_of)):
        return {}
    listed = [*thing.made_of.fields] if thing.made_of is not None else []
    return {**dict(zip(listed, node.args, strict=False)), **named}


def _is_plain(owner: Class | None) -> bool:
    """A record that keeps its fields as they are given."""
    return owner is not None and owner.is_record and "__post_init__" not in owner.methods


def parts(project: Project, node: ast.expr | None, use: Use) -> Sequence[ast.expr]:
    """What a tuple, a dictionary or a record is made of."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return node.elts
    if isinstance(node, ast.Dict):
        return node.values
    return [*fields(project, node, use).values()] if isinstance(node, ast.Call) else []


def built(project: Project, owner: Class) -> Sequence[Thing]:
    """The objects that all calls of a record's class make; nothing where it may be made in other ways, or changed."""
    text = "\n".join(owner.module.text.lines[owner.node.lineno - 1 : owner.node.end_lineno])
    if not _is_plain(owner) or REMADE.search(text) is not None or any(True for _ in project.heirs(owner)):
        return []
    made = [thing for call, use in project.calls.under(owner.node.name) for thing in project.things(call, use)]
    return [thing for thing in made if thing.made_of is owner and thing.call is not None]


def own_field(project: Project, owner: Class, name: str) -> Sequence[Thing]:
    """The objects behind ``self.name`` in a record that nothing gives the field another value."""
    changed = project.attributes(owner, name) or project.set_from_outside(name, owner.module)
    return built(project, owner) if name in owner.fields and not changed else []
