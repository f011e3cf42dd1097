"""Parts of a model that are frozen in the middle of the training, while their optimizer is left gradients of zeros."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument_at
from flatline.readers.source._loaders import goes_backward
from flatline.readers.source._nodes import names_in, unparsed, walk
from flatline.readers.source._parameters import models_of
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use, lies_in, spelled
from flatline.readers.source._seen import seen_in
from flatline.readers.source._staged import goes_off
from flatline.readers.source._stages import between_trainings, comes_once
from flatline.readers.source._things import Thing, builds_optimizer
from flatline.readers.source._values import Source

KEEPS = re.compile(r"set_to_none\s*=\s*False|\.grad(\.data)?\.zero_\(")
OTHERWISE = re.compile(  # it may be thawed again, or left without a gradient
    r"\.grad\s*=\s*None|del \w+\.grad|param_groups|\.zero_grad\((?!set_to_none\s*=\s*False)|load_state_dict|"
    r"requires_grad_?\s*(\(\s*(True)?\s*\)|=\s*(?!False)\w)|requires_grad_?\(\s*(?!False)\w"
)
FLAGS = re.compile(  # what a name says
    r"\.requires_grad(?:_\((?!True\b|False\b)[\w.\[\]'\"]+\)| = (?!True\b|False\b)[\w.\[\]'\"]+$)", re.MULTILINE
)
MOMENTUM = re.compile(r"torch\.optim\.(Adam|AdamW|NAdam|RAdam|Adamax)")  # which is never without
MOVES = ("momentum", "weight_decay")
DEEP = 8  # steps from a parameter to its model
SAME = ("enumerate", "list", "reversed", "tuple")  # what runs over what it is given
CALLS = 3  # from a loop to what freezes
Way: TypeAlias = tuple[str, ...]
Part: TypeAlias = tuple[str, Way]  # what a module is, or is a part of, and how one comes to it from there


@dataclass(frozen=True, slots=True)
class Frozen:
    """``p.requires_grad_(False)``."""

    node: ast.expr  # what it is done to
    flag: ast.expr | None  # what requires_grad becomes
    statement: ast.stmt
    use: Use


def still_moving(project: Project, module: Module, files: Sequence[Module]) -> Iterator[SourceFact]:
    """One fact a place that freezes."""
    text = "\n".join(each.whole for each in files)
    if "requires_grad" not in text or KEEPS.search(text) is None or ".backward(" not in text:
        return
    scopes = [scope for each in files for scope in each.scopes]
    held = list(_held(project, scopes)) if OTHERWISE.search(FLAGS.sub("", text)) is None else []
    if len(held) != 1 or held[0].use.scope.module is not module:
        return
    switched = [each for scope in scopes for each in _frozen(scope)]
    staged = [each for each in switched if _goes_off(project, each, held[0].use)]
    if len(FLAGS.findall(text)) != len(staged):
        return
    why, parts = _moved_by(project, held[0]), _parts(project, held[0])
    for frozen in switched if why and parts else ():
        later = frozen in staged or _comes_in_the_middle(project, frozen.use, held[0].use)
        if later and _is_part(project, frozen.node, frozen.use, parts):
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


def _parts(project: Project, optimizer: Thing) -> set[Part]:
    """The models, or parts of them, whose parameters it was given; nothing where it is built again and again."""
    call = optimizer.call if _comes_once(project, optimizer.use, 0) else None
    given = models_of(project, call, optimizer.use) if call is not None else []
    always = MOMENTUM.fullmatch(optimizer.name) is not None
    alike = always or not any(_moves_otherwise(node) for node in walk(optimizer.use.scope.module.top.node))
    return {part for each in given for part in _places(project, each)} if alike or len(given) == 1 else set()


def _moves_otherwise(node: ast.AST) -> bool:
    """A group of parameters with a momentum or a decay of its own."""
    if isinstance(node, ast.Dict):
        names = {key.value for key in node.keys if isinstance(key, ast.Constant)}
    else:
        names = {k.arg for k in node.keywords} if isinstance(node, ast.Call) else set()
    return "params" in names and not names.isdisjoint(MOVES)


def _places(project: Project, source: Source) -> Iterator[Part]:
    """A module, and what it is a part of, by the way that leads to it."""
    node, way = source.node, Way()
    while True:
        yield from ((t.identity(), way) for t in project.things(node, source.use) if t.call is not None)
        if not isinstance(node, ast.Attribute):
            return
        way = (node.attr, *way)
        node = node.value


def _comes_in_the_middle(project: Project, use: Use, built: Use) -> bool:
    """In a later turn of the training, or between one training and another with the same optimizer."""
    if _in_training(project, use, 0):
        return _is_chosen(project, use, 0)
    return comes_once(project, built) and between_trainings(project, use, built)


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
        if isinstance(target, ast.Attribute) and target.attr == "requires_grad" and isinstance(node, ast.Assign):
            yield Frozen(target.value, node.value, node, use)
    for call, use in scope.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
            yield Frozen(call.func.value, argument_at(call, "requires_grad", 0), use.statement, use)


def _goes_off(project: Project, frozen: Frozen, built: Use) -> bool:
    """``p.requires_grad = flag``, which a later stage says is False."""
    named = isinstance(frozen.flag, (ast.Name, ast.Attribute, ast.Subscript))
    return named and frozen.flag is not None and goes_off(project, frozen.flag, frozen.use, built)


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


def _is_part(project: Project, node: ast.expr, use: Use, held: set[Part], way: Way = (), depth: int = 0) -> bool:
    """``p`` of ``for p in model.stages[0].parameters()``."""
    if depth > DEEP:
        return False
    made = {t.identity() for t in project.things(node, use)}
    if any((each, way[:size]) in held for each in made for size in range(len(way) + 1)):
        return True
    step = _step(node) if not _kept(project, node, use) else ()
    back = list(_back(project, node, use))
    return bool(back) and all(_is_part(project, *each, held, (*step, *way), depth + 1) for each in back)


def _step(node: ast.expr) -> Way:
    """What leads from a whole to a part of it."""
    if isinstance(node, ast.Attribute):
        return (node.attr,)
    if isinstance(node, ast.Subscript):
        return (f"[{unparsed(node.slice)}]",)
    func = node.func if isinstance(node, ast.Call) else None
    return (f"{func.attr}()",) if isinstance(func, ast.Attribute) else ()


def _back(project: Project, node: ast.expr, use: Use) -> Iterator[tuple[ast.expr, Use]]:
    """What something is a part of, or a loop over; for a parameter, and for ``self``, what every call gives."""
    kept = _kept(project, node, use)
    if kept:
        yield from kept
    elif isinstance(node, (ast.Attribute, ast.Subscript)):
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


def _kept(project: Project, node: ast.expr, use: Use) -> list[tuple[ast.expr, Use]]:
    """What ``self.module`` was given, where that is a name, or a part of something else."""
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and use.scope.own == (node.value.id,)
    held = project.holding(node, use, 0) if own else []
    value = held[0].value if len(held) == 1 else None
    for place in held[0].index if value is not None else ():
        value = value.elts[place] if isinstance(value, (ast.Tuple, ast.List)) and place < len(value.elts) else None
    return [(value, held[0].use)] if isinstance(value, (ast.Name, ast.Attribute)) else []


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
