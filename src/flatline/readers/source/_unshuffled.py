"""Loaders in the order of the classes, in a loop that trains."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import partial

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument, argument_at
from flatline.readers.source._nodes import unparsed, walk
from flatline.readers.source._ordered import class_by_class, handed_on, told
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Use, iterated, lies_in, spelled
from flatline.readers.source._seen import Seen
from flatline.readers.source._spread import keywords
from flatline.readers.source._things import Thing
from flatline.readers.source._turns import reached, turns

STEPS = re.compile(r"step|update|apply|optimi|sub_|add_$|^copy_$")  # what a batch may change the weights by


def unshuffled(seen: Seen) -> Iterator[SourceFact]:
    """A loader in the order of the folders, in a loop that trains."""
    for use in seen.scope.statements:
        node = use.statement
        if not isinstance(node, ast.For) or not seen.within(node, "backward") or not _unpacks_labels(node):
            continue
        things = _trained_on(seen, node, use) if _steps_in(seen, node) else ()
        for thing in things if all(map(partial(_in_order, seen), things)) else ():
            if thing.call is not None:
                given = seen.project.things(argument_at(thing.call, "dataset", 0), thing.use)
                yield SourceFact(
                    kind="unshuffled",
                    name=re.split(r"[.:]", given[0].name)[-1],
                    text=spelled(thing.call),
                    where=thing.use.scope.module.where(thing.call, thing.use.scope),
                    other=seen.module.where(node, seen.scope),
                )


def _steps_in(seen: Seen, loop: ast.For) -> bool:
    """Something is done with the gradients of a batch before the next: else the order of the batches is nothing."""
    changed = any(isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Sub) for n in walk(loop))
    called = (spelled(c.func).rpartition(".")[2] for c, _ in seen.scope.calls if lies_in(c, loop))
    return changed or any(STEPS.search(name) for name in called)


def _trained_on(seen: Seen, loop: ast.For, use: Use) -> Sequence[Thing]:
    """The loaders of a loop, without those of calls that switch its backward off."""
    node, use = drawn_from(seen.project, iterated(loop.iter), use)
    phases = turns(seen.project, node, use) if use.scope is seen.scope else []
    if any(each.settings for each in phases):
        called = [(each, [c.func for c, _ in reached(loop, seen.scope, each.settings)]) for each in phases]
        kept = [each for each, funcs in called if any(unparsed(f).endswith(".backward") for f in funcs)]
        return [t for each in kept for t in each.loaders] if all(each.loaders for each in kept) else ()
    if not isinstance(node, ast.Name) or node.id not in seen.scope.params:
        return seen.project.things(node, use)
    backs = [u for _, _, u in seen.methods("backward") if lies_in(u.statement, loop)]
    found: list[Thing] = []
    for call, site in seen.project.calls_of(seen.scope):
        if not all(seen.switched(back, call) for back in backs):
            things = seen.project.things(argument(call, seen.scope, node.id), site)
            if not things:
                return ()
            found += things
    return found or seen.project.things(node, use)


def _in_order(seen: Seen, thing: Thing) -> bool:
    call = thing.call
    if call is None or thing.name != "torch.utils.data.DataLoader":
        return False
    named = handed_on(seen.project, keywords(seen.project, call, thing.use), thing)
    shuffle = told(seen.project, named.get("shuffle", ast.Constant(False)), thing)
    if len(call.args) > 2 or {None, "sampler", "batch_sampler"} & set(named):
        return False
    if shuffle is not False:
        return False
    given = call.args[0] if call.args else named.get("dataset")
    things = seen.project.things(given, thing.use)
    folders = (t.call is not None and t.name == "torchvision.datasets.ImageFolder" for t in things)
    return bool(things) and (all(folders) or all(class_by_class(seen.project, t, thing) for t in things))


def _unpacks_labels(node: ast.For) -> bool:
    """Images and labels, and none of them thrown away."""
    target = node.target
    if isinstance(target, ast.Tuple) and spelled(node.iter).startswith("enumerate") and len(target.elts) == 2:
        target = target.elts[1]
    if not isinstance(target, (ast.Tuple, ast.List)) or len(target.elts) != 2:
        return False
    label = target.elts[1]
    return isinstance(label, ast.Name) and not label.id.startswith("_")


def drawn_from(project: Project, node: ast.expr, use: Use) -> tuple[ast.expr, Use]:
    """The loader behind a generator that goes through it, once, and hands its batches on."""
    function = project.callee(node, use) if isinstance(node, ast.Call) else None
    loops = [u for u in function.statements if isinstance(u.statement, ast.For)] if function is not None else []
    if function is None or not isinstance(node, ast.Call) or len(function.yields) != 1 or len(loops) != 1:
        return node, use
    inner = iterated(loops[0].statement.iter)  # type: ignore[attr-defined]
    if function.yields[0][1].path[:1] != ((id(loops[0].statement), "body"),):
        return node, use
    plain = (
        isinstance(inner, ast.Name)
        and all(b.parameter for b in function.bindings.get(inner.id, ()))
        and inner.id in function.params
    )
    given = argument(node, function, inner.id) if plain and isinstance(inner, ast.Name) else None
    if given is not None:
        return drawn_from(project, iterated(given), use)
    own = isinstance(inner, ast.Attribute) and function.own and unparsed(inner.value) == function.own[0]
    return (inner, loops[0]) if own else (node, use)
