"""Single statements that give a defect away."""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterator
from functools import cache

from flatline.events import SourceFact
from flatline.readers.source._edits import after, instead, renamed
from flatline.readers.source._nodes import Put, unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Use, spelled
from flatline.readers.source._seen import Seen
from flatline.readers.source._switches import switches
from flatline.readers.source._values import origins

UNCALLED = {"step", "zero_grad", "backward", "eval", "train", "unscale_"}
CLOSED_FORM = {"LambdaLR", "OneCycleLR", "CyclicLR", "ConstantLR", "LRScheduler", "ReduceLROnPlateau"}
READ_ONLY = ("get_last_lr", "get_lr", "state_dict", "last_epoch", "base_lrs")


def uncalled(seen: Seen) -> Iterator[SourceFact]:
    """``optimizer.step`` without parentheses."""
    for use in seen.scope.statements:
        node = use.statement
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Attribute) and node.value.attr in UNCALLED):
            continue
        if _last_of_cell(seen, node):
            continue
        things = seen.project.things(node.value.value, use)
        schedule = bool(things) and all(t.name.startswith("torch.optim.lr_scheduler.") for t in things)
        kind = "uncalled schedule" if schedule else f"uncalled {node.value.attr}"
        yield seen.fact(kind, node, edit=after(node.value, "()"))


def _last_of_cell(seen: Seen, node: ast.stmt) -> bool:
    """A notebook shows the value of a cell's last line."""
    return seen.module.text.path.endswith(".ipynb") and node in seen.module.tree.body


def stopwatch(seen: Seen) -> Iterator[SourceFact]:
    """``cudnn.benchmark = True`` beside ``cudnn.deterministic = True``, in one block."""
    flags = {(name, use.path): (on, use) for name, on, use in switches(seen)} if _names_cudnn(seen.module) else {}
    for (name, path), (on, use) in flags.items():
        other, there = flags.get(("deterministic", path), (False, use))
        if name == "benchmark" and on is True and other is True:
            yield seen.fact("stopwatch", use.statement, other=there.statement)


@cache
def _names_cudnn(module: Module) -> bool:
    return "cudnn" in module.whole


def anomaly(seen: Seen) -> Iterator[SourceFact]:
    """Anomaly mode, switched on for good."""
    for call, use in seen.scope.calls:
        if seen.project.dotted(call.func, use) != "torch.autograd.set_detect_anomaly":
            continue
        given = call.args[0] if call.args else call.keywords[0].value if call.keywords else None
        on = isinstance(given, ast.Constant) and given.value is True
        if on and isinstance(use.statement, ast.Expr) and _unconditional(seen, use):
            yield seen.fact("anomaly", call, edit=instead(given, "False") if given is not None else None)
        elif given is not None and isinstance(use.statement, ast.Expr):
            asked = [given] if not on else []
            asked += [n.test for n in _ifs_around(seen, use) if "__main__" not in unparsed(n.test)]
            taken = all(part == "body" for block, part in use.path if block in seen.scope.choices)
            if asked and taken and all(_is_usually_on(seen, each, use) for each in asked):
                yield seen.fact("anomaly by settings", call, name=spelled(asked[0]))

    for use in seen.scope.statements:
        heads = [item.context_expr for item in getattr(use.statement, "items", ())]
        for head in heads:
            name = seen.project.dotted(head.func, use) if isinstance(head, ast.Call) and not head.args else ""
            if (
                name == "torch.autograd.detect_anomaly"
                and seen.within(use.statement, "backward")
                and _unconditional(seen, use)
            ):
                yield seen.fact("anomaly", head)


def _is_usually_on(seen: Seen, given: ast.expr, use: Use) -> bool:
    """``cfg.detect_anomaly``, which is True if nobody says otherwise."""
    known = seen.project.constant(given, use)
    if known is not None or not isinstance(given, ast.Attribute):
        return known is not None and known.value is True
    owners = [thing.made_of for thing in seen.project.things(given.value, use)]
    each = [o.fields.get(given.attr) if o is not None and o.is_record else None for o in owners]
    return bool(each) and all(_is_true(value) for value in each)


def _is_true(value: ast.expr | None) -> bool:
    """``True`` and ``field(default=True)``."""
    named = [k.value for k in value.keywords if k.arg == "default"] if isinstance(value, ast.Call) else []
    return any(isinstance(each, ast.Constant) and each.value is True for each in (value, *named))


def _unconditional(seen: Seen, use: Use) -> bool:
    return all("__main__" in unparsed(node.test) for node in _ifs_around(seen, use))


