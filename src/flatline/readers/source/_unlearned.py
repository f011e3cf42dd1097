"""Models in an optimizer whose every call runs without gradients, though what one of them gives goes into a loss."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from flatline.events import SourceFact
from flatline.readers.source._cuts import ASKED, ON_PURPOSE
from flatline.readers.source._imported import all_reached
from flatline.readers.source._learned import is_learned_from
from flatline.readers.source._mentions import Mentions
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module, Scope, Use
from flatline.readers.source._seen import is_module, seen_in, trained_models
from flatline.readers.source._things import Thing

OFF = ("torch.no_grad()", "torch.inference_mode()", "torch.no_grad", "torch.inference_mode", "no_grad()")
KEPT = re.compile(  # somewhere in these files: its weights may come from elsewhere, or move by other means
    r"requires_grad|load_state_dict|pretrained|\bweights\s*=|deepcopy|\.(copy|mul|lerp)_\(|\.data\s*=|stop_?grad|torch\.func\b"
)
PENALTY = re.compile(r"\*\*|\.(sum|pow|norm|abs|square|mean)\(")  # of parameters, which goes into a loss
HARMLESS = ASKED | {"named_parameters", "modules", "eval"}


def unlearned(project: Project, module: Module) -> Iterator[SourceFact]:
    """One fact a model."""
    text = module.whole
    if "optim" not in text or ".backward(" not in text:
        return
    files = all_reached(project, module)
    if not any(_marks(each) for each in files) or any(KEPT.search(line) for each in files for line in each.text.lines):
        return
    trained = {t.identity() for scope in module.scopes for t in trained_models(project, scope) if is_module(project, t)}
    told = set[str]()
    for scope in module.scopes if trained else ():
        for call, use in scope.calls:
            function = project.callee(call, use)
            head = _head(function) if function is not None and function is not scope else None
            if function is None or head is None or ON_PURPOSE.search(f"{function.name} {unparsed(call.func)}"):
                continue
            seen = seen_in(project, scope)
            if seen.never_recorded(use) or not is_learned_from(seen, use, call):
                continue
            for thing, inner in _called_in(project, function, call, use):
                name = thing.identity()
                if name in trained and name not in told and _is_always_off(project, files, thing):
                    told.add(name)
                    yield SourceFact(
                        kind="cut layer", name=_shown(function, call, inner), text=f"@{unparsed(head)}",
                        where=module.where(call, scope), other=function.module.where(inner, function),
                    )  # fmt: skip


def _marks(module: Module) -> bool:
    return "no_grad" in module.whole or "inference_mode" in module.whole


def _head(function: Scope) -> ast.expr | None:
    """``@torch.no_grad()`` above a function, and nothing that switches gradients on in it."""
    head = function.marked_without_grad
    on = head is None or unparsed(head) not in OFF or "enable_grad" in unparsed(function.node)
    return None if on else head


def _called_in(project: Project, function: Scope, call: ast.Call, use: Use) -> Iterator[tuple[Thing, ast.Call]]:
    """The modules that a function runs, also the one that it is a method of."""
    for inner, place in function.calls:
        if isinstance(inner.func, ast.Name) and function.own == (inner.func.id,):
            receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
            yield from ((thing, inner) for thing in project.things(receiver, use))
        elif not _is_handed(project, inner.func, place):
            yield from ((thing, inner) for thing in project.things(inner.func, place) if thing.call is not None)


def _is_handed(project: Project, node: ast.expr, use: Use) -> bool:
    """``self.actor``, which ``__init__`` was given: others may train it."""
    bound = project.holding(node, use, 0) if isinstance(node, ast.Attribute) else []
    given = [b.value.id for b in bound if isinstance(b.value, ast.Name) and b.value.id in b.use.scope.params]
    return bool(given)


def _shown(function: Scope, call: ast.Call, inner: ast.Call) -> str:
    """``net`` of ``net.encode(x)``, where that calls ``self(x)``."""
    own = isinstance(inner.func, ast.Name) and function.own == (inner.func.id,)
    return unparsed(call.func.value if own and isinstance(call.func, ast.Attribute) else inner.func)


def _is_always_off(project: Project, files: list[Module], thing: Thing) -> bool:
    """No call of it, and nothing else that is seen of it, may bring gradients back."""
    if thing.made_of is not None and not _runs_by_forward(project, thing):
        return False
    for module in files:
        mentions = Mentions(project, module)
        for scope in module.scopes:
            for use in scope.statements:
                if not all(_is_harmless(project, mentions, read, use) for read in _reads(project, thing, use)):
                    return False
    return True


def _reads(project: Project, thing: Thing, use: Use) -> Iterator[ast.expr]:
    """Where a statement speaks of it."""
    node = use.statement
    parts = [n for n in ast.iter_child_nodes(node) if isinstance(n, (ast.expr, ast.keyword, ast.withitem))]
    for inner in [n for part in parts for n in walk(part) if isinstance(n, (ast.Name, ast.Attribute))]:
        plain = isinstance(inner.ctx, ast.Load) and not hasattr(node, "name")
        if plain and any(t.identity() == thing.identity() for t in project.things(inner, use)):
            yield inner


def _is_harmless(project: Project, mentions: Mentions, read: ast.expr, use: Use) -> bool:
    """A call without gradients, a method that trains nothing, or a way on that is followed."""
    parent = mentions.parent(read)
    if isinstance(parent, ast.Attribute):
        call = mentions.parent(parent)
        if "parameters" in parent.attr and PENALTY.search(unparsed(use.statement)):
            return False
        own = isinstance(call, ast.Call) and call.func is parent and project.callee(call, use) is not None
        return mentions.asked(read) in HARMLESS or own or not isinstance(call, ast.Call)
    if isinstance(parent, ast.Call) and parent.func is read:
        seen = seen_in(project, use.scope)
        return seen.without_grad(use) or seen.never_recorded(use)
    holder = mentions.parent(parent) if isinstance(parent, ast.keyword) else parent
    if isinstance(holder, ast.Call):
        return project.callee(holder, use) is not None or any(t.made_of for t in project.things(holder.func, use))
    return isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return, ast.Tuple))


def _runs_by_forward(project: Project, thing: Thing) -> bool:
    """What it is made of is run by its forward, or without gradients, and by no other method."""
    owner, forward = thing.made_of, project.method(thing.made_of, "forward") if thing.made_of is not None else None
    text = unparsed(forward.node) if forward is not None else ""
    for name, method in owner.methods.items() if owner is not None else ():
        if name in ("__init__", "forward") or method.marked_without_grad is not None or f".{name}(" in text:
            continue
        for call, use in method.calls:
            own = isinstance(call.func, ast.Name) and method.own == (call.func.id,)
            if own or any(t.call is not None and is_module(project, t) for t in project.things(call.func, use)):
                return False
    return forward is not None
