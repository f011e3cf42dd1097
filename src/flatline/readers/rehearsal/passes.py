"""Passes over data: what trains, what scores, and what the items went through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from flatline.events import SourceFact, Where
from flatline.readers.rehearsal.machine import Loop, Machine
from flatline.readers.rehearsal.tensors import within
from flatline.readers.rehearsal.values import UNKNOWN, Made, Object, Place, Value, call_at
from flatline.readers.source._augments import COMPOSED, FLIPS, RANDOM, SECOND, THIRD


@dataclass(slots=True, eq=False)
class Pass:
    """A loop over a loader."""

    where: Where
    name: str
    loader: Made
    dataset: Value
    drawn: list[Made]  # random transforms that every item goes through
    epochs: Loop | None  # the loop around it


@dataclass(slots=True, eq=False)
class Passes:
    """Those of one rehearsal."""

    trained: list[Pass] = field(default_factory=list)
    scored: list[Pass] = field(default_factory=list)
    told: set[int] = field(default_factory=set)  # samplers that were told the epoch
    vague: bool = False  # something that is not known was told the epoch
    asleep: list[tuple[Value, Place]] = field(default_factory=list)  # modules that scored in train mode

    def over(self, m: Machine, loop: Loop, loader: Made) -> None:
        """A loop over a loader is over."""
        around = m.loops[-1] if m.loops else None
        dataset = loader.given("dataset", 0)
        found = Pass(loop.where, loop.text, loader, dataset, [], around)
        if any(tick.kind in ("backward", "step") for turn in loop.turns for tick in turn):
            found.drawn = list(drawn(m, dataset))
            self.trained.append(found)
        elif loop.quiet and loop.scores and not (around is not None and around.quiet):
            found.drawn = list(drawn(m, dataset))
            self.scored.append(found)
            self.asleep += loop.awake if not any(each.loader is loader for each in self.trained) else []

    def facts(self, escaped: frozenset[int]) -> Iterator[SourceFact]:
        """What is wrong with them."""
        yield from self._augmented(escaped)
        yield from self._same_order(escaped)

    def _augmented(self, escaped: frozenset[int]) -> Iterator[SourceFact]:
        served = {id(each.dataset) for each in self.trained} | {id(each.loader) for each in self.trained}
        shared = {id(made.place.node) for each in self.trained for made in each.drawn if made.place is not None}
        for each in self.scored:
            same = [made for made in each.drawn if made.place is not None and id(made.place.node) in shared]
            known = (
                id(each.dataset) not in served and id(each.loader) not in escaped and id(each.dataset) not in escaped
            )
            if same and known and same[0].place is not None:
                place = same[0].place
                yield SourceFact(kind="augmented", name=each.name, text=place.text, where=place.where, other=each.where)

    def _same_order(self, escaped: frozenset[int]) -> Iterator[SourceFact]:
        for each in self.trained if not self.vague else ():
            sampler = each.loader.given("sampler", 3)
            around = each.epochs
            if (
                isinstance(sampler, Made)
                and sampler.name == "DistributedSampler"
                and sampler.kwargs.get("shuffle", True) is True
                and sampler.place is not None
                and around is not None
                and sum(other.loader.given("sampler", 3) is sampler for other in self.trained) > 1
                and id(sampler) not in self.told
                and not {id(sampler), id(each.loader)} & escaped
            ):
                place = sampler.place
                yield SourceFact(kind="no set_epoch", text=place.text, where=around.where, other=place.where)


def loader_of(over: Value) -> Made | None:
    """The DataLoader in ``enumerate(loader)``."""
    while isinstance(over, Made) and over.dotted in ("enumerate", "zip") and over.args:
        over = over.args[0]
    return over if isinstance(over, Made) and over.name == "DataLoader" else None


def drawn(m: Machine, dataset: Value, depth: int = 0) -> Iterator[Made]:
    """The random transforms that every item of a data set goes through."""
    if isinstance(dataset, Made) and dataset.name == "Subset" and depth < DEEP:
        yield from drawn(m, dataset.given("dataset", 0), depth + 1)
    elif isinstance(dataset, Made) and dataset.dotted.startswith("torchvision.datasets."):
        place = 1 if dataset.name in SECOND else 2 if dataset.name in THIRD else len(dataset.args)
        yield from random_in(dataset.given("transform", place))
    elif isinstance(dataset, Object):
        yield from _by_item(m, dataset)


def _by_item(m: Machine, dataset: Object) -> Iterator[Made]:
    """Those that ``__getitem__`` calls."""
    found = dataset.made_of.function("__getitem__")
    if found is None:
        return
    m.transforms, loops, unsure = [], m.loops, m.unsure
    m.loops = []
    try:
        m.call(found, [dataset, UNKNOWN], {}, call_at(found.node, "__getitem__"), found.env)
    finally:
        m.loops, m.unsure = loops, unsure
    for transform, sure in m.transforms:
        yield from random_in(transform) if sure else ()


def random_in(transform: Value) -> Iterator[Made]:
    """The random steps of a transform."""
    waiting, seen = list(within(transform)), set[int]()
    while waiting:
        each = waiting.pop(0)
        if not isinstance(each, Made) or id(each) in seen:
            continue
        seen.add(id(each))
        if COMPOSED.fullmatch(each.dotted):
            waiting = [*within(each.args), *waiting]
        elif RANDOM.fullmatch(each.dotted) and _by_chance(each):
            yield each


def _by_chance(transform: Made) -> bool:
    """It is not switched off, and a flip not always on."""
    flips = FLIPS.search(transform.dotted) is not None
    chance = transform.given("p", 0) if flips else transform.kwargs.get("p")
    return chance is None or (isinstance(chance, (int, float)) and 0 < chance < (1 if flips else 2))


DEEP = 4  # parts of parts of a data set
