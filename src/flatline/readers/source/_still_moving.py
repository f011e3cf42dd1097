"""Parts of a model that are frozen in the middle of the training, while their optimizer is left gradients of zeros."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flatline.events import SourceFact
from flatline.readers.source._loaders import goes_backward
from flatline.readers.source._resolve import Project, Thing, builds_optimizer
from flatline.readers.source._scopes import Module, Scope, Use, lies_in, spelled
from flatline.readers.source._seen import model_of, names_in, seen_in

KEEPS = re.compile(r"set_to_none\s*=\s*False|\.grad(\.data)?\.zero_\(")
OTHERWISE = re.compile(  # it may be thawed again, or left without a gradient
    r"\.grad\s*=\s*None|del \w+\.grad|param_groups|\.zero_grad\((?!set_to_none\s*=\s*False)|load_state_dict|"
    r"requires_grad_?\s*(\(\s*(True)?\s*\)|=\s*(?!False)\w)|requires_grad_?\(\s*(?!False)\w"
)
MOMENTUM = re.compile(r"torch\.optim\.(Adam|AdamW|NAdam|RAdam|Adamax)")  # which is never without
MOVES = ("momentum", "weight_decay")
DEEP = 8  # steps from a parameter to its model
SAME = ("enumerate", "list", "reversed", "tuple")  # what runs over what it is given
CALLS = 3  # from a loop to what freezes


@dataclass(frozen=True, slots=True)
class Frozen:
    """``p.requires_grad_(False)``."""

    node: ast.expr  # what it is done to
    statement: ast.stmt
    use: Use


def still_moving(project: Project, module: Module, files: Sequence[Module]) -> Iterator[SourceFact]:
    """One fact a place that freezes."""
    text = "\n".join(line for each in files for line in each.text.lines)
    if "requires_grad" not in text or KEEPS.search(text) is None or OTHERWISE.search(text) is not None:
        return
    scopes = [scope for each in files for scope in each.scopes]
    held = list(_held(project, scopes))
    if len(held) != 1 or ".backward(" not in text or held[0].use.scope.module is not module:
        return
    why, models = _moved_by(project, held[0]), _models(project, held[0])
    for frozen in (each for scope in scopes for each in _frozen(scope)) if why and models else ():
        later = _in_training(project, frozen.use, 0) and _is_chosen(project, frozen.use, 0)
        if later and _is_part(project, frozen.node, frozen.use, models):
            yield SourceFact(
                kind="frozen but held", name=why, text=spelled(frozen.statement),
                where=frozen.use.scope.module.where(frozen.statement, frozen.use.scope),
                other=module.where(held[0].call, held[0].use.scope) if held[0].call is not None else None,
            )  # fmt: skip


def _held(project: Project, scopes: Sequence[Scope]) -> Iterator[Thing]:
    """The optimizers that these files build, once each."""
    for scope in scopes:
        for call, use in scope.calls:
            if builds_optimizer(project.dotted(call.func, use)):
                yield Thing(project.dotted(call.func, use), use, call)


def _moved_by(project: Project, optimizer: Thing) -> str:
    """What moves a parameter whose gradient is zero."""
    named = {k.arg: k.value for k in optimizer.call.keywords} if optimizer.call is not None else {}
    found = [n for n in MOVES if (size := project.number(named.get(n), optimizer.use)) is not None and size > 0]
    if MOMENTUM.fullmatch(optimizer.name):
        found = ["momentum", *found]
    return " and ".join(found).replace("_", " ")


def _models(project: Project, optimizer: Thing) -> set[str]:
    """The one whose parameters it was given, all of them; nothing where it is built again and again."""
    found = project.things(model_of(optimizer), optimizer.use) if _comes_once(project, optimizer.use, 0) else ()
    return {t.identity() for t in found if t.call is not None}


def _comes_once(project: Project, use: Use, depth: int) -> bool:
    """In no loop, and in no function that a loop calls."""
    sites = project.calls_of(use.scope) if depth < CALLS else []
    once = seen_in(project, use.scope).loop_of(use) is None
    return once and all(_comes_once(project, site, depth + 1) for _, site in sites)


def _frozen(scope: Scope) -> Iterator[Frozen]:
    """Places that switch the gradients of something off."""
    for use in scope.statements:
        node = use.statement
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
            yield Frozen(target.value, node, use)
    for call, use in scope.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
            yield Frozen(call.func.value, use.statement, use)


def _in_training(project: Project, use: Use, depth: int) -> bool:
    """In a loop that trains, or in a function that is called there only."""
    loops = [u.statement for u in use.scope.statements if isinstance(u.statement, (ast.For, ast.While))]
    around = [loop for loop in loops if lies_in(use.statement, loop) and loop is not use.statement]
    if any(goes_backward(project, use.scope, loop, 0, {}) for loop in around):
        return True
    sites = project.calls_of(use.scope) if depth < CALLS else []
    return bool(sites) and all(_in_training(project, site, depth + 1) for _, site in sites)


def _is_chosen(project: Project, use: Use, depth: int) -> bool:
    """Behind ``if epoch == 3``: not from the first step on."""
    tests = [use.scope.choices[block].test for block, part in use.path if part == "body" and block in use.scope.choices]
    if any(_comes_later(project, test, use) for test in tests):
        return True
    sites = project.calls_of(use.scope) if depth < CALLS else []
    return bool(sites) and all(_is_chosen(project, site, depth + 1) for _, site in sites)


def _comes_later(project: Project, test: ast.expr, use: Use) -> bool:
    """A count of turns has reached something else than 0."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_comes_later(project, each, use) for each in test.values)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    left, right = test.left, test.comparators[0]
    over = isinstance(test.ops[0], (ast.Eq, ast.Gt, ast.GtE)) and _reaches(project, left, right, use)
    return over or (isinstance(test.ops[0], (ast.Eq, ast.Lt, ast.LtE)) and _reaches(project, right, left, use))


