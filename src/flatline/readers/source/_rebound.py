"""A layer, or the model, that is replaced after the optimizer was built from it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flatline.events import SourceFact
from flatline.readers.source._nodes import names_in, unparsed, walk
from flatline.readers.source._parameters import models_of
from flatline.readers.source._plain_lists import is_made_by
from flatline.readers.source._scopes import FUNCTIONS, SAME, Use, plain_call
from flatline.readers.source._seen import LAYERS, Seen, is_module, is_own, model_of, seen_in
from flatline.readers.source._things import Thing
from flatline.readers.source._undone import is_undone

BARE = ("affine", "elementwise_affine")
WHEN_OVER = re.compile(r"(fit|train\w*|run)_end|after_(fit|train\w*|run)|export|teardown|finish|final|save|deploy")
HANDS_OPTIMIZER = re.compile(r"[(,=]\s*[\w.]*\bopt\w*\s*[,)]|\bopt\w*\.__init__\(")  # which may be told there
REBUILDS = re.compile(r"add_param_group|param_groups|\w*opt\w*\(|optim\b(?!\.lr_scheduler)|\b(Adam\w*|SGD|RMSprop)\(")


def rebound(seen: Seen) -> Iterator[SourceFact]:
    """A layer, or the model, that is replaced after the optimizer was built from it."""
    for name, thing, built in seen.optimizers():
        model = model_of(thing) or _grouped(seen, thing)
        if model is None:
            yield from _part_rebound(seen, name, thing, built)
            continue
        later = [u for u in new_layers(seen) if built.before(u) and u.path == built.path]
        found = [use for use in later if _replaces(seen, use, model, built, thing) and used_after(seen, name, use)]
        for use in found if found and not built_again(seen, built) else ():
            yield seen.fact("rebound", use.statement, name=name, other=built.statement)
        for function, use in _handed_behind(seen, built) if not built_again(seen, built) else ():
            found = [u for u in new_layers(function) if _replaces(function, u, model, built, thing)]
            for new in on_every_way(found) if used_after(seen, name, use) and not makes_another(function) else ():
                yield function.fact("rebound", new.statement, name=name, other=built.statement)
        behind = (*later_methods(seen), *_called_behind(seen, built))
        for other in behind if bound_once(seen, name) else ():
            found = [
                use for use in new_layers(other)
                if _replaces(other, use, model, built, thing) or _is_part(seen, other, use, model, name)
            ]  # fmt: skip
            for use in found if not makes_another(other) else ():
                yield other.fact("rebound", use.statement, name=name, other=built.statement)


def _grouped(seen: Seen, optimizer: Thing) -> ast.expr | None:
    """``model``, whose parameters a function of the project puts into groups: ``body, head = split(model)``."""
    call = optimizer.call if optimizer.use.scope is seen.scope else None
    sources = models_of(seen.project, call, optimizer.use) if call is not None else []
    inside = [s for s in sources if isinstance(s.node, ast.Name) and s.use.scope is not seen.scope]
    given = [pair for s in inside for pair in seen.project.given(s.node.id, s.use)]  # type: ignore[attr-defined]
    here = {unparsed(node): node for node, use in given if use.scope is seen.scope and isinstance(node, ast.Name)}
    return next(iter(here.values())) if len(here) == 1 and len(inside) == len(sources) else None


def _part_rebound(seen: Seen, name: str, optimizer: Thing, built: Use) -> Iterator[SourceFact]:
    """``model.fc``, of which a group was made, gets another layer."""
    call = optimizer.call if optimizer.call is getattr(built.statement, "value", None) else None
    sources = models_of(seen.project, call, optimizer.use) if call is not None else []
    given = {unparsed(s.node) for s in sources if isinstance(s.node, ast.Attribute) and s.use.scope is seen.scope}
    for use in new_layers(seen) if given and not built_again(seen, built) else ():
        later = built.before(use) and use.path == built.path and used_after(seen, name, use)
        if later and unparsed(use.statement.targets[0]) in given:  # type: ignore[attr-defined]
            yield seen.fact("rebound", use.statement, name=name, other=built.statement)


def new_layers(seen: Seen) -> list[Use]:
    """Where something gets new layers."""
    calls = [
        u
        for u in seen.scope.statements
        if isinstance(u.statement, ast.Assign) and isinstance(u.statement.value, (ast.Call, ast.Name))
    ]
    return [use for use in calls if _is_new(seen, use) and not is_undone(seen, use)]


def _behind_name(seen: Seen, use: Use) -> ast.expr:
    """``nn.Linear(8, 2)`` of ``layer`` and ``layer.to(device)``, which this function made."""
    value: ast.expr = use.statement.value  # type: ignore[attr-defined]
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in SAME:
        value = value.func.value
    attached = isinstance(use.statement, ast.Assign) and isinstance(use.statement.targets[0], ast.Attribute)
    found = seen.scope.bindings.get(value.id, []) if isinstance(value, ast.Name) and attached else []
    made = found[0].value if len(found) == 1 and not found[0].index and found[0].use.before(use) else None
    return made if isinstance(made, ast.Call) else value


def _is_new(seen: Seen, use: Use) -> bool:
    value = _behind_name(seen, use)
    if not isinstance(value, ast.Call):
        return False
    value = plain_call(value)
    if "requires_grad_(" in unparsed(use.statement.value):  # type: ignore[attr-defined]
        return False
    if any(k.arg in BARE and unparsed(k.value) == "False" for k in value.keywords):
        return False  # a normalisation without parameters
    things = seen.project.things(value, use)
    maker = seen.project.callee(value, use)
    here = all(t.via[:1] != (id(value),) or t.use.scope is maker for t in things)  # and not handed through
    return (
        bool(things) and here and all(is_made_by(t, value) and (t.made_of or LAYERS.fullmatch(t.name)) for t in things)
    )


def built_again(seen: Seen, built: Use) -> bool:
    later = (u for u in seen.scope.statements[built.order + 1 :] if u.path == built.path)
    return any(_rebuilds(seen, use.statement) for use in later)


def bound_once(seen: Seen, name: str) -> bool:
    """An attribute of self that no other method gives a value."""
    owner = seen.scope.owner
    found = owner.attributes.get(name.removeprefix("self."), []) if owner is not None else []
    return name.startswith("self.") and all(b.use.scope is seen.scope for b in found)


def _handed_behind(seen: Seen, built: Use) -> Iterator[tuple[Seen, Use]]:
    """Functions of the project that are called, on every way, once the optimizer is there."""
    for call, use in seen.scope.calls:
        function = seen.project.callee(call, use) if built.before(use) and use.path == built.path else None
        plain = function is not None and function.owner is None and function is not seen.scope and call.args
        if plain and function is not None and not isinstance(function.node, ast.Module):
            yield seen_in(seen.project, function), use


def on_every_way(found: Sequence[Use]) -> Sequence[Use]:
    """Those that no condition is around, or of which one is in each branch of a condition."""
    plain = [use for use in found if not use.path]
    for block in dict.fromkeys(use.path[0][0] for use in found if len(use.path) == 1):
        branches = {use.path[0][1]: use for use in found if len(use.path) == 1 and use.path[0][0] == block}
        if block in found[0].scope.choices and branches.keys() == {"body", "orelse"}:
            plain.append(branches["body"])
    return plain


def makes_another(seen: Seen) -> bool:
    """It makes another optimizer, or gives one more parameters."""
    inside = [use.statement for use in seen.scope.statements]
    return any(_rebuilds(seen, each) or seen.module.says(each, HANDS_OPTIMIZER) for each in inside)


def _called_behind(seen: Seen, built: Use) -> Iterator[Seen]:
    """Methods of its own that it calls once the optimizer is there, and never before."""
    calls = [(seen.project.callee(call, use), use) for call, use in seen.scope.calls if is_own(call)]
    for method in {id(m): m for m, _ in calls if m is not None and m.owner is not None}.values():
        places = [use for each, use in calls if each is method]
        if all(built.before(use) and use.path == built.path for use in places):
            yield seen_in(seen.project, method)


def later_methods(seen: Seen) -> Iterator[Seen]:
    """Methods that can only run when ``__init__``, which this is, is over."""
    owner = seen.scope.owner
    if owner is None or owner.methods.get("__init__") is not seen.scope:
        return
    text = unparsed(seen.scope.node)
    called = {c.func.attr for scope in seen.module.scopes for c, _ in scope.calls if isinstance(c.func, ast.Attribute)}
    for name, method in owner.methods.items():
        if method is not seen.scope and f".{name}(" not in text and name in called:
            yield seen_in(seen.project, method)


def _replaces(seen: Seen, use: Use, model: ast.expr, built: Use, optimizer: Thing) -> bool:
    node = use.statement
    assert isinstance(node, ast.Assign)
    target, text = node.targets[0], unparsed(model)
    things = seen.project.things(node.value, use)
    other = seen.scope is not built.scope and text.partition(".")[0] in set(seen.scope.bindings) - {"self"}
    here = optimizer.call is built.statement.value and not other  # type: ignore[attr-defined]
    if keeps_old(node):
        return False
    if isinstance(target, (ast.Attribute, ast.Subscript)) and all(is_module(seen.project, t) for t in things):
        if here and re.match(rf"{re.escape(text)}([.\[]|$)", unparsed(target)):
            return True
        return _belongs(seen, target.value, use, _given(seen, model, optimizer))
    if unparsed(target) != text:
        return False
    before = seen.project.things(model, built) if here else ()
    if not isinstance(node.value, ast.Call):
        return False
    made = plain_call(node.value)
    given = {n for a in [*made.args, *(k.value for k in made.keywords)] for n in names_in(a)}
    return bool(before) and text.split(".")[0] not in given


def _with_name(node: ast.expr, use: Use) -> ast.expr:
    """``engine.model``, where that got a name."""
    found = use.scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    value = found[0].value if len(found) == 1 and not found[0].index else None
    return value if isinstance(value, ast.Attribute) else node


def _is_part(seen: Seen, other: Seen, use: Use, model: ast.expr, name: str) -> bool:
    """``trainer.model.head = nn.Linear(...)``, whatever ``self.model`` is in the one ``__init__`` that says it."""
    if WHEN_OVER.search(getattr(other.scope.node, "name", "")):
        return False
    owner, node = seen.scope.owner, use.statement
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    part = _with_name(target.value, use) if isinstance(target, ast.Attribute) else None
    while isinstance(part, ast.Attribute) and not isinstance(part.value, ast.Name):
        part = part.value
    if owner is None or not isinstance(node, ast.Assign) or not isinstance(part, ast.Attribute) or keeps_old(node):
        return False
    once = (
        unparsed(model) in [f"{own}.{part.attr}" for own in seen.scope.own]
        and len(owner.attributes.get(part.attr, ())) == 1
    )
    handed = once and part.value.id in other.scope.params[len(other.scope.own) :]  # type: ignore[attr-defined]
    things = seen.project.things(node.value, use) if handed and seen.project.class_of(part.value, use) is owner else ()
    return bool(things) and all(is_module(seen.project, t) for t in things) and not _is_told(seen, name)


def _is_told(seen: Seen, name: str) -> bool:
    """Some file of the project gives the object another optimizer, or an optimizer more parameters."""
    files = [m for m in seen.project.modules.values() if m is not None]
    attribute = name.removeprefix("self.")
    return any("add_param_group" in m.whole or seen.project.set_from_outside(attribute, m) for m in files)


def keeps_old(node: ast.Assign) -> bool:
    """``net.head = nn.Sequential(net.head, nn.Dropout(0.3))``, and not ``nn.Linear(net.head.in_features, 2)``."""
    text = unparsed(node.targets[0])
    asked = {id(inner.value) for inner in walk(node.value) if isinstance(inner, ast.Attribute)}
    parts = (inner for inner in walk(node.value) if isinstance(inner, (ast.Attribute, ast.Name)))
    return any(id(inner) not in asked and unparsed(inner) == text for inner in parts)


def _given(seen: Seen, model: ast.expr, optimizer: Thing) -> set[str]:
    """The one model that an optimizer was given, in the function that built it and where that was called."""
    things = seen.project.things(model, optimizer.use)
    if len(things) != 1 or things[0].call is None:
        return set()
    return {t.identity() for t in (things[0], replace(things[0], via=(*optimizer.via, *things[0].via)))}


def _belongs(seen: Seen, node: ast.expr, use: Use, models: set[str]) -> bool:
    """Whether an expression is one of the models, or a part of it."""
    while not isinstance(node, ast.Name):
        if {t.identity() for t in seen.project.things(node, use)} & models:
            return True
        if not isinstance(node, ast.Attribute):
            return False
        node = node.value
    found = {t.identity() for t in seen.project.things(node, use)}
    return len(found) == 1 and bool(found & models)


def used_after(seen: Seen, name: str, use: Use) -> bool:
    return name.startswith("self.") or any(
        name in names_in(inner) for later in seen.scope.statements[use.order + 1 :] for inner in [later.statement]
    )


def _rebuilds(seen: Seen, node: ast.stmt) -> bool:
    """Another optimizer, or more parameters for this one."""
    return not isinstance(node, (*FUNCTIONS, ast.ClassDef)) and seen.module.says(node, REBUILDS)
