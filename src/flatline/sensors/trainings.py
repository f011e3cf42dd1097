"""A script may train several models, one after the other: where the next training begins, and whether the last is over."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

from flatline.events import TrainingBegan, TrainingsMixed
from flatline.sensors.callers import standing
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import readable

MOST = 7  # trainings besides the first one
LONG = 20  # steps of an earlier optimizer: those of a GAN are all built before the first


class Search:
    """Optimizers that were built under the same calls, one after the other, as a loop does."""

    def __init__(self, first: int) -> None:
        self.first = first  # key of the first of them
        self.settings: set[Hashable] = set()


def settings_of(state: OptimizerState) -> Hashable:
    """What a search over settings may change: the optimizer, its numbers, and the shapes of what it holds."""
    optimizer = state.ref()
    groups = optimizer.param_groups if optimizer is not None else ()
    numbers = tuple(tuple((k, v) for k, v in group.items() if isinstance(v, (int, float, tuple))) for group in groups)
    return type(optimizer), numbers, tuple(_shapes(state))


def _shapes(state: OptimizerState) -> list[tuple[int, ...]]:
    """Of the parameters that have one already."""
    return [tuple(p.shape) for p in state.parameters if readable(p) and not p.is_nested]


def task_of(state: OptimizerState) -> Hashable:
    """What the trials of one search share: how many numbers go in, and how many come out."""
    held = _shapes(state)
    matrices = [shape for shape in held if len(shape) > 1]
    return (matrices[0][1:], held[-1][:1]) if matrices else ()


class Trainings:
    """Called with each optimizer when it is first seen, and at steps under close look."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._known: dict[int, tuple[Any, int]] = {}  # by identity: a parameter and the key of its newest optimizer
        self._newest = 0  # key of the optimizer that the newest training began with
        self._mixed = False
        self._left = MOST
        self._places: set[Any] = set()  # where optimizers were built
        self._searches: dict[Hashable, Search] = {}  # by the lines of all functions that were running

    def built(self, state: OptimizerState) -> None:
        """On parameters that no optimizer ever stepped on, after others had stepped often, it is another training."""
        if state.by_hand:
            return
        others = [each for each in (*self.loop.states, *self.loop.retired) if each is not state and each.steps]
        held = state.parameters
        search = self._searches.setdefault((standing(), task_of(state)), Search(state.key))
        search.settings.add(settings_of(state))
        if (
            held
            and self._left
            and any(each.steps >= LONG for each in others)
            and not any(self._stepped_on(p, others) for p in held)
        ):
            self._begin(state, search)
        self._places.add(state.where)
        for p in held:
            self._known[id(p)] = weakref.ref(p), state.key

    def stepped(self, state: OptimizerState) -> None:
        """An earlier one goes on: it is one training with several optimizers."""
        if state.key >= self._newest or self._mixed:
            return
        if any(each.steps for each in self.loop.states if each.key >= self._newest):
            self._mixed = True
            self.loop.emit(TrainingsMixed(step=self.loop.step))

    def _begin(self, state: OptimizerState, search: Search) -> None:
        loop = self.loop
        self._newest, self._mixed, self._left = state.key, False, self._left - 1
        first, last = loop.first_loss, loop.last_loss
        loop.begin()
        loop.emit(
            TrainingBegan(
                step=loop.steps,
                where=state.where,
                key=state.key,
                again=state.where in self._places,
                search=search.first,
                varied=len(search.settings) > 1,
                first_loss=first,
                last_loss=last,
            )
        )

    def _stepped_on(self, parameter: Any, others: list[OptimizerState]) -> bool:
        known = self._known.get(id(parameter))
        if known is not None and known[0]() is parameter:
            return any(each.key == known[1] for each in others)
        return any(id(parameter) in (each.ids if known is not None else each.held) for each in others)
