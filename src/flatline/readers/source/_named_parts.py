"""Parts of an object that got a name: ``trunk = model.trunk`` and ``trunk = getattr(model, "trunk")``."""

from __future__ import annotations

import ast
from functools import cache

from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Binding


def part_behind(project: Project, binding: Binding) -> ast.Attribute | None:
    """``model.trunk``; None for what is no part of anything."""
    value = binding.value if not binding.index else None
    if isinstance(value, ast.Attribute):
        return value
    named = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "getattr"
    if not named or not isinstance(value, ast.Call) or len(value.args) != 2:
        return None
    word = project.constant(value.args[1], binding.use, strict=True)
    return _part(value, word.value) if word is not None and isinstance(word.value, str) else None


@cache
def _part(call: ast.Call, word: str) -> ast.Attribute:
    """``getattr(model, word)`` as it would be written with a point."""
    return ast.copy_location(ast.Attribute(call.args[0], word, ast.Load()), call)
