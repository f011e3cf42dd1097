"""Loops that train in one phase and score in another: ``for phase in ("train", "val")``, ``run(loader, train=False)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flatline.readers.source._resolve import Project, Thing, argument, default
from flatline.readers.source._scopes import ENDS, Binding, Scope, Use, lies_in
from flatline.readers.source._values import held, origins

Settings = Mapping[str, object]  # what names are in a phase
CALLS = 12  # of a function that are told apart
STEPS = 6  # from a name to its value


@dataclass(frozen=True, slots=True)
class Turn:
    """A phase that a loop over batches is in."""

    loaders: Sequence[Thing]
    settings: Settings = field(default_factory=dict)


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
            inner = dict(given_by(project, call, site, use.scope, outer))
            found.append(Turn(_handed(project, node, use, call, site, inner, outer), inner))
    return found if 1 < len(found) <= CALLS else []


def _rounds(project: Project, use: Use) -> Sequence[Settings]:
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
    return any(isinstance(n, ast.Name) and n.id in scope.params for n in ast.walk(node)) and scope.parent is not None


def given_by(
    project: Project, call: ast.Call, site: Use, function: Scope, outer: Settings
) -> Iterator[tuple[str, object]]:
    """The constants that a call gives for parameters."""
    for name in function.params:
        if len(function.bindings.get(name, ())) != 1 or function.own == (name,):
            continue
        value = argument(call, function, name)
        if value is None:
            usual = default(function, name)
            if isinstance(usual, ast.Constant) and all(k.arg is not None for k in call.keywords):
                yield name, usual.value
        elif isinstance(value, ast.Constant):
            yield name, value.value
        elif isinstance(value, ast.Name) and value.id in outer:
            yield name, outer[value.id]
        elif (truth := truth_in(project, value, site, outer)) is not None:
            yield name, truth


def _handed(
    project: Project, node: ast.expr, use: Use, call: ast.Call, site: Use, inner: Settings, outer: Settings
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


def things_in(project: Project, node: ast.expr, use: Use, settings: Settings, depth: int = 0) -> Sequence[Thing]:
    """What an expression stands for in a phase."""
    if isinstance(node, ast.Subscript) and (key := _key(node.slice, settings)) is not None:
        return _held(project, node.value, key, use)
    if isinstance(node, ast.IfExp) and (truth := truth_in(project, node.test, use, settings)) is not None:
        return things_in(project, node.body if truth else node.orelse, use, settings, depth + 1)
    if isinstance(node, ast.Name) and depth < STEPS:
        known = use.scope.reaching(node.id, use) if node.id in use.scope.bindings else []
        found = [b for b in known if possible_in(project, b.use, settings)]
        if len(found) == 1 and found[0].value is not None and not found[0].index:
            return things_in(project, found[0].value, found[0].use, settings, depth + 1)
    return project.things(node, use)


def settled(project: Project, node: ast.expr, use: Use, settings: Settings) -> tuple[ast.expr, Use, Settings]:
    """What an expression is made by in a phase, behind names, choices and functions that a phase decides."""
    for _ in range(STEPS):
        step = _step(project, node, use, settings)
        if step is None:
            break
        node, use, settings = step
    return node, use, settings


def _step(project: Project, node: ast.expr, use: Use, settings: Settings) -> tuple[ast.expr, Use, Settings] | None:
    if isinstance(node, ast.IfExp) and (truth := truth_in(project, node.test, use, settings)) is not None:
        return node.body if truth else node.orelse, use, settings
    if isinstance(node, ast.Name) and node.id in use.scope.bindings:
        found = [b for b in use.scope.reaching(node.id, use) if possible_in(project, b.use, settings)]
        value = found[-1].value if found and (len(found) == 1 or found[-1].use.path) else None
        plain = value is not None and not found[-1].index and _is_last(project, found, use, settings)
        return (value, found[-1].use, settings) if plain and value is not None else None
    function = project.callee(node, use) if isinstance(node, ast.Call) else None
    if function is None or not isinstance(node, ast.Call) or not function.returns:
        return None
    inner = dict(given_by(project, node, use, function, settings))
    left = [
        (value, place) for value, place in function.returns
        if possible_in(project, place, inner) and not skipped(project, place, inner)
    ]  # fmt: skip
    return (left[0][0], left[0][1], inner) if len(left) == 1 and left[0][0] is not None else None


def _is_last(project: Project, found: Sequence[Binding], use: Use, settings: Settings) -> bool:
    """The only one, or one whose conditions are all met in the phase."""
    blocks = [(block, part) for block, part in found[-1].use.path if (block, part) not in use.path]
    tests = [(use.scope.choices.get(block), part) for block, part in blocks]
    return len(found) == 1 or all(
        node is not None and truth_in(project, node.test, use, settings) == (part == "body") for node, part in tests
    )


def _held(project: Project, table: ast.expr, key: ast.Constant, use: Use) -> Sequence[Thing]:
    found: list[Thing] = []
    for each in held(project, table, key, use, 0):
        inner = project.things(each.node, each.use)
        if not inner:
            return ()
        found += inner
    return found


def _key(node: ast.expr, settings: Settings) -> ast.Constant | None:
    if isinstance(node, ast.Constant):
        return node
    return ast.Constant(settings[node.id]) if isinstance(node, ast.Name) and node.id in settings else None  # type: ignore[arg-type]


# --------------------------------------------------------------------------- conditions


def possible_in(project: Project, use: Use, settings: Settings) -> bool:
    """Whether a place may be come by in a phase."""
    for block, part in use.path:
        node = use.scope.choices.get(block)
        truth = truth_in(project, node.test, use, settings) if node is not None else None
        if truth is not None and truth != (part == "body"):
            return False
    return True


def skipped(project: Project, use: Use, settings: Settings) -> bool:
    """``if phase == "val": continue`` comes before."""
    around = {block for block, _ in use.path}
    for block, node in use.scope.choices.items():
        if block in around or not isinstance(node.body[-1], ENDS) or node.lineno >= use.statement.lineno:
            continue
        place = next(u for u in use.scope.statements if u.statement is node)
        if place.before(use) and truth_in(project, node.test, place, settings) is True:
            return True
    return False


def reached(project: Project, loop: ast.stmt, scope: Scope, settings: Settings) -> Iterator[tuple[ast.Call, Use]]:
    """The calls in a loop that are come by in a phase."""
    for call, use in scope.calls:
        if lies_in(call, loop) and possible_in(project, use, settings) and not skipped(project, use, settings):
            yield call, use


def truth_in(project: Project, test: ast.expr, use: Use, settings: Settings, depth: int = 0) -> bool | None:
    """What a condition is in a phase; None where that is not known."""
    if not settings or depth > STEPS:
        return None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = truth_in(project, test.operand, use, settings, depth + 1)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [truth_in(project, each, use, settings, depth + 1) for each in test.values]
        decisive = isinstance(test.op, ast.Or)
        return decisive if decisive in parts else None if None in parts else not decisive
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test, settings)
    if not isinstance(test, ast.Name):
        return None
    if test.id in settings:
        return bool(settings[test.id])
    bound: list[Binding] = use.scope.bindings.get(test.id, [])
    plain = len(bound) == 1 and bound[0].value is not None and not bound[0].index
    value = bound[0].value if plain else None
    return truth_in(project, value, bound[0].use, settings, depth + 1) if value is not None else None


def _compared(test: ast.Compare, settings: Settings) -> bool | None:
    left, operator, right = _key(test.left, settings), test.ops[0], test.comparators[0]
    if left is None:
        return None
    if isinstance(operator, (ast.In, ast.NotIn)) and isinstance(right, (ast.Tuple, ast.List, ast.Set)):
        plain = all(isinstance(each, ast.Constant) for each in right.elts)
        among = left.value in [each.value for each in right.elts if isinstance(each, ast.Constant)]
        return among == isinstance(operator, ast.In) if plain else None
    other = _key(right, settings)
    if other is None or not isinstance(operator, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
        return None
    return (left.value == other.value) == isinstance(operator, (ast.Eq, ast.Is))
