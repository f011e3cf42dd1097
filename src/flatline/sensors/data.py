"""Sees batches leave DataLoaders: how long a pass is, in which order, whether it is the same batch again."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Iterable
from itertools import count, pairwise
from types import FunctionType
from typing import Any

import torch

from flatline.events import (
    AugmentedApart,
    BatchesServed,
    BatchRepeated,
    CollatedApart,
    InputsObserved,
    ItemsRedrawn,
    LabelFacts,
    PairingProbed,
    PassEnded,
    PathsMispaired,
    RowsMispaired,
    SamplesAlike,
    TargetsObserved,
    Where,
    WorkersAlike,
    WorkersStarted,
)
from flatline.sensors import batches
from flatline.sensors.altered import Altered
from flatline.sensors.augmented_apart import Views
from flatline.sensors.callers import caller, is_users, users_frame
from flatline.sensors.collated_apart import Collations
from flatline.sensors.collected import collected_shuffled
from flatline.sensors.dealt_again import DealtAgain
from flatline.sensors.drawn_twice import drawn_twice
from flatline.sensors.image_ranges import ImageRanges
from flatline.sensors.item_rows import rows_apart
from flatline.sensors.left_sorted import left_sorted, sorted_alone
from flatline.sensors.lengths import length_of
from flatline.sensors.lone_batch import LoneBatches
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import ModelSensor, fingerprint, readable, tensors_in, vocabulary
from flatline.sensors.origins import FEW, Origins
from flatline.sensors.paired_paths import mispaired
from flatline.sensors.pairing import COLUMNS, Measured, Pairing, are_ids, lone_permutation
from flatline.sensors.patching import Patches
from flatline.sensors.ranked import Place, Rankings, sliced_place
from flatline.sensors.repaired import Repaired, repaired
from flatline.sensors.revisited import Learned, Revisits, base, glimpse, held_out, made_alike
from flatline.sensors.scaled_apart import ScaledApartSensor
from flatline.sensors.seeds import copied_generator, lost_step, seeded_draw
from flatline.sensors.sentinels import Sentinels
from flatline.sensors.text_order import sorted_by_text
from flatline.sensors.waiting import Waiting
from flatline.sensors.worker_rounds import Rounds, served_by, streams
from flatline.sensors.workers import leaves_alone, seeded_alike
from flatline.sensors.zipped import Zipped

REMEMBERED = 8
FEW_LOOKS = 6  # at labels, before one label alone is worth another
LOOKS_AGAIN = 4
LATER_STEPS = (50, 100, 200, 400)  # where to look again without a DataLoader
PAIRINGS = 4  # losses whose inputs and labels are kept
MANY_ROWS = 600  # of which simple rules tell nothing
REPEATED = 5  # equal inputs in a row, before the source is asked why
MATTERS, NOTHING = 0.003, 1e-9  # losses: under the first one rises are noise; the other stands for 0
INDICES = 256  # of one batch that are compared
HELD = 1_048_576  # numbers of an input that nobody else may keep until the backward: four megabytes
PLAIN = (int, str)  # indices that are kept
ANSWERS = ("linear", "convolution", "")  # what raw scores come from; others are no answers yet, or bent ones
UNLIKE = count(1)


class Order:
    """The samples that one pass over a loader asked for, as far as a number can tell."""

    def __init__(self, number: int) -> None:
        self.number = number  # of the pass, from 1
        self.asked = 0  # batches
        self.served = 0
        self.begun = 0  # step of the first batch
        self.hash = 0
        self.sequential = True
        self.samples: deque[tuple[Any, ...]] = deque()  # first indices of batches asked for, and not yet served
        self._next = 0

    def add(self, indices: Any) -> int:
        """One more batch was asked for. Returns what tells its indices from others."""
        some = indices if isinstance(indices, list) else [indices]
        self.asked += 1
        self.samples.append(tuple(index if type(index) in PLAIN else None for index in some[:FEW]))
        if self.sequential:
            whole = bool(some) and all(type(end) is int for end in (some[0], some[-1]))
            self.sequential = whole and some[0] == self._next and some[-1] - some[0] == len(some) - 1
            self._next = some[-1] + 1 if self.sequential else 0
        batch = _hash(some if len(some) <= INDICES else some[:: len(some) // INDICES])
        self.hash = hash((self.hash, batch))
        return batch


def _hash(indices: Iterable[Any]) -> int:
    """Indices of a class of the user's are each unlike all others: nothing of theirs is called."""
    return hash(tuple(each if type(each) in PLAIN else _print(each) for each in indices))


