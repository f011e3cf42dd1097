"""Calls of ``update`` that train nothing: of a scaler of float16 gradients, a progress bar, a metric."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Use
from flatline.readers.source._values import origins

SCALER = re.compile(r"torch\.(cuda\.)?amp\.(grad_scaler\.)?GradScaler")
COUNTS = re.compile(r"tqdm\..*|torchmetrics\..*")


def trains_nothing(project: Project, call: ast.Call, use: Use) -> bool:
    """``scaler.update()``, and ``bar.update(1)``."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr != "update":
        return False
    made = [thing.name for thing in project.things(func.value, use)] or _made_by(project, func.value, use)
    if made:
        return all(COUNTS.fullmatch(name) or (SCALER.fullmatch(name) and not call.args) for name in made)
    name = unparsed(func.value)
    asked = {unparsed(each.func) for each, _ in use.scope.calls if isinstance(each.func, ast.Attribute)}
    return not call.args and {f"{name}.scale", f"{name}.step"} <= asked


def _made_by(project: Project, node: ast.expr, use: Use) -> list[str]:
    """The functions that made it, as ``tqdm.tqdm``."""
    entered = list(_entered(node, use))
    found = [(each, use) for each in entered] or [(each.node, each.use) for each in origins(project, node, use)]
    names = [project.dotted(value.func, place) for value, place in found if isinstance(value, ast.Call)]
    return names if all(names) and len(names) == len(found) else []


def _entered(node: ast.expr, use: Use) -> Iterator[ast.expr]:
    """``tqdm(total=9)`` of ``with tqdm(total=9) as bar``."""
    name = node.id if isinstance(node, ast.Name) else ""
    for binding in use.scope.reaching(name, use) if name in use.scope.bindings else ():
        for item in getattr(binding.use.statement, "items", ()):
            if isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == name:
                yield item.context_expr
