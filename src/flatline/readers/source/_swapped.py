"""Layers that something replaces once the model is made: what a loss is fed by is then not what the class says."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from flatline.readers.source._forward_hooks import gives_another
from flatline.readers.source._imported import beside, one_says
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._scopes import Class

if TYPE_CHECKING:
    from flatline.readers.source._made import Made
    from flatline.readers.source._resolve import Project

OTHERS = re.compile(r"\b(Identity|LogSoftmax)\b")
SWAPS = re.compile(  # by a name or a place that is worked out
    r"setattr\(\s*(?!self\b)\w+\s*,|_modules\[|\.add_module\(|set_submodule\(|\w\[[^\]]+\]\s*=\s*(?:torch\.)?nn\.\w+\("
)
ANOTHER = re.compile(r"\b(?!self\b)\w+\.forward\s*=(?!=)")
TAKES_OUT = re.compile(r"\bdel (?!self\b)\w+\[|\b(?!self\b)\w+\.pop\((?!0\))-?\d+\)")


def is_swapped(project: Project, made: Made) -> bool:
    """Something outside of the class, or a class below, gives the layer's name another value, or may do so."""
    files = beside(project, made.use.scope.module)
    if any(one_says([each], SWAPS) and one_says([each], OTHERS) for each in files) or one_says(files, ANOTHER):
        return True
    if any(gives_another(project, each) for each in files):
        return True
    if "Sequential" in unparsed(made.use.statement) and one_says(files, TAKES_OUT):
        return True
    owner = made.use.scope.owner
    names = _names(owner, made) if owner is not None else set[str]()
    below = [heir for heir in project.heirs(owner) if names & heir.attributes.keys()] if owner is not None else []
    return bool(below) or any(project.set_from_outside(name, each) for name in names for each in files)


def _names(owner: Class, made: Made) -> set[str]:
    """The attributes that hold the layer, or are called."""
    held = {
        name
        for name, bound in owner.attributes.items()
        for each in bound
        if each.value is not None and any(inner is made.node for inner in walk(each.value))
    }
    func = made.node.func if isinstance(made.node, ast.Call) else None
    own = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self"
    return held | ({func.attr} if own and isinstance(func, ast.Attribute) else set())
