"""Settings that stages give in turn, as in ``for stage in STAGES: thaw(model.body, stage.trains_body)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from flatline.readers.source._loaders import goes_backward
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Binding, Use, lies_in
from flatline.readers.source._stages import comes_once
from flatline.readers.source._values import Source, field_of, held

CALLS = 4  # from a loop over stages to what a setting is for
STAGES = 6  # of a training
Way: TypeAlias = tuple[str | int, ...]  # from a stage to one of its settings


def goes_off(project: Project, flag: ast.expr, use: Use, built: Use) -> bool:
    """True in the first stage and False in a later one, which go on with the optimizer that was built before."""
    for place, values in _in_turn(project, flag, use, (), 0):
        loop = place.statement
        known = bool(values) and all(isinstance(each, bool) for each in values)
        if known and values[0] is True and False in values and isinstance(loop, ast.For):
            apart = built.scope is not place.scope or not lies_in(built.statement, loop)
            if apart and comes_once(project, built) and goes_backward(project, place.scope, loop, 0, {}):
                return True
    return False


def _in_turn(project: Project, node: ast.expr, use: Use, way: Way, depth: int) -> Iterator[tuple[Use, list[object]]]:
    """The loops over stages that a setting comes from, and what it is in each turn."""
    if isinstance(node, ast.Attribute):
        yield from _in_turn(project, node.value, use, (node.attr, *way), depth)
    elif (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, (str, int))
    ):
        yield from _in_turn(project, node.value, use, (node.slice.value, *way), depth)
    name = node.id if isinstance(node, ast.Name) else ""
    found = use.scope.reaching(name, use) if name in use.scope.bindings else []
    for bound in found if len(found) == 1 and depth < CALLS else ():
        if bound.parameter:
            for value, site in project.given(name, bound.use):
                yield from _in_turn(project, value, site, way, depth + 1)
        elif isinstance(bound.use.statement, ast.For):
            yield bound.use, [_setting(project, *each) for each in _stages(project, bound, way)]


def _stages(project: Project, bound: Binding, way: Way) -> Iterator[tuple[Source, Way]]:
    """What a loop goes through, and the way from there."""
    head, inner = bound.use.statement.iter, (*bound.index, *way)  # type: ignore[attr-defined]
    if isinstance(head, ast.Call) and isinstance(head.func, ast.Name) and head.func.id == "enumerate" and head.args:
        head, inner = head.args[0], inner[1:]
    listed = held(project, head, None, replace(bound.use, path=bound.use.path[:-1]), 0)
    yield from ((each, inner) for each in listed if 1 < len(listed) <= STAGES)


def _setting(project: Project, stage: Source, way: Way) -> object:
    """A constant, at the end of a way through records, tables and tuples."""
    for step in way:
        things = project.things(stage.node, stage.use) if isinstance(step, str) else ()
        if len(things) == 1 and isinstance(step, str):
            found = field_of(project, things[0], step)
        else:
            found = held(project, stage.node, ast.Constant(step), stage.use, 0)
        if len(found) != 1:
            return None
        stage = found[0]
    known = project.constant(stage.node, stage.use)
    return known.value if known is not None else None
