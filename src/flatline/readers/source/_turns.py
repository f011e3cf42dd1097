"""Loops that train in one phase and score in another: ``for phase in ("train", "val")``, ``run(loader, train=False)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flatline.readers.source._arguments import argument
from flatline.readers.source._nodes import walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._rounds import OBJECT, Known, is_left_out, told, truth
from flatline.readers.source._scopes import ENDS, Binding, Scope, Use, lies_in
from flatline.readers.source._things import Thing
from flatline.readers.source._values import held, origins

CALLS = 12  # of a function that are told apart
STEPS = 6  # from a name to its value


@dataclass(frozen=True, slots=True)
class Turn:
    """A phase that a loop over batches is in."""

    loaders: Sequence[Thing]
    settings: Known = field(default_factory=dict)


def turns(project: Project, node: ast.expr, use: Use) -> Sequence[Turn]:
    """The loaders that a loop goes through, by phase; nothing if there is one phase alone."""
    around = _rounds(project, use)
    if around:
        return [Turn(things_in(project, node, use, settings), settings) for settings in around]
    if not _from_outside(node, use.scope):
        return []
    found: list[Turn] = []
    for call, site in project.calls_of(use.scope)[: CALLS + 1]:
        for outer in _rounds(project, site) or [{}]:
            inner = told(project, use.scope, call, site, outer)
            found.append(Turn(_handed(project, node, use, call, site, inner, outer), inner))
    return found if 1 < len(found) <= CALLS else []


def _rounds(project: Project, use: Use) -> Sequence[Known]:
    """``{"phase": "train"}`` and ``{"phase": "val"}``, of the innermost loop over names that are written out."""
    loops = {id(u.statement): u.statement for u in use.scope.statements if isinstance(u.statement, ast.For)}
    for block, part in reversed(use.path):
        loop = loops.get(block) if part == "body" else None
        if loop is None or loop is use.statement or not isinstance(loop.target, ast.Name):
            continue
        listed = _listed(project, loop.iter, use)
        if len(listed) > 1:
            return [{loop.target.id: each.value} for each in listed]
    return []


def _listed(project: Project, node: ast.expr, use: Use) -> Sequence[ast.Constant]:
    """Names that are written out, here or where a list got its name."""
    found = origins(project, node, use) if isinstance(node, (ast.Name, ast.Attribute)) else []
    made = found[0].node if len(found) == 1 else node
    parts = made.elts if isinstance(made, (ast.List, ast.Tuple)) else []
    plain = [each for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, (str, bool))]
    return plain if len(plain) == len(parts) else []


def _from_outside(node: ast.expr, scope: Scope) -> bool:
    """It depends on what a call gives."""
    return any(isinstance(n, ast.Name) and n.id in scope.params for n in walk(node)) and scope.parent is not None


def _handed(
    project: Project, node: ast.expr, use: Use, call: ast.Call, site: Use, inner: Known, outer: Known
) -> Sequence[Thing]:
    """The loaders behind a parameter, as one call gives it."""
    given = argument(call, use.scope, node.id) if isinstance(node, ast.Name) and _is_parameter(node.id, use) else None
    if given is not None:
        return things_in(project, given, site, outer)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and _is_parameter(node.value.id, use):
        table, key = argument(call, use.scope, node.value.id), _key(node.slice, inner)
        return _held(project, table, key, site) if table is not None and key is not None else ()
    return things_in(project, node, use, inner)


def _is_parameter(name: str, use: Use) -> bool:
    return name in use.scope.params and [b.parameter for b in use.scope.bindings.get(name, ())] == [True]


def things_in(project: Project, node: ast.expr, use: Use, settings: Known, depth: int = 0) -> Sequence[Thing]:
    """What an expression stands for in a phase."""
    if isinstance(node, ast.Subscript) and (key := _key(node.slice, settings)) is not None:
        return _held(project, node.value, key, use)
    if isinstance(node, ast.IfExp) and (taken := truth(node.test, settings, use)) is not None:
        return things_in(project, node.body if taken else node.orelse, use, settings, depth + 1)
    if isinstance(node, ast.Name) and depth < STEPS:
        known = use.scope.reaching(node.id, use) if node.id in use.scope.bindings else []
        found = [b for b in known if not is_left_out(b.use, settings)]
        if len(found) == 1 and found[0].value is not None and not found[0].index:
            return things_in(project, found[0].value, found[0].use, settings, depth + 1)
    return project.things(node, use)


def settled(project: Project, node: ast.expr, use: Use, settings: Known) -> tuple[ast.expr, Use, Known]:
    """What an expression is made by in a phase, behind names, choices and functions that a phase decides."""
    for _ in range(STEPS):
        step = _step(project, node, use, settings)
        if step is None:
            break
        node, use, settings = step
    return node, use, settings


def _step(project: Project, node: ast.expr, use: Use, settings: Known) -> tuple[ast.expr, Use, Known] | None:
    if isinstance(node, ast.IfExp) and (taken := truth(node.test, settings, use)) is not None:
        return node.body if taken else node.orelse, use, settings
    if isinstance(node, ast.Name) and node.id in use.scope.bindings:
        found = [b for b in use.scope.reaching(node.id, use) if not is_left_out(b.use, settings)]
        value = found[-1].value if found and (len(found) == 1 or found[-1].use.path) else None
        plain = value is not None and not found[-1].index and _is_last(found, use, settings)
        return (value, found[-1].use, settings) if plain and value is not None else None
    function = project.callee(node, use) if isinstance(node, ast.Call) else None
    if function is None or not isinstance(node, ast.Call) or not function.returns:
        return None
    inner = told(project, function, node, use, settings)
    left = [
        (value, place) for value, place in function.returns
        if not is_left_out(place, inner) and not skipped(place, inner)
    ]  # fmt: skip
    return (left[0][0], left[0][1], inner) if len(left) == 1 and left[0][0] is not None else None


def _is_last(found: Sequence[Binding], use: Use, settings: Known) -> bool:
    """The only one, or one whose conditions are all met in the phase."""
    blocks = [(block, part) for block, part in found[-1].use.path if (block, part) not in use.path]
    tests = [(use.scope.choices.get(block), part) for block, part in blocks]
    return len(found) == 1 or all(
        node is not None and truth(node.test, settings, use) == (part == "body") for node, part in tests
    )


def _held(project: Project, table: ast.expr, key: ast.Constant, use: Use) -> Sequence[Thing]:
    found: list[Thing] = []
    for each in held(project, table, key, use, 0):
        inner = project.things(each.node, each.use)
        if not inner:
            return ()
        found += inner
    return found


def _key(node: ast.expr, settings: Known) -> ast.Constant | None:
    if isinstance(node, ast.Constant):
        return node
    known = isinstance(node, ast.Name) and settings.get(node.id, OBJECT) is not OBJECT
    return ast.Constant(settings[node.id]) if isinstance(node, ast.Name) and known else None  # type: ignore[arg-type]


# --------------------------------------------------------------------------- conditions


def skipped(use: Use, settings: Known) -> bool:
    """``if phase == "val": continue`` comes before."""
    around = {block for block, _ in use.path}
    for block, node in use.scope.choices.items():
        if block in around or not isinstance(node.body[-1], ENDS) or node.lineno >= use.statement.lineno:
            continue
        place = next(u for u in use.scope.statements if u.statement is node)
        if place.before(use) and truth(node.test, settings, place) is True:
            return True
    return False


def reached(loop: ast.stmt, scope: Scope, settings: Known) -> Iterator[tuple[ast.Call, Use]]:
    """The calls in a loop that are come by in a phase."""
    for call, use in scope.calls:
        if lies_in(call, loop) and not is_left_out(use, settings) and not skipped(use, settings):
            yield call, use
