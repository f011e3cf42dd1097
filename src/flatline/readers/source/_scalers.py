"""Scalers of float16 gradients, by where they come from or by what is done with them."""

from __future__ import annotations

import ast
import re

from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Use

SCALER = re.compile(r"torch\.(cuda\.)?amp\.(grad_scaler\.)?GradScaler")


def updates_scale(project: Project, call: ast.Call, use: Use) -> bool:
    """``scaler.update()``, which trains nothing."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr != "update" or call.args:
        return False
    things = project.things(func.value, use)
    if things:
        return all(SCALER.fullmatch(thing.name) for thing in things)
    name = ast.unparse(func.value)
    asked = {ast.unparse(each.func) for each, _ in use.scope.calls if isinstance(each.func, ast.Attribute)}
    return {f"{name}.scale", f"{name}.step"} <= asked
