"""A method of the model that gives it new layers, called once the optimizer was built from the old ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from flatline.events import SourceFact
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._parameters import models_of, whole_of
from flatline.readers.source._rebound import (
    bound_once,
    built_again,
    keeps_old,
    later_methods,
    makes_another,
    new_layers,
    used_after,
)
from flatline.readers.source._scopes import Use
from flatline.readers.source._seen import Seen, is_module, seen_in
from flatline.readers.source._things import Thing
from flatline.readers.source._values import Source

READY = re.compile(r"timm\.(models\.)?create_model")  # whose models have a method that replaces the head
RESETS = ("reset_classifier", "reset_head")


def reheaded(seen: Seen) -> Iterator[SourceFact]:
    """One fact a call of such a method."""
    for name, thing, built in seen.optimizers():
        parts = models_of(seen.project, thing.call, thing.use) if thing.call is not None else []
        whole = whole_of(seen.project, parts)
        if whole is None or built_again(seen, built) or not _is_model(seen, whole):
            continue
        models = {whole.identity(), replace(whole, via=(*thing.via, *whole.via)).identity()}
        held, taken = _held(seen, parts, whole), _taken(parts, built)
        for other, call, use in _calls_behind(seen, name, taken):
            if isinstance(call.func, ast.Attribute) and _are(other, call.func.value, use, models):
                method = seen.project.callee(call, use)
                own = method is not None and _replaces(seen_in(seen.project, method), held)
                if own or (held is None and _resets(whole, call.func.attr)):
                    yield other.fact("rebound", call, name=name, other=taken.statement)


def _taken(parts: list[Source], built: Use) -> Use:
    """Where the parameters were asked for: ``params = list(net.parameters())`` before the optimizer is built."""
    near = [each.use for each in parts if each.use.scope is built.scope and each.use.path == built.path]
    return min([built, *near], key=lambda use: use.order)


def _is_model(seen: Seen, whole: Thing) -> bool:
    own = whole.made_of is not None and is_module(seen.project, whole)
    return own or READY.fullmatch(whole.name) is not None


def _resets(whole: Thing, method: str) -> bool:
    """A method of a library's model that gives it new layers."""
    return READY.fullmatch(whole.name) is not None and method in RESETS


def _held(seen: Seen, parts: list[Source], whole: Thing) -> set[str] | None:
    """The attributes of the model that an optimizer was given; None for all of it."""
    found: set[str] = set()
    for part in parts:
        node = part.node
        if _are(seen_in(seen.project, part.use.scope), node, part.use, {whole.identity()}):
            return None
        found.add(node.attr if isinstance(node, ast.Attribute) else "")
    return found


def _are(seen: Seen, node: ast.expr, use: Use, models: set[str]) -> bool:
    things = seen.project.things(node, use)
    return len(things) == 1 and things[0].identity() in models


def _calls_behind(seen: Seen, name: str, built: Use) -> Iterator[tuple[Seen, ast.Call, Use]]:
    """Calls on every way behind it, here and in methods that run later."""
    for call, use in seen.scope.calls:
        if built.before(use) and use.path == built.path and used_after(seen, name, use):
            yield seen, call, use
    once = bound_once(seen, name) and not seen.project.set_from_outside(name.removeprefix("self."), seen.module)
    yield from _calls_outside(seen) if once else ()
    for other in later_methods(seen) if once else ():
        for call, use in other.scope.calls if not makes_another(other) else ():
            if not use.path:
                yield other, call, use


def _calls_outside(seen: Seen) -> Iterator[tuple[Seen, ast.Call, Use]]:
    """Calls behind the one that runs ``__init__``, which this is: ``trainer = Trainer(net)``."""
    sites = seen.project.calls_of(seen.scope) if seen.scope.name.endswith(".__init__") else []
    for _, made in sites if len(sites) == 1 else ():
        outer = seen_in(seen.project, made.scope)
        for call, use in made.scope.calls if not built_again(outer, made) else ():
            if made.before(use) and use.path == made.path:
                yield outer, call, use


def _replaces(method: Seen, held: set[str] | None) -> bool:
    """``self.head = nn.Linear(64, classes)``, on every way through it, of what an optimizer holds."""
    own = method.scope.own if "requires_grad" not in unparsed(method.scope.node) else ()
    made = [use.statement for use in new_layers(method) if not use.path] if own and not makes_another(method) else []
    targets = [node.targets[0] for node in made if isinstance(node, ast.Assign) and not keeps_old(node)]
    return any(
        isinstance(each, ast.Attribute) and unparsed(each.value) == own[0] and (held is None or each.attr in held)
        for each in targets
    )