def _print(index: Any) -> int:
    if type(index) in (tuple, list, dict):
        return _hash(index.items() if type(index) is dict else index)
    built_in = not isinstance(type(index).__hash__, FunctionType) and type(index).__hash__ is not None
    return hash(index) if built_in and type(index).__module__ in ("builtins", "numpy") else next(UNLIKE)


def asks_for_each(loader: Any) -> bool:
    """It asks a data set of the user's for different items: its samplers are torch's, and none draws one twice."""
    sampler, batches_of = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    plain = type(sampler).__name__ in ("RandomSampler", "SequentialSampler") and not getattr(
        sampler, "replacement", False
    )
    return (
        plain
        and type(batches_of).__name__ == "BatchSampler"
        and not type(loader.dataset).__module__.startswith("torch.")
    )


def own_collation(loader: Any) -> Collations | None:
    """Of a loader whose batches are made here, by a function of the user's."""
    collate = getattr(loader, "collate_fn", None)
    here = getattr(loader, "batch_sampler", None) is not None and not getattr(loader, "num_workers", 0)
    if not here or not isinstance(collate, FunctionType) or not is_users(collate.__code__.co_filename):
        return None
    return Collations(collate)


def _torn_apart(where: Where | None, rows: int, dataset: Any) -> tuple[str, Where | None]:
    """The statement that moves the rows of one side alone; an order by text may be the right one, so it takes many rows."""
    if where is None:
        return "", None
    text, place = lone_permutation(where.file, where.line)
    if not text:
        text, place = collected_shuffled(where.file)
    if not text:
        text, place = sorted_alone(where.file)
    if not text and (found := rows_apart(dataset)) is not None:
        text, place = found.text, found.where
    return (text, place) if text or rows < MANY_ROWS else sorted_by_text(where.file)


class Loader:
    """One DataLoader under watch."""

    def __init__(self, loader: Any, key: int) -> None:
        self.key = key
        self.told = False  # what its workers copy
        self.workers = getattr(loader, "num_workers", 0)
        self.fills_up = batches.fills_up(getattr(loader, "collate_fn", None))
        self.persistent = bool(getattr(loader, "persistent_workers", False))
        self.own_items = asks_for_each(loader)
        streamed = any(kind.__name__ == "IterableDataset" for kind in type(loader.dataset).__mro__)
        init = getattr(loader, "worker_init_fn", None)
        several = self.workers > 1
        copied = copied_generator(loader.dataset) if several else None
        self.copied = copied if copied is not None and leaves_alone(init, copied[1]) else None
        self.alike = seeded_alike(init, loader.dataset) if several and not streamed and init is not None else None
        self.rounds = streams(loader.dataset, self.workers)
        self.order: Order | None = None  # of the newest pass
        self.position = 0  # in it, of the newest batch
        self.same_order = 0  # complete passes in a row with the same order
        self._last_order: int | None = None
        self._stepped: frozenset[int] = frozenset()  # optimizers, when that row began
        self.fed_before = 0  # backwards, when the newest pass began
        self.ref = weakref.ref(loader)
        self.length, self.samples = length_of(loader), length_of(loader.dataset)
        self.like = type(loader.dataset).__name__, self.length, str(getattr(loader, "batch_size", None))
        self.passes = 0
        self.served = 0  # batches, in all passes
        self.fed = 0  # backwards that followed one of its batches
        self.revisits: Revisits | None = Revisits()
        self.learned = Learned()
        self.views: Views | None = Views()
        self.collations = own_collation(loader)

    def begin(self) -> Order:
        """A new pass."""
        self.passes += 1
        self.position, self.fed_before = 0, self.fed
        self.order = Order(self.passes)
        return self.order

    def end(self, stepped: frozenset[int]) -> int | None:
        """The newest pass is over: optimizers that are new since its order was first seen; None if it was no training."""
        order, fed = self.order, self.fed - self.fed_before
        if order is None or not fed:
            return None
        if not order.asked == order.served == self.length:
            self.same_order = 0
            return None
        if self.same_order == 0 or order.hash != self._last_order:
            self.same_order, self._stepped = 0, stepped
        self.same_order, self._last_order = self.same_order + 1, order.hash
        return len(stepped - self._stepped)

    def sampler(self) -> str:
        """The class that decides about the order."""
        loader = self.ref()
        batch_sampler = getattr(loader, "batch_sampler", None)
        own = batch_sampler is not None and type(batch_sampler).__name__ != "BatchSampler"
        return type(batch_sampler if own else getattr(loader, "sampler", None)).__name__


