"""The hooks that a call runs, itself or as the method that it calls hands an event on: ``self.emit("epoch_end")``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.readers.source._arguments import argument
from flatline.readers.source._dispatch import each_of, goes_through_objects, is_likely
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Scope, Use


def heard(project: Project, call: ast.Call, use: Use) -> Iterator[Scope]:
    """The methods of callbacks, in their order."""
    function = project.callee(call, use)
    if function is None:
        yield from (run.function for run in each_of(project, call, use, {})) if is_likely(call, use) else ()
        return
    given = [(name, argument(call, function, name)) for name in function.params]
    keys = {name: repr(node.value) for name, node in given if isinstance(node, ast.Constant)}
    for inner, place in function.calls:
        if is_likely(inner, place) and project.callee(inner, place) is None:
            yield from (run.function for run in each_of(project, inner, place, keys))


def is_over_hooks(project: Project, loop: ast.stmt, scope: Scope) -> bool:
    """A loop over callbacks, and not over data or epochs."""
    use = next((each for each in scope.statements if each.statement is loop), None)
    return use is not None and goes_through_objects(project, use)