def _ifs_around(seen: Seen, use: Use) -> list[ast.If]:
    blocks = {block for block, _ in use.path}
    around = [s.statement for s in seen.scope.statements if id(s.statement) in blocks]
    return [node for node in around if isinstance(node, ast.If)]


def rates(seen: Seen) -> Iterator[SourceFact]:
    """``scheduler.get_lr()`` of schedules whose get_lr is a step of a recursion."""
    for call, receiver, use in seen.methods("get_lr"):
        things = seen.project.things(receiver, use)
        names = {t.name.rpartition(".")[2] for t in things if t.name.startswith("torch.optim.lr_scheduler.")}
        if names and len(names) == len({t.name for t in things}) and not names & CLOSED_FORM:
            yield seen.fact("get_lr", call, name=sorted(names)[0], edit=renamed(call.func, "get_last_lr"))


def coupled(seen: Seen) -> Iterator[SourceFact]:
    """``Adam(weight_decay=0.01)``."""
    for call, use in seen.scope.calls:
        name, made = seen.project.dotted(call.func, use), call
        if not name and isinstance(call.func, (ast.Subscript, ast.Name)):
            name, made = chosen(seen.project, call, use)
        decay = next((k.value for k in made.keywords if k.arg == "weight_decay"), None)
        switched = any(k.arg in (None, "decoupled_weight_decay") for k in made.keywords)
        if decay is None or switched or name not in ("torch.optim.Adam", "torch.optim.Adamax"):
            continue
        if (number := seen.project.number(decay, use)) is not None and number > 0:
            yield seen.fact("coupled", call, name=name.rpartition(".")[2], text=f"{number:g}")


def chosen(project: Project, call: ast.Call, use: Use) -> tuple[str, ast.Call]:
    """The optimizer that a call of an entry of a table builds, also by a lambda of the same file."""
    things = project.things(call, use)
    built = things[0].call if len(things) == 1 else None
    if built is None or not things[0].is_optimizer or things[0].use.scope.module is not use.scope.module:
        return "", call
    found = origins(project, call.func, use)
    lambdas = [each.node.args.args for each in found if isinstance(each.node, ast.Lambda)]
    if not lambdas:
        return things[0].name, built
    names = {given.arg: value for given, value in zip(lambdas[0], call.args, strict=False)}
    made = Put(names).visit(copy.deepcopy(built))
    project.alive.append(made)
    return things[0].name, made


def closures(seen: Seen) -> Iterator[SourceFact]:
    """``optimizer.step(closure)``, and the closure's backward."""
    for call, receiver, use in seen.methods("step"):
        given = call.args[0] if len(call.args) == 1 else None
        functions = [t.function for t in seen.project.things(given, use) if t.function is not None]
        things = seen.project.things(receiver, use)
        if len(functions) == 1 and things and all(thing.is_optimizer for thing in things):
            back = [c for c, _ in functions[0].calls if isinstance(c.func, ast.Attribute) and c.func.attr == "backward"]
            if back and seen.loop_of(use) is not None:
                yield seen.fact("closure", call, name=spelled(receiver), other=back[0])


def schedulers(seen: Seen) -> Iterator[SourceFact]:
    """A scheduler that is built, and of which nothing is asked but its rate."""
    for name, bindings in seen.scope.bindings.items():
        for binding in bindings:
            if not isinstance(binding.value, ast.Call) or binding.use.scope is not seen.scope:
                continue
            things = seen.project.things(binding.value, binding.use, 0, binding.index)
            scheduled = bool(things) and all(t.call and t.name.startswith("torch.optim.lr_scheduler.") for t in things)
            if scheduled and len(bindings) == 1 and not _mentioned(seen, name, READ_ONLY):
                yield seen.fact("never stepped", binding.value, name=name)


def _mentioned(seen: Seen, name: str, harmless: Collection[str]) -> bool:
    """Whether an object is given to anything, or asked for anything but what is harmless."""
    kept = {id(n.value) for n in walk(seen.scope.node) if isinstance(n, ast.Attribute) and n.attr in harmless}
    for call, use in seen.scope.calls:
        if seen.project.dotted(call.func, use).startswith("torch.optim.lr_scheduler."):
            kept |= {id(argument) for argument in call.args}
    loads = (n for n in walk(seen.scope.node) if isinstance(n, ast.Name) and n.id == name)
    return any(isinstance(n.ctx, ast.Load) and id(n) not in kept for n in loads)
