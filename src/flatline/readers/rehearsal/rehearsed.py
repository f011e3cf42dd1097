"""A file rehearsed: twice, with every question that has no answer answered once so and once so. What both agree on is told."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache

from flatline.events import SourceFact, SourceLoop, SourceLoss, SourceTick, Where
from flatline.readers.rehearsal.machine import Choose, Exhausted, Machine, Raised
from flatline.readers.rehearsal.statements import LANGUAGE
from flatline.readers.rehearsal.values import MORE, Weight, weights_of
from flatline.readers.rehearsal.watcher import Watcher, modes_in
from flatline.readers.source._cuts import ON_PURPOSE as ON_PURPOSE_CUT
from flatline.readers.source._facts import ON_PURPOSE, OTHER_SCALING
from flatline.readers.source._imported import FILES, all_reached, one_says
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Class, Module, spelled
from flatline.readers.source._ticks import RESCALES

COUPLED = ("torch.optim.Adam", "torch.optim.Adamax")
LOSSES = ("mean loss", "mean")  # what a loss and its terms are made by
CHOSEN = re.compile(
    r"\]\(|\bgetattr\(|@\w+(\.\w+)?\(\s*['\"]|hook|callback|handler|if \w+(\.lower\(\))? == ['\"]\w+['\"]:\s+return"
)
FINDS = re.compile(r"import_module|iter_modules|walk_packages|entry_points|__import__|spec_from_file|pkgutil")
KNOWN = re.compile(
    r"Module|Dataset|Sampler|NamedTuple|Enum|Env|Wrapper|Function|Exception|Error|Parser|Optimizer|Scheduler|LR$|dataclass"
)


@dataclass(slots=True)
class Seen:
    """What the rehearsals of a file agree on."""

    losses: list[SourceLoss] = field(default_factory=list)
    loops: list[SourceLoop] = field(default_factory=list)
    facts: list[SourceFact] = field(default_factory=list)
    cleared: set[tuple[str, str, int]] = field(default_factory=set)  # kinds and places at which nothing is wrong
    awake: bool = False  # every step was taken in train mode
    sometimes: set[Where | None] = field(default_factory=set)  # schedules that step in some turns of a loop
    all_held: bool = False  # every weight that learns is in an optimizer

    def corrected(self, loop: SourceLoop) -> SourceLoop:
        """A loop that the syntax shows, without a sleep that no step was taken in, and lengths of what steps in some turns only."""
        if not self.awake and not self.sometimes:
            return loop
        return replace(loop, paths=tuple(tuple(self._ticks(path)) for path in loop.paths))

    def _ticks(self, path: tuple[SourceTick, ...]) -> Iterator[SourceTick]:
        for tick in path:
            if tick.kind == "schedule" and tick.where in self.sometimes:
                yield replace(tick, horizon="", length=None, in_batches=False)
            elif tick.kind != "eval" or not self.awake:
                yield tick

    def allows(self, fact: SourceFact) -> bool:
        """Whether a fact that the syntax shows stands, after what was seen in the rehearsal."""
        if fact.kind == "orphan" and self.all_held:
            return False
        return _key(fact) not in self.cleared


def rehearsed(project: Project, module: Module) -> Seen:
    """What is seen when a file is run; nothing for one that trains nothing, or only defines things."""
    files = all_reached(project, module) if "torch" in module.whole and is_program(module) else []
    trains = any(".backward(" in each.whole for each in files)
    if not trains or len(files) >= FILES or not any(map(is_indirect, files)):
        return Seen()
    try:
        watchers = list(_both(project, module, files))
    except (Exhausted, RecursionError):
        return Seen()
    quiet = {"no set_epoch"} if any("set_epoch" in each.whole for each in files) else set()
    quiet |= {"half"} if one_says(files, OTHER_SCALING) else set()
    facts = [fact for fact in _facts(watchers) if fact.kind not in quiet]
    cleared = set[tuple[str, str, int]]()
    trained = all(watcher.learned for watcher in watchers)
    if trained:
        cleared = set().union(*(watcher.judged for watcher in watchers)) - set(map(_key, facts))
        cleared = cleared.difference(*(watcher.open for watcher in watchers))
    return Seen(
        list(_losses(watchers)),
        list(_loops(watchers)),
        facts,
        cleared,
        awake=trained and not any(watcher.slept for watcher in watchers),
        sometimes=set().union(*(watcher.sometimes for watcher in watchers)),
        all_held=all(map(_holds_all, watchers)),
    )


def _holds_all(watcher: Watcher) -> bool:
    """Every weight that learned is in an optimizer."""
    return bool(watcher.learned) and set(watcher.learned) <= watcher.holds()[0]


def _both(project: Project, module: Module, files: Sequence[Module]) -> Iterator[Watcher]:
    """A rehearsal that takes what is not known for true; where anything was, another one for false."""
    asked: list[ast.AST] = []
    yield rehearse(project, module, files, lambda node: not asked.append(node))  # type: ignore[func-returns-value]
    if asked:
        yield rehearse(project, module, files, lambda node: False)


def is_program(module: Module) -> bool:
    """It does something when it is run."""
    return any(_does(node) for node in module.tree.body)


@cache
def is_indirect(module: Module) -> bool:
    """Who does what is chosen by names, tables and objects: what the syntax alone shows is read without a rehearsal."""
    return CHOSEN.search(module.whole) is not None or any(map(_is_own, module.classes.values()))


def _is_own(made: Class) -> bool:
    """A class of the project alone: a trainer, a callback, a loss."""
    heads = [unparsed(head) for head in (*made.node.bases, *made.node.decorator_list)]
    return bool(made.methods) and not any(KNOWN.search(head) for head in heads)


def _does(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return "__name__" in unparsed(node.test)
    return isinstance(node, (ast.For, ast.While, ast.With)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )


def rehearse(project: Project, module: Module, files: Sequence[Module], choose: Choose) -> Watcher:
    """Once through a file, and through those of the files that it imports. Raises Exhausted."""
    watcher = Watcher(rescaled=one_says(files, RESCALES))
    machine = Machine(project, watcher, choose, {each.text.path for each in files}, LANGUAGE)
    machine.closed = not one_says(files, FINDS)
    with suppress(Raised):
        machine.file(module, "__main__")
    watcher.escaped = frozenset(machine.escaped)
    return watcher


def _losses(watchers: list[Watcher]) -> Iterator[SourceLoss]:
    """Calls of loss functions that were fed by the same operation every time."""
    places = {key for watcher in watchers for key in watcher.losses}
    for key in places:
        each = [told for watcher in watchers for told in watcher.losses.get(key, ())]
        if len({(told.kind, told.fed_by) for told in each}) == 1 and each[0].fed_by:
            yield each[0]


def _loops(watchers: list[Watcher]) -> Iterator[SourceLoop]:
    """Loops with all ways through them."""
    places = dict.fromkeys(place for watcher in watchers for place in watcher.loops)
    for place in places:
        each = [loop for watcher in watchers for loop in watcher.loops.get(place, ())]
        paths = {_told(path): path for loop in each for path in loop.paths}
        yield SourceLoop(paths=tuple(paths.values()), turns=each[0].turns, count=each[0].count, where=place)


def _told(path: tuple[SourceTick, ...]) -> tuple[tuple[object, ...], ...]:
    return tuple((t.kind, t.where, t.of, t.depth, t.always) for t in path)


def _facts(watchers: list[Watcher]) -> Iterator[SourceFact]:
    """What every rehearsal tells that came by the place, or that trained where no place is known."""
    each = [({_key(fact): fact for fact in _of(watcher)}, watcher) for watcher in watchers if watcher.learned]
    for key, fact in {key: fact for told, _ in each for key, fact in told.items()}.items():
        judges = [told for told, watcher in each if key in watcher.judged | watcher.passed] or [
            told for told, _ in each
        ]
        if all(key in told for told in judges):
            yield fact


def _key(fact: SourceFact) -> tuple[str, str, int]:
    return (fact.kind, fact.where.file, fact.where.line) if fact.where is not None else (fact.kind, "", 0)


def _of(watcher: Watcher) -> Iterator[SourceFact]:
    """What one rehearsal shows at its end."""
    for mark in watcher.marks:
        if mark.kind == "logged softmax":
            text = mark.place.text
            yield SourceFact(kind=mark.kind, name=text, where=mark.place.where, text=text)
    for mark in {mark.place.node: mark for mark in watcher.marks if mark.kind == "half"}.values():
        yield SourceFact(kind="half", text=mark.place.text, where=mark.place.where)
    yield from watcher.passes.facts(watcher.escaped)
    yield from _kept(watcher)
    yield from _coupled(watcher)
    held, whole = watcher.holds()
    if whole:
        yield from _replaced(watcher, held)
        yield from _cut(watcher, held)
        yield from _awake(watcher, held)


def _replaced(watcher: Watcher, held: frozenset[Weight]) -> Iterator[SourceFact]:
    """New layers that learn, and that no optimizer holds."""
    for each in watcher.others:
        learn = any(weight in watcher.learned for weight in each.new)
        if learn and not each.new & held and not any(id(weight) in watcher.escaped for weight in each.new):
            yield each.fact


def _cut(watcher: Watcher, held: frozenset[Weight]) -> Iterator[SourceFact]:
    """Layers that an optimizer holds, behind a loss, and computed without gradients alone."""
    told = set[Where]()
    for mark in watcher.marks:
        weight = mark.of
        if mark.kind != "cut layer" or weight not in held or weight in watcher.learned or weight in watcher.loaded:
            continue
        made = weight.layer.place
        if made is None or not weight.layer.dotted.startswith("torch.nn."):
            continue  # the parts of a model of a library are not told apart
        if ON_PURPOSE_CUT.search(made.env.module.line(made.node)):
            continue
        free = weight.attributes.get("requires_grad") is True and id(weight) not in watcher.escaped
        if free and mark.place.where not in told:
            told.add(mark.place.where)
            yield SourceFact(
                kind="cut layer", name=made.text, text=mark.place.text, where=made.where, other=mark.place.where
            )


def _awake(watcher: Watcher, held: frozenset[Weight]) -> Iterator[SourceFact]:
    """Trained models that score in train mode, and never were in another."""
    for value, place in watcher.passes.asleep:
        weights = frozenset(weight for _, weight in weights_of(value))
        trained = weights & held and weights & set(watcher.learned)
        if trained and not weights & watcher.evaluated and not ON_PURPOSE.search(place.env.module.whole):
            yield SourceFact(
                kind="validated",
                name=modes_in(value),
                text=place.text.partition("(")[0],
                where=place.where,
            )


def _coupled(watcher: Watcher) -> Iterator[SourceFact]:
    """``Adam(weight_decay=0.01)``, whatever chose it."""
    for made in watcher.optimizers.values():
        decay, place = made.kwargs.get("weight_decay"), made.place
        switched = MORE in made.kwargs or "decoupled_weight_decay" in made.kwargs
        known = place is not None and isinstance(decay, (int, float)) and decay > 0 and not switched
        if known and place is not None and made.dotted in COUPLED:
            yield SourceFact(kind="coupled", name=made.name, text=f"{decay:g}", where=place.where)


def _kept(watcher: Watcher) -> Iterator[SourceFact]:
    """Lists of losses with their graphs."""
    for kept in watcher.kept.values():
        place = kept.place
        used = any(mark.place is place for mark in watcher.marks)
        lost = [each for each in kept.tensors if each.reach and (each.done or (each.by in LOSSES and not used))]
        if kept.together and len(lost) > 1 and isinstance(place.node, ast.Call):
            name = spelled(place.node.args[0])
            yield SourceFact(kind="kept", name=name, text=place.text, where=place.where)
