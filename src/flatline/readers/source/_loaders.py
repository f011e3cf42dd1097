"""Loaders, samplers and transforms, as the loops over them show what they are for."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from flatline.events import SourceFact
from flatline.readers.source._arguments import argument_at
from flatline.readers.source._augments import LIKELY, random_transform
from flatline.readers.source._batched import LOADER
from flatline.readers.source._collated import LIKELY as COLLATED
from flatline.readers.source._collated import by_chance, collate_of, same, switched
from flatline.readers.source._imported import all_reached, beside, one_says
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._ordered import told
from flatline.readers.source._passes import iterables, scores_within
from flatline.readers.source._resolve import Project
from flatline.readers.source._rounds import Known, is_left_out, truth
from flatline.readers.source._scopes import Module, Scope, Use, iterated, lies_in, spelled
from flatline.readers.source._seen import Seen, seen_in
from flatline.readers.source._things import Thing
from flatline.readers.source._turns import Turn, reached, turns
from flatline.readers.source._unrun import text_of
from flatline.readers.source._unshuffled import drawn_from
from flatline.readers.source._values import Source, origins

SERVED, DEALT, PUT_TOGETHER = map(re.compile, ("DataLoader", "DistributedSampler", "collate_fn"))
PASSES = re.compile(r"\.backward\(|no_grad|inference_mode|\.eval\(")  # a file with these may go over loaders of others
SUBSET = "torch.utils.data.Subset"
SAMPLERS = ("torch.utils.data.distributed.DistributedSampler", "torch.utils.data.DistributedSampler")
OTHER_EPOCHS = re.compile(
    r"set_epoch|accelerat|lightning|deepspeed|ignite|horovod|fabric|sampler\w*\.(seed|epoch)\s*=|Sampler\([^)]*seed=ep\w*"
    r"|(setattr\(\w*sampler\w*, *|sampler\w*\)\[)['\"]epoch",
    re.IGNORECASE,
)
OTHER_TRANSFORMS = re.compile(
    r"(?<!self)\.transforms?\s*=(?!=)|\w_?set\.dataset\s*=(?!=)|\bsetattr\([^)\n]*['\"]transforms?['\"]|\btta\b|ten_?crop|five_?crop|test.time.aug",
    re.IGNORECASE,
)
CALLS = 3  # from an epoch to the loop over its batches


@dataclass(frozen=True, slots=True)
class Pass:
    """A loop over a loader, or a statement with a comprehension over one."""

    loop: ast.stmt
    over: ast.expr
    use: Use
    loaders: Sequence[Thing]
    trains: bool
    settings: Known = field(default_factory=dict)  # of its phase


def loaders(project: Project, module: Module, files: Sequence[Module]) -> Iterator[SourceFact]:
    """What the loops over loaders show."""
    near = one_says(files, SERVED)
    if not near:
        files = beside(project, module) if one_says([module], PASSES) else []
    if not near and not one_says(files, SERVED):
        return
    below = all_reached(project, module) if near else files
    if one_says(files, DEALT) and OTHER_EPOCHS.search(text_of(project, files, "set_epoch")) is None:
        for scope in module.scopes:
            yield from _same_shuffle(project, module, scope)
    if one_says(below, LIKELY) and not one_says(below, OTHER_TRANSFORMS):
        yield from _augmented(project, module)
    if one_says(files, PUT_TOGETHER) and one_says(files, COLLATED) and not one_says(files, OTHER_TRANSFORMS):
        yield from _collated(project, module)


def _passes(project: Project, scope: Scope, first: int = 0, last: int = 10**9, depth: int = 0) -> Iterator[Pass]:
    """Loops over loaders in some lines of a function, and in the functions that it calls there."""
    for use in scope.statements:
        node = use.statement
        for over in iterables(use) if first <= node.lineno <= last else ():
            drawn = drawn_from(project, iterated(over), use)
            for turn in turns(project, *drawn) or [Turn(project.things(*drawn))]:
                if turn.loaders and all(t.name == LOADER and t.call is not None for t in turn.loaders):
                    trains = goes_backward(project, scope, node, 0, turn.settings)
                    yield Pass(node, over, use, turn.loaders, trains, turn.settings)
    for call, use in scope.calls if depth < CALLS else ():
        function = project.callee(call, use) if first <= call.lineno <= last else None
        if function is not None and function is not scope and not isinstance(function.node, ast.Module):
            yield from _passes(project, function, depth=depth + 1)


def goes_backward(
    project: Project, scope: Scope, node: ast.stmt | None, depth: int, settings: Known | None = None
) -> bool:
    for call, use in reached(node, scope, settings or {}) if node is not None else scope.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("backward", "step"):
            return True
        function = project.callee(call, use) if depth < CALLS else None
        if function is not None and function is not scope and goes_backward(project, function, None, depth + 1):
            return True
    return False


# --------------------------------------------------------------------------- epochs


def _same_shuffle(project: Project, module: Module, scope: Scope) -> Iterator[SourceFact]:
    """Epochs over a loader whose DistributedSampler is never told which epoch it is."""
    for use in scope.statements:
        node = use.statement
        if not isinstance(node, ast.For) or not _counts(node):
            continue
        for each in _passes(project, scope, node.lineno + 1, node.end_lineno or 0):
            samplers = [s for thing in each.loaders for s in _samplers(project, thing)]
            if each.trains and samplers and all(_shuffles(project, s) for s in samplers):
                name = _sampler_name(project, scope, use, each)
                sampler = samplers[0]
                assert sampler.call is not None
                yield SourceFact(
                    kind="no set_epoch", name=name, text=spelled(sampler.call), where=module.where(node, scope),
                    other=sampler.use.scope.module.where(sampler.call, sampler.use.scope),
                )  # fmt: skip
                break


def _counts(node: ast.For) -> bool:
    """``for epoch in range(...)``, more than once."""
    head = node.iter
    while isinstance(head, ast.Call) and head.args and spelled(head.func).rpartition(".")[2] == "tqdm":
        head = head.args[0]
    if not isinstance(head, ast.Call) or spelled(head.func).rpartition(".")[2] not in ("range", "trange"):
        return False
    return not (len(head.args) == 1 and isinstance(head.args[0], ast.Constant) and head.args[0].value == 1)


def _samplers(project: Project, loader: Thing) -> Sequence[Thing]:
    given = argument_at(loader.call, "sampler", 3) if loader.call is not None else None
    return [_beside(loader, each) for each in project.things(given, loader.use)]


def _shuffles(project: Project, sampler: Thing) -> bool:
    """A DistributedSampler that is not told otherwise."""
    if sampler.name not in SAMPLERS or sampler.call is None:
        return False
    shuffle = argument_at(sampler.call, "shuffle", 3)
    known = all(k.arg is not None for k in sampler.call.keywords)
    return known and (shuffle is None or told(project, shuffle, sampler) is True)


def _sampler_name(project: Project, scope: Scope, use: Use, each: Pass) -> str:
    """How the sampler is called where the epochs are; nothing if it may be None there."""
    if len(each.loaders) != 1 or each.loaders[0].call is None:
        return ""
    given, site = argument_at(each.loaders[0].call, "sampler", 3), each.loaders[0].use
    if isinstance(given, ast.Call) and each.use.scope is scope:
        loader = iterated(each.over)
        return f"{spelled(loader)}.sampler" if isinstance(loader, (ast.Name, ast.Attribute)) else ""
    if isinstance(given, ast.Name) and site.scope is scope:
        bindings = scope.reaching(given.id, use)
        return given.id if len(bindings) == 1 and isinstance(bindings[0].value, ast.Call) else ""
    return ""


# --------------------------------------------------------------------------- augmentation


def _augmented(project: Project, module: Module) -> Iterator[SourceFact]:
    """A pass that scores what a random transform has changed."""
    passes = [(scope, each) for scope in module.scopes for each in _passes(project, scope, depth=CALLS)]
    trained = {d.identity() for _, p in passes if p.trains for t in p.loaders for d in _datasets(project, t)[0]}
    served = {t.identity() for _, p in passes if p.trains for t in p.loaders}
    for scope, each in passes:
        seen = seen_in(project, scope)
        if (
            each.trains
            or all(t.identity() in served for t in each.loaders)
            or not (seen.scores(each.loop) or scores_within(project, scope, each.loop))
            or not _evaluates(project, seen, each)
            or _is_repeated(project, each)
        ):
            continue
        for loader in each.loaders if len(each.loaders) == 1 else ():
            if _is_handed_away(project, loader):
                break
            sets, split = _datasets(project, loader)
            known = bool(sets) and (split or not any(d.identity() in trained for d in sets))
            found = [random_transform(project, each_set) for each_set in sets] if known else []
            if found and all(found) and found[0] is not None:
                transform, place = found[0]
                yield SourceFact(
                    kind="augmented", name=spelled(iterated(each.over)), text=spelled(transform),
                    where=place.scope.module.where(transform, place.scope), other=module.where(each.loop, scope),
                )  # fmt: skip
                break


def _collated(project: Project, module: Module) -> Iterator[SourceFact]:
    """A pass that compares with labels what the collate function of the training has changed by chance."""
    passes = [(scope, each) for scope in module.scopes for each in _passes(project, scope, depth=CALLS)]
    trained = [collate_of(project, t) for _, p in passes if p.trains for t in p.loaders]
    for scope, each in passes:
        collate = collate_of(project, each.loaders[0]) if len(each.loaders) == 1 and not each.trains else None
        if collate is None or not any(same(collate, other) for other in trained):
            continue
        seen = seen_in(project, scope)
        if not _takes_best(seen, each) or not _evaluates(project, seen, each) or _is_repeated(project, each):
            continue
        found = by_chance(project, collate)
        if found is None and not any(_compares(project, each, p) for _, p in passes):
            found = switched(project, collate, [collate_of(project, t) for _, p in passes for t in p.loaders])
        if found is not None:
            yield SourceFact(
                kind="augmented", name=spelled(iterated(each.over)), text=spelled(found[0]),
                where=found[1].scope.module.where(found[0], found[1].scope), other=module.where(each.loop, scope),
            )  # fmt: skip


def _compares(project: Project, one: Pass, other: Pass) -> bool:
    """Both go over one data set, put together in two ways: with noise and without, to compare. Or that is not known."""
    mine, theirs = ({d.identity() for t in p.loaders for d in _datasets(project, t)[0]} for p in (one, other))
    first, second = (collate_of(project, p.loaders[0]) if p.loaders else None for p in (one, other))
    return not mine or (not mine.isdisjoint(theirs) and not same(first, second))


def _takes_best(seen: Seen, each: Pass) -> bool:
    """Scores are compared with labels: what is changed is no target."""
    return any(lies_in(c, each.loop) for c, _, _ in seen.methods("argmax", "eq", "topk")) and seen.scores(each.loop)


def _is_repeated(project: Project, each: Pass) -> bool:
    """``for draw in range(50)`` around a pass, or around the call of its function, in which nothing trains."""
    sites = project.calls_of(each.use.scope)
    if any(seen_in(project, place.scope).draws(call) for call, place in sites):
        return True
    return any(_again(project, place) for place in (each.use, *(place for _, place in sites)))


def _again(project: Project, place: Use) -> bool:
    loops = [u.statement for u in place.scope.statements if isinstance(u.statement, ast.For)]
    around = [n for n in loops if n is not place.statement and lies_in(place.statement, n) and _counts(n)]
    named = [n for n in around if re.search(r"^(ep?|\w*epoch\w*|\w*round\w*)$", spelled(n.target)) is None]
    return any(not goes_backward(project, place.scope, n, 0, {}) for n in named)


def _evaluates(project: Project, seen: Seen, each: Pass) -> bool:
    """Without gradients, or behind an eval()."""
    if seen.without_grad(each.use):
        return True
    inside = [u for u in seen.scope.statements if lies_in(u.statement, each.loop)]
    inside = [u for u in inside if u.statement is not each.loop and not is_left_out(u, each.settings)]
    if any(seen.without_grad(u) for u in inside):
        return True
    if each.settings and _switched_off(project, seen.scope, each):
        return True
    asked = [(c, u) for c, _, u in seen.methods("eval") if not c.args and c.lineno <= each.loop.lineno]
    return any(not is_left_out(u, each.settings) for _, u in asked)


def _switched_off(project: Project, scope: Scope, each: Pass) -> bool:
    """``set_grad_enabled(phase == "train")``, ``model.train(training)``, in the other phase."""
    for call, use in scope.calls:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if name in ("set_grad_enabled", "train") and len(call.args) == 1:
            if truth(call.args[0], each.settings, use) is False:
                return True
    return False


def _is_handed_away(project: Project, loader: Thing) -> bool:
    """``use_plain(valid_set)``: a function of which nothing is known gets the data set, and gives nothing back."""
    given = argument_at(loader.call, "dataset", 0) if loader.call is not None else None
    for call, use in loader.use.scope.calls if isinstance(given, ast.Name) else ():
        alone = isinstance(use.statement, ast.Expr) and use.statement.value is call and isinstance(call.func, ast.Name)
        plain = alone and not hasattr(builtins, spelled(call.func)) and project.callee(call, use) is None
        if plain and any(unparsed(each) == unparsed(given) for each in call.args if given is not None):
            return True
    return False


def _datasets(project: Project, loader: Thing) -> tuple[Sequence[Thing], bool]:
    """The data set of a loader; of a part of a split, what was split."""
    call = loader.call
    given = argument_at(call, "dataset", 0) if call is not None else None
    things = project.things(given, loader.use)
    if things and all(t.name == SUBSET and t.call is not None and t.call.args for t in things):
        wholes = [w for t in things if t.call is not None for w in project.things(t.call.args[0], t.use)]
        return [_beside(loader, w) for w in wholes if w.call is not None], True
    if things or not isinstance(given, (ast.Name, ast.Attribute)):
        return [_beside(loader, t) for t in things if t.call is not None], False
    wholes = []
    for each in origins(project, given, loader.use) or _unpacked(project, given, loader.use):
        value = each.node
        split = isinstance(value, ast.Call) and project.dotted(value.func, each.use)
        if split != "torch.utils.data.random_split" or not isinstance(value, ast.Call) or not value.args:
            return [], False
        wholes += project.things(value.args[0], each.use)
    return [t for t in wholes if t.call is not None], True


def _unpacked(project: Project, node: ast.Name | ast.Attribute, use: Use) -> list[Source]:
    """The call whose result is taken apart, of which a name or an attribute of self is a part."""
    return [Source(b.value, b.use) for b in project.holding(node, use, 0) if b.value is not None]


def _beside(loader: Thing, made: Thing) -> Thing:
    """What one call of a function made together with a loader: another call made another one."""
    local = made.use.scope is loader.use.scope and made.use.scope.parent is not None
    return replace(made, via=(*loader.via, *made.via)) if local else made