def _reaches(project: Project, count: ast.expr, limit: ast.expr, use: Use) -> bool:
    """A count of turns, and a limit that is not known to be 0."""
    known = project.constant(limit, use)
    first = known is not None and (not isinstance(known.value, (int, float)) or known.value <= 0)
    return not first and any(_counts(project, name, use, 0) for name in names_in(count))


def _counts(project: Project, name: str, use: Use, depth: int) -> bool:
    """What a loop counts, perhaps handed over by every call."""
    found = use.scope.reaching(name, use) if name in use.scope.bindings else []
    if any(b.parameter for b in found) and depth < CALLS:
        given = project.given(name, found[0].use)
        return bool(given) and all(any(_counts(project, n, u, depth + 1) for n in names_in(v)) for v, u in given)
    return bool(found) and all(isinstance(b.use.statement, ast.For) for b in found)


def _is_part(project: Project, node: ast.expr, use: Use, models: set[str], depth: int = 0) -> bool:
    """``p`` of ``for p in model.stages[0].parameters()``."""
    if depth > DEEP:
        return False
    if {t.identity() for t in project.things(node, use)} & models:
        return True
    back = list(_back(project, node, use))
    return bool(back) and all(_is_part(project, *each, models, depth + 1) for each in back)


def _back(project: Project, node: ast.expr, use: Use) -> Iterator[tuple[ast.expr, Use]]:
    """What something is a part of, or a loop over; for a parameter, and for ``self``, what every call gives."""
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        yield node.value, use
    elif isinstance(node, (ast.Tuple, ast.List)):
        yield from ((each.value if isinstance(each, ast.Starred) else each, use) for each in node.elts)
    elif isinstance(node, ast.Call):
        name = spelled(node.func).removeprefix("itertools.")
        whole = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        given = node.args if name == "chain" else node.args[:1] if name in SAME else whole
        yield from ((each.value if isinstance(each, ast.Starred) else each, use) for each in given)
    elif isinstance(node, ast.Name):
        yield from _bound_to(project, node.id, use)


def _bound_to(project: Project, name: str, use: Use) -> Iterator[tuple[ast.expr, Use]]:
    """What a name was given, or runs over."""
    found = use.scope.reaching(name, use) if name in use.scope.bindings else []
    if len(found) != 1:
        return
    if use.scope.own == (name,):
        sites = project.calls_of(use.scope)
        yield from ((call.func.value, site) for call, site in sites if isinstance(call.func, ast.Attribute))
    elif found[0].parameter:
        yield from project.given(name, found[0].use)
    else:
        loop = found[0].use.statement
        value = loop.iter if isinstance(loop, ast.For) else found[0].value
        yield from [(value, found[0].use)] if value is not None else ()