class DataSensor:
    """Patches the iterators that every DataLoader hands out."""

    def __init__(self, loop: Loop, patches: Patches, models: ModelSensor) -> None:
        self.loop, self.patches, self.models = loop, patches, models
        self.waiting = Waiting(loop, patches)
        self.lone = LoneBatches(loop)
        self._scaled = ScaledApartSensor(loop)
        self._ranges = ImageRanges(loop)
        self.sentinels = Sentinels(loop)
        self.loaders: dict[int, Loader] = {}
        self.losses: Iterable[float] = ()  # the newest ones
        self.newest: Loader | None = None
        self._batch: tuple[int, int] | None = None
        self._fed: set[tuple[int, int]] = set()  # pass and place of the batches learned from since the last step
        self._trained_on: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        self._indices = 0
        self._served_at: set[int] = set()  # addresses of the newest batch's tensors, at a close look
        self._keys = 0
        self._served_since_step = False
        self._built: Counter[tuple[str, int | None, str]] = Counter()  # loaders that are like each other
        self._last_served = 0  # step that the newest batch belonged to
        self._repeats: dict[str, batches.Repeats] = {}
        self._input: tuple[int, Any] = (0, None)  # step, weak reference to what the model in training was called with
        self._several = False  # it was called with others beside
        self._held: torch.Tensor | None = None  # and itself, until the step: nobody else may keep ``x[rows]``
        self._pairings: dict[int, Pairing] = {}
        self._measured: dict[int, Measured] = {}
        self._begin()
        loop.begins.append(self._begin)
        self._altered = Altered()
        self._origins = Origins()
        self._zipped = Zipped(loop, self._origins)
        self._rankings = Rankings(loop)
        self._dealt: dict[str, DealtAgain] = {}

    def _begin(self) -> None:
        """What is known of one training's data."""
        self._pairings.clear()
        self._measured.clear()
        self._labels: set[int] = set()  # the first two different ones
        self._class_by_class = True  # no look saw labels that come and go within a batch
        self._looks = 0  # at labels
        self._looks_again = LOOKS_AGAIN
        self._rows: set[int] = set()  # of the inputs of batches that no loader served

    def attach(self) -> None:
        """Patch the base class of the iterators."""
        from torch.utils.data import dataloader

        base = dataloader._BaseDataLoaderIter
        self.patches.around(base, "__init__", before=self._started)
        self.patches.around(base, "__next__", after=self._served, light=self.waiting.asked)
        self.patches.around(base, "_next_index", after=self._indexed)
        self.patches.around(base, "_reset", before=self._again)
        self.models.targets_seen = self.patches.guard_inner(self._targets)
        self.models.inputs_seen = self.patches.guard_inner(self._inputs)
        self.models.validation_seen = self.patches.guard_inner(self._validated)

    def _started(self, iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        known = self.loaders.get(id(loader))
        if known is None or known.ref() is not loader:
            self._keys += 1
            known = self.loaders[id(loader)] = Loader(loader, self._keys)
            self._built[known.like] += 1
        else:
            self._pass_ended(known)
        iterator._flatline_loader, iterator._flatline_order = known, known.begin()

    def _again(self, iterator: Any, loader: Any, first_iter: bool = False) -> None:
        """Persistent workers: the same iterator starts over."""
        known: Loader | None = getattr(iterator, "_flatline_loader", None)
        if known is not None and not first_iter:
            self._pass_ended(known)
            iterator._flatline_order = known.begin()

    def _pass_ended(self, loader: Loader) -> None:
        states = [*self.loop.states, *self.loop.retired]
        new = loader.end(frozenset(state.key for state in states if state.steps))
        if new is None or loader.order is None:
            return
        self.loop.emit(
            PassEnded(
                step=self.loop.steps,
                where=caller(),
                loader=loader.key,
                batches=loader.order.served,
                length=loader.length,
                sampler=loader.sampler(),
                sequential=loader.order.sequential,
                same_order=loader.same_order,
                new_optimizers=new,
            )
        )

    def _indexed(self, indices: Any, iterator: Any) -> None:
        order: Order | None = getattr(iterator, "_flatline_order", None)
        if order is not None:
            batch = order.add(indices)
            if self.loop.dense and getattr(iterator, "_num_workers", 0) == 0:
                self._indices = batch

    def _served(self, batch: Any, iterator: Any) -> None:
        loader: Loader | None = getattr(iterator, "_flatline_loader", None)
        if loader is None:
            return
        self.waiting.served(iterator)
        self.newest, self._served_since_step = loader, True
        order: Order = iterator._flatline_order
        order.served += 1
        samples = order.samples.popleft() if order.samples else ()
        loader.position = order.served
        loader.served += 1
        if loader.served == 1 and not self.loop.steps:
            self.lone.served(iterator, loader, batch)
        if loader.rounds is not None:
            self._compare_workers(loader, loader.rounds, iterator, batch)
        if loader.revisits is not None:
            self._revisit(loader, loader.revisits, order, batch)
        if not loader.learned.done and loader.revisits is None:
            loader.learned.add(samples, batch)
        if loader.collations is not None:
            self._collated(loader, loader.collations, iterator, batch)
        if loader.views is not None and loader.fed:
            self._see_again(loader, loader.views, samples, batch)
        if self._looks >= FEW_LOOKS and loader.length and order.served in (loader.length // 2, 3 * loader.length // 4):
            self._look_again()
        known = [entry for entry in self.loaders.values() if entry.fed]
        self.models.batch_is_foreign = bool(known) and not loader.fed
        if self.loop.dense:
            self._served_at = {t.data_ptr() for t in tensors_in(batch)}
            self.models.batch_filled_up = loader.fills_up
            self.models.batch = [weakref.ref(t) for t in tensors_in(batch)]
            self._batch = self._together(batch)
            self._origins.add(loader.key, samples, batch)
            if order.served == 1 and self._restarts(loader) > 1:
                self._altered.serve(batch)
            for state in self.loop.states:
                state.window.tick("batch")

    def _collated(self, loader: Loader, collations: Collations, iterator: Any, batch: Any) -> None:
        """One more batch of a collate function of the user's; the next ones are made under our eyes."""
        fetcher: Any = getattr(iterator, "_dataset_fetcher", None)
        now: Any = getattr(fetcher, "collate_fn", None)
        own = collations.own_of(now)
        if own is not None:
            if not collations.made(batch):
                fetcher.collate_fn, loader.collations = own, None
        elif collations.is_own(now) and self.loop.wants(CollatedApart):
            fetcher.collate_fn = collations.watched(now)

    def _paired_in_batch(self, target: Any) -> None:
        """A loss was given targets: are they in the order of what was collated?"""
        collations = self.newest.collations if self.newest is not None else None
        found = collations.learned(target) if collations is not None and isinstance(target, torch.Tensor) else None
        if found is not None:
            self.loop.emit(
                CollatedApart(
                    step=self.loop.step, where=found.where, batches=found.batches, rows=found.rows, wrong=found.wrong
                )
            )

    def _revisit(self, loader: Loader, revisits: Revisits, order: Order, batch: Any) -> None:
        """One more batch of a loader that nothing was learned from so far."""
        if order.served == 1:
            order.begun = self.loop.steps
            taught = loader.length == 1 and torch.is_grad_enabled()
            plain = order.sequential and not taught
            revisits.add(glimpse(self.loop.steps, batch) if plain and self.loop.steps else None)
        if loader.fed or order.begun != self.loop.steps:
            loader.revisits = None
        elif order.served == 1 and revisits.redrawn():
            self._tell_redrawn(loader, revisits)

    def _see_again(self, loader: Loader, views: Views, samples: tuple[Any, ...], batch: Any) -> None:
        """One more batch of a loader that is learned from."""
        views.add(samples, batch, close=self.loop.dense)
        found = views.turned() if self.loop.wants(AugmentedApart) else None
        if found is not None:
            self.loop.emit(
                AugmentedApart(
                    step=self.loop.step,
                    where=caller(),
                    item=found.item,
                    image=found.image,
                    mask=found.mask,
                    apart=found.apart,
                    compared=found.compared,
                )
            )
        twice = self._tell_drawn_twice(loader, views) if found is None else True
        if twice or views.done:
            views.close()
            loader.views = None

    def _tell_drawn_twice(self, loader: Loader, views: Views) -> bool:
        """The source says why image and mask are others when they come again: by two draws of one transform."""
        items = views.elsewhere() if self.loop.wants(AugmentedApart) else 0
        statement = drawn_twice(getattr(loader.ref(), "dataset", None)) if items else None
        if statement is not None:
            told = AugmentedApart(
                step=self.loop.step, where=statement.where, statement=statement.text, apart=items, compared=items
            )
            self.loop.emit(told)
        return statement is not None

    def _tell_redrawn(self, loader: Loader, revisits: Revisits) -> None:
        """Its items are new ones each time: is it data that nothing is learned from, and seen in no other form?"""
        others = [(other, each) for each in self.loaders.values() if each is not loader and (other := each.ref())]
        taught = [(other, each) for other, each in others if each.fed]
        beside = [each.revisits for _, each in others if each.revisits is not None]
        loader.revisits, own = None, loader.ref()
        dataset = getattr(own, "dataset", None)
        alike = any(
            each.learned.redrawn and each.learned.shape == revisits.shape() and made_alike(own, other)
            for other, each in taught
        )
        apart = held_out(dataset, [getattr(other, "dataset", None) for other, _ in taught])
        if alike and apart and not any(map(revisits.seen_plainly, beside)):
            self.loop.emit(
                ItemsRedrawn(
                    step=self.loop.step,
                    where=caller(),
                    dataset=type(base(dataset)).__name__,
                    changed=revisits.redrawn(),
                    rows=revisits.rows(),
                    passes=loader.passes,
                )
            )

    def _together(self, batch: Any) -> tuple[int, int] | None:
        """The prints of a batch, and of those that were learned from since the last step, in one."""
        prints = [fingerprint(t) for t in tensors_in(batch)]
        if self._batch is not None and self._fed:
            return hash((self._batch[0], *prints)), hash((self._batch[1], self._indices))
        return (hash(tuple(prints)), self._indices) if prints else None

    def after_backward(self) -> None:
        """The newest batch was learned from."""
        newest = self.newest
        if newest is not None:
            newest.fed += 1
            if self.loop.dense:
                self._fed.add((newest.passes, newest.position))
        if self._looks >= FEW_LOOKS and self.loop.steps in LATER_STEPS:
            self._look_again()
        self._rankings.after_backward()

    def place(self) -> tuple[int, int] | tuple[()]:
        """Where the newest batch stands in its pass, and how long that is; () if the step's batch was made by hand."""
        loader = self.newest if self._served_since_step else None
        return (loader.position, loader.length) if loader is not None and loader.length is not None else ()

    def _look_again(self) -> None:
        """Only one label was ever seen, or only batches of one: look once more, farther on in the data."""
        if (len(self._labels) == 1 or self._class_by_class) and self._looks_again:
            self._looks_again -= 1
            self.loop.look_closely()

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """Tell which batches the last steps learned from."""
        self.sentinels.after_step(self.losses)
        if self.newest is not None and self.newest.fed and not self.newest.told:
            self.newest.told = True
            self._tell_workers(self.newest, where)
            self._tell_paths(self.newest)
            self._tell_rows(self.newest)
        batch, self._batch, self._held = self._batch, None, None
        self._origins.clear()
        altered = self._altered.of_batch()
        batches_fed, self._fed = len(self._fed), set()
        if not self.loop.dense or batch is None or self.newest is None:
            return
        if self.newest.length is not None and 1 < self.newest.length <= batches_fed:
            self._trained_on.clear()  # a step learns from a whole pass
            return
        self._trained_on.append(batch)
        self.loop.emit(
            BatchesServed(
                step=self.loop.step,
                where=where,
                fingerprints=tuple(entry[0] for entry in self._trained_on),
                indices=tuple(entry[1] for entry in self._trained_on),
                restarts=self._restarts(self.newest),
                rebuilt=self._built[self.newest.like] > self.newest.passes,
                loader_length=self.newest.length,
                altered=altered,
            )
        )

    def _restarts(self, loader: Loader) -> int:
        """Passes over it, or over those that were built like it."""
        return max(loader.passes, self._built[loader.like])

    def _compare_workers(self, loader: Loader, rounds: Rounds, iterator: Any, batch: Any) -> None:
        """One more of the first batches of a stream; told of one that is learned from."""
        rounds.add(batch)
        loader.rounds = rounds if not rounds.done else None
        dataset = getattr(iterator, "_dataset", None)  # its loader may be gone
        if rounds.alike and loader.fed and dataset is not None:
            where, asks = served_by(dataset)
            self.loop.emit(
                WorkersAlike(
                    step=self.loop.steps,
                    where=where,
                    workers=loader.workers,
                    owner=type(dataset).__name__,
                    rows=rounds.rows,
                    asks=asks,
                )
            )

    def _tell_paths(self, loader: Loader) -> None:
        found = mispaired(getattr(loader.ref(), "dataset", None)) if self.loop.wants(PathsMispaired) else None
        if found is not None:
            first, second, apart, total, place = found
            told = PathsMispaired(
                step=self.loop.step, where=place, first=first, second=second, apart=apart, total=total
            )
            self.loop.emit(told)

    def _tell_rows(self, loader: Loader) -> None:
        found = rows_apart(getattr(loader.ref(), "dataset", None)) if self.loop.wants(RowsMispaired) else None
        if found is not None and found.certain:
            self.loop.emit(
                RowsMispaired(
                    step=self.loop.step,
                    where=found.where,
                    text=found.text,
                    inputs=found.inputs,
                    labels=found.labels,
                    item=found.item,
                    first=found.first,
                    second=found.second,
                    rows=found.rows,
                    share=found.share,
                )
            )

    def _tell_workers(self, loader: Loader, where: Where | None) -> None:
        """A training loader with several workers: does its data set draw from a generator that each of them copies?"""
        if loader.workers < 2:
            return
        owner, generator, kind = loader.copied or ("", "", "")
        seeding, seeded, place = loader.alike or ("", "", where)
        self.loop.emit(
            WorkersStarted(
                step=self.loop.step,
                where=place,
                seeding=seeding,
                seeded=seeded,
                workers=loader.workers,
                owner=owner,
                generator=generator,
                kind=kind,
                persistent=loader.persistent,
            )
        )

    # ------------------------------------------------------------------ inputs

    def _validated(self, model: str, first: Any) -> None:
        """A model ran without gradients."""
        self.lone.validated(model, first)
        self._scaled.validated(model, first)
        self._ranges.validated(model, first)

    def _inputs(self, model: str, tensors: list[Any], module: Any) -> None:
        """A model that is being trained was called."""
        if self.newest is not None and self.newest.views is not None:
            self.newest.views.called_with(tensors)
        first, step = tensors[0], self.loop.step
        self._rankings.called(step, tensors, module)
        self._altered.called(tensors)
        content, loader = batches.content(tensors), self._loader_of(step)
        repeats = self._repeats.setdefault(model, batches.Repeats())
        if not repeats.add(step, first, content):
            return
        self.lone.called(model, first, content=content)
        self._scaled.called(model, first)
        self._ranges.called(model, first)
        self._input, self._several = (step, weakref.ref(first)), len(tensors) > 1
        self._held = first if first.numel() <= HELD and not first.requires_grad else None
        rows, features = batches.layout(tensors)
        if loader is None and len(self._rows) < FEW:
            self._rows.add(rows)
        self.loop.emit(
            InputsObserved(
                step=step,
                where=caller(),
                model=model,
                rows=rows,
                features=features,
                equal_rows=batches.equal_rows(tensors),
                content=content,
                floating=first.is_floating_point(),
                ids_alone=not any(each.is_floating_point() for each in tensors),
                ids=batches.few_ids(tensors),
                vocabulary=vocabulary(module),
                loader=loader is not None,
                own_items=loader is not None and loader.own_items,
            )
        )
        if loader is None:
            self._dealt.setdefault(model, DealtAgain(self.loop)).called(model, step, content)
        if loader is None and repeats.times == REPEATED:
            self._tell_repeated(model, rows)

    def _tell_repeated(self, model: str, rows: int) -> None:
        seeding, place = seeded_draw(users_frame())
        lost, left = lost_step(users_frame()) if not seeding else ("", None)
        self.loop.emit(
            BatchRepeated(
                step=self.loop.step,
                where=caller(),
                model=model,
                rows=rows,
                times=REPEATED,
                seeding=seeding,
                lost=lost,
                statement=place or left,
            )
        )

    # ------------------------------------------------------------------ targets

    def _targets(
        self, kind: str, fed_by: str, scores: Any, target: Any, ignore: Any, step: int, where: Where | None
    ) -> None:
        """A loss was found under a backward: if it is one over classes, tell its labels."""
        self._paired_in_batch(target)
        self._zipped.look(kind, scores, target, where)
        found = batches.class_labels(kind, scores, target, ignore) if self.loop.wants(TargetsObserved) else None
        if found is None:
            self._regression(kind, fed_by, scores, target, step, where)
            whole = batches.one_class(kind, scores, target) if self.loop.wants(TargetsObserved) else None
            if whole is not None:
                self._tell_constant(
                    kind, "linear" if fed_by in ANSWERS else fed_by, whole, step, where, scores.shape[1]
                )
            return
        rows, labels = found
        self._looks += 1
        if len(self._labels) < 2:
            self._labels |= {int(labels.min()), int(labels.max())}
        facts = batches.label_facts(labels)
        self._class_by_class = self._class_by_class and facts.count > 2 and facts.runs <= 2
        loader = self._loader_of(step)
        stream = hash((where, kind, loader.key if loader is not None else 0))
        surprise = batches.surprise(kind, rows, labels)
        self.loop.emit(
            TargetsObserved(
                step=step,
                where=where,
                stream=stream,
                kind=kind,
                fed_by=fed_by,
                classes=max(2, rows.shape[1]),
                labels=facts,
                answers=batches.answers(kind, rows),
                surprise=surprise,
                whole=batches.whole_labels(target) or self._stored(loader, labels),
                loader=loader.key if loader is not None else 0,
                passes=loader.passes if loader is not None else 0,
                position=loader.position if loader is not None else 0,
                length=loader.length if loader is not None else None,
                jump=self._jump(),
            )
        )

        place = hash((where, kind))
        if fed_by in ANSWERS and (place in self._pairings or len(self._pairings) < PAIRINGS):
            self._pair(self._pairings.setdefault(place, Pairing(fed_by)), step, where, labels, target, surprise)

    def _stored(self, loader: Loader | None, labels: Any) -> Any:
        """The labels of a loader's data set, as it keeps them, if the loader takes them in that order."""
        known = loader.ref() if loader is not None else None
        size = getattr(known, "batch_size", None)
        if known is None or loader is None or not size or loader.length is None:
            return None
        try:
            return batches.stored_labels(known.dataset, labels, (loader.position - 1) * size)
        except (TypeError, NotImplementedError, AttributeError):
            return None

    def _regression(self, kind: str, fed_by: str, scores: Any, target: Any, step: int, where: Where | None) -> None:
        """Targets of a regression: do inputs tell them? Those that a DataLoader served: are they one number?"""
        if kind not in batches.REGRESSIONS or not isinstance(target, torch.Tensor) or not readable(target):
            return
        if kind in batches.WRITTEN:
            target = batches.as_served(target, [tensor for ref in self.models.batch if (tensor := ref()) is not None])
        self.sentinels.look(hash((where, kind)), kind, target, where)
        if fed_by in ANSWERS:
            self._pair_measured(self._measured_at(hash((where, kind)), fed_by), scores, target, step, where)
        loader = self._loader_of(step)
        self._rank(hash((where, kind, loader.key if loader is not None else 0)), scores, target, step, where)
        found = batches.constant_target(scores, target) if target.data_ptr() in self._served_at else None
        if found is not None:
            self._tell_constant(kind, fed_by, found, step, where, 0)

    def _tell_constant(
        self, kind: str, fed_by: str, found: tuple[LabelFacts, float], step: int, where: Where | None, classes: int
    ) -> None:
        """Targets that a DataLoader served, which are one number, or are not."""
        loader = self._loader_of(step)
        if loader is None:
            return
        self._looks += 1
        self._labels |= set(found[0].order) or {0, 1}
        self.loop.emit(
            TargetsObserved(
                step=step,
                where=where,
                stream=hash((where, kind, loader.key)),
                kind=kind,
                fed_by=fed_by,
                classes=classes,
                dense=classes > 0,
                labels=found[0],
                surprise=found[1],
                loader=loader.key,
                passes=loader.passes,
                position=loader.position,
                length=loader.length,
                jump=self._jump(),
            )
        )

    def _rank(self, stream: int, scores: Any, target: torch.Tensor, step: int, where: Where | None) -> None:
        """Do the targets rise or fall through the pass? Rows that a loader or a slice takes as they are stored."""
        loader = self._loader_of(step)
        if loader is None:
            self._rankings.look(stream, scores, target, sliced_place(target), (), step, where)
        elif loader.length is not None and loader.order is not None and loader.order.sequential:
            place = Place(loader.position, loader.length, loader.passes)
            served = [tensor for ref in self.models.batch if (tensor := ref()) is not None]
            self._rankings.look(stream, scores, target, place, served, step, where)

    def _jump(self) -> float:
        """A batch with a rare label stands out among the losses, also where nobody looked at its labels."""
        newest = list(self.losses)
        rises = [now / max(before, NOTHING) for before, now in pairwise(newest) if now > MATTERS]
        return max(rises, default=1.0)

    def _pair(
        self, pairing: Pairing, step: int, where: Where | None, labels: Any, target: torch.Tensor, surprise: float
    ) -> None:
        """Keep some of the inputs with their labels, and ask whether they belong together where the model does not learn."""
        at, reference = self._input
        inputs = reference() if reference is not None and at == step else None
        if inputs is None or not inputs.dim() or len(inputs) != len(labels):
            return
        if not inputs.is_floating_point() and not are_ids(inputs):
            return
        pairing.add(step, inputs, labels, surprise)
        self._tell_alike(pairing, step, where)
        if not pairing.at_chance(step):
            return
        text, place = _torn_apart(where, pairing.probe.rows, self._dataset_of(step))
        apart = self._origins.apart(inputs, target)
        again = self._repair(pairing, step)
        stays, line = left_sorted(self.models, inputs)
        if are_ids(inputs) and not text and not apart and again is None and not stays:
            return  # the order of ids may tell what no count of them does
        by_means, by_neighbours, commonest = pairing.probe.accuracy()
        self.loop.emit(
            PairingProbed(
                step=step,
                where=where,
                rows=pairing.probe.rows,
                classes=len(pairing.counts),
                by_means=by_means,
                by_neighbours=by_neighbours,
                commonest=commonest,
                surprise=pairing.surprise,
                entropy=pairing.entropy,
                apart=apart,
                permutation=text,
                permuted_where=place or line,
                left_sorted=stays,
                order=again.order if again is not None else "",
                by_order=again.right if again is not None else 0.0,
            )
        )

    def _tell_alike(self, pairing: Pairing | Measured, step: int, where: Where | None) -> None:
        """Samples that are one and the same, or nearly so, under other targets; once."""
        same = pairing.probe.sameness
        if pairing.told or self._several or not same.enough or not pairing.guesses(step):
            return
        pairing.told = True
        labels = isinstance(pairing, Pairing)
        told, commonest = pairing.probe.told()
        self.loop.emit(
            SamplesAlike(
                step=step,
                where=where,
                rows=same.rows,
                width=same.width,
                batches=same.batches,
                equal=same.equal,
                value=same.value,
                left=same.left,
                spread=same.spread,
                common=same.common,
                rms=same.rms,
                probed=pairing.probe.rows,
                labels=labels,
                told=told,
                commonest=commonest,
            )
        )

    def _repair(self, pairing: Pairing | Measured, step: int) -> Repaired | None:
        """Another pairing, looked for once."""
        if pairing.repaired:
            return None
        pairing.repaired = True
        return repaired(self._dataset_of(step), users_frame())

    def _measured_at(self, place: int, fed_by: str) -> Measured | None:
        """What is kept of one loss; None beyond the first few."""
        if place not in self._measured and len(self._measured) >= PAIRINGS:
            return None
        return self._measured.setdefault(place, Measured(fed_by))

    def _pair_measured(
        self, pairing: Measured | None, scores: Any, target: torch.Tensor, step: int, where: Where | None
    ) -> None:
        """The same for the targets of a regression."""
        at, reference = self._input
        inputs = reference() if reference is not None and at == step else None
        if pairing is None or inputs is None or not inputs.is_floating_point() or inputs.dim() < 2:
            return
        if (
            not isinstance(scores, torch.Tensor)
            or not readable(scores)
            or scores.shape != target.shape
            or not target.dim()
        ):
            return
        if len(inputs) != len(target) or not len(target) or target.numel() > COLUMNS * len(target):
            return
        pairing.add(step, inputs, scores, target)
        self._tell_alike(pairing, step, where)
        if not pairing.at_chance(step):
            return
        by_line, by_neighbours = pairing.probe.correlations()
        again = self._repair(pairing, step)
        text, line = _torn_apart(where, pairing.probe.rows, self._dataset_of(step))
        self.loop.emit(
            PairingProbed(
                step=step,
                where=where,
                rows=pairing.probe.rows,
                classes=0,
                by_line=by_line,
                by_neighbours=by_neighbours,
                surprise=pairing.unexplained,
                entropy=1.0,
                apart=self._origins.apart(inputs, target),
                permutation=text,
                permuted_where=line,
                order=again.order if again is not None else "",
                by_order=again.right if again is not None else 0.0,
            )
        )

    def _dataset_of(self, step: int) -> Any:
        """Of the loader of the step in progress."""
        loader = self._loader_of(step)
        return getattr(loader.ref(), "dataset", None) if loader is not None else None

    def _loader_of(self, step: int) -> Loader | None:
        """The loader that the step in progress took its batch from."""
        if self._served_since_step:
            self._served_since_step, self._last_served = False, step
        return self.newest if self._last_served == step else None

    # ------------------------------------------------------------------ for schedules

    def training_loader(self) -> Loader | None:
        """The loader that fed most backwards."""
        fed = [loader for loader in self.loaders.values() if loader.fed]
        return max(fed, key=lambda loader: loader.fed, default=None)

    def epoch_length(self) -> int | None:
        """Batches in one pass over the training data."""
        loader = self.training_loader()
        return loader.length if loader is not None else None

    def samples(self, backwards: int) -> int | None:
        """Samples in so many batches, where no loader serves them, or in all passes over it; None where that is not known."""
        loader = self.training_loader()
        if loader is None:
            return backwards * next(iter(self._rows)) if len(self._rows) == 1 else None
        if not loader.samples or not loader.length or backwards != loader.fed or backwards % loader.length:
            return None
        return loader.samples * (backwards // loader.length)

    def finish(self) -> None:
        """The run is over."""
        loader = self.training_loader()
        if loader is not None:
            self.waiting.tell(loader.workers)
        self.lone.finish()

    def epochs(self) -> int:
        """Passes begun over the training data, less the one in progress."""
        loader = self.training_loader()
        return max(0, loader.passes - 1) if loader is not None else 0
