"""Models beside the one that trains: a teacher, or a network that a loss looks through, whose mode says nothing of it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from flatline.readers.source._nodes import walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use
from flatline.readers.source._seen import OTHER_MODE, seen_in
from flatline.readers.source._things import Thing


def of_others(project: Project, module: Module, lines: Collection[int], trained: Sequence[Thing]) -> set[int]:
    """Those of the lines about modes on which nothing happens but that models which do not train are put in eval mode."""
    calls = _evals(project, module)
    return {n for n in lines if _only(project, module, n, calls.get(n, []), trained)}


def of_siblings(project: Project, module: Module, lines: Collection[int], model: Thing) -> set[int]:
    """Those on which models are put in eval mode that were made beside another one, by the same function."""
    calls, found = _evals(project, module), of_others(project, module, lines, [model])
    return {n for n in found if all(_is_beside(project, *pair, model) for pair in calls[n])}


def _is_beside(project: Project, call: ast.Call, use: Use, model: Thing) -> bool:
    things = project.things(call.func.value, use) if isinstance(call.func, ast.Attribute) else ()
    return bool(things) and all(each.use.scope is model.use.scope for each in things)


def _evals(project: Project, module: Module) -> dict[int, list[tuple[ast.Call, Use]]]:
    """The calls of eval(), by their lines."""
    calls: dict[int, list[tuple[ast.Call, Use]]] = {}
    for scope in module.scopes:
        for call, _, use in seen_in(project, scope).methods("eval"):
            calls.setdefault(_ends_at(call), []).append((call, use))
    return calls


def _ends_at(call: ast.Call) -> int:
    """The line of ``.eval``."""
    func = call.func
    return func.end_lineno or func.lineno


def _only(
    project: Project, module: Module, line: int, calls: Sequence[tuple[ast.Call, Use]], trained: Sequence[Thing]
) -> bool:
    """All that the line says of modes is ``teacher.eval()``."""
    said = len(OTHER_MODE.findall(module.text.lines[line - 1]))
    return said == len(calls) > 0 and all(_is_other(project, call, use, trained) for call, use in calls)


def _is_other(project: Project, call: ast.Call, use: Use, trained: Sequence[Thing]) -> bool:
    node = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    things = project.things(node, use)
    while not things and isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
        things = project.things(node, use) if not _is_own(node, use.scope) else ()
    known = bool(things) and not call.args and all(t.call is not None for t in things)
    return known and not any(_same(one, other) or _holds(project, one, other) for one in things for other in trained)


def _is_own(node: ast.expr, scope: Scope) -> bool:
    return isinstance(node, ast.Name) and scope.own == (node.id,)


def _same(one: Thing, other: Thing) -> bool:
    """Perhaps one object: the same call made both."""
    return one.call is other.call


def _holds(project: Project, one: Thing, other: Thing) -> bool:
    """A model that was given the other, or made it itself."""
    inside = [n for n in walk(one.call) if isinstance(n, (ast.Name, ast.Call))] if one.call is not None else []
    given = any(_same(t, other) for node in inside if node is not one.call for t in project.things(node, one.use))
    return given or (one.made_of is not None and other.use.scope.owner in [*project.bases(one.made_of)])
