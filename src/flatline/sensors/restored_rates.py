"""A rate that load_state_dict brought back from a file, in the place of the one that the optimizer was built with."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import optim

from flatline.events import RateRestored, Where
from flatline.sensors.callers import caller, looked_up
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.patching import Patches
from flatline.sensors.schedules import ScheduleSensor
from flatline.sensors.told_rates import constant_told, rates_of, told_below

STEPS = 50  # at the restored rate: nobody is about to write another one
FEWEST = 10  # of a run that is over before
SMALLEST = 0.01  # relative change
SAVED = 64  # sets of rates that are remembered


class Restored(NamedTuple):
    """Rates of the groups: as they were built, as they were loaded, and the largest that a schedule of the file noted there."""

    built: list[Any]
    rates: list[Any]
    peaks: list[float]
    where: Where | None


class Said(NamedTuple):
    """Settings that are told as the rate: in the loop, and on the way to it."""

    always: str = ""
    once: str = ""


class RestoredRates:
    """Rates of optimizers that had not stepped when a state was loaded, and that nobody wrote since."""

    def __init__(self, loop: Loop, patches: Patches, schedules: ScheduleSensor) -> None:
        self.loop, self.patches, self.schedules = loop, patches, schedules
        self._before: dict[int, list[Any]] = {}  # key of an optimizer whose state is being loaded
        self._waiting: dict[int, tuple[OptimizerState, Restored, Said]] = {}
        self._peaks: dict[
            tuple[Any, ...], float
        ] = {}  # rates as states were taken with them: the highest of that training

    def attach(self) -> None:
        """Patch ``Optimizer.load_state_dict``, and ``state_dict``."""
        self.patches.around(optim.Optimizer, "load_state_dict", before=self._loading, after=self._loaded)
        self.patches.around(optim.Optimizer, "state_dict", after=self._taken)

    def _taken(self, _: Any, optimizer: Any, *__: Any, **___: Any) -> None:
        """What a training of this process leaves in a file."""
        state, rates = self.loop.optimizers.get(id(optimizer)), tuple(rates_of(optimizer))
        plain = all(isinstance(rate, float) for rate in rates)
        if state is not None and state.steps and plain:
            self._peaks[rates] = max(state.peak_lr, *rates)
            if len(self._peaks) > SAVED:
                del self._peaks[next(iter(self._peaks))]

    def _loading(self, optimizer: Any, *_: Any, **__: Any) -> None:
        state = self.loop.optimizers.get(id(optimizer))
        if state is not None and not state.steps:
            self._before.setdefault(state.key, rates_of(optimizer))

    def _loaded(self, _: Any, optimizer: Any, *__: Any, **___: Any) -> None:
        state = self.loop.optimizers.get(id(optimizer))
        built = self._before.get(state.key) if state is not None and not state.steps else None
        if state is None or built is None:
            return
        restored = Restored(built, rates_of(optimizer), [_peak(each) for each in optimizer.param_groups], caller())
        self._waiting.pop(state.key, None)
        if all(isinstance(rate, float) for rate in (*built, *restored.rates)) and restored.rates != built:
            self._waiting[state.key] = state, restored, Said()

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """On sampled steps: does it still train at the rate of the file?"""
        if state.key not in self._waiting:
            return
        _, restored, said = self._waiting[state.key]
        if _written(state, restored) or any(each.state is state for each in self.schedules.known()):
            del self._waiting[state.key]
            return
        self._waiting[state.key] = state, restored, _said(restored, where, said.once)
        if state.steps >= STEPS and self._waiting[state.key][2].always:
            self._tell(state.key)

    def finish(self) -> None:
        """A run that was over before, or in which a schedule of the loop's own might have set the rate until now."""
        for key, (state, restored, _) in list(self._waiting.items()):
            if state.steps >= FEWEST and not _written(state, restored):
                self._tell(key)

    def _tell(self, key: int) -> None:
        state, restored, said = self._waiting.pop(key)
        pairs = [pair for pair in zip(restored.built, restored.rates, restored.peaks, strict=True) if pair[0] > 0]
        built, rate, peak = max(pairs, key=lambda pair: pair[1] / pair[0], default=(0.0, 0.0, 0.0))
        if abs(built - rate) <= SMALLEST * max(built, rate):
            return
        self.loop.emit(
            RateRestored(
                step=self.loop.steps,
                where=restored.where,
                optimizer=state.facts,
                built=built,
                rate=rate,
                peak=peak or self._peaks.get(tuple(restored.rates), 0.0),
                steps=state.steps,
                told=said.always or said.once,
                once=not said.always,
            )
        )


def _written(state: OptimizerState, restored: Restored) -> bool:
    """Somebody set a rate since it was loaded, if only to the same number."""
    optimizer = state.ref()
    if optimizer is None:
        return False
    rates = rates_of(optimizer)
    return len(rates) != len(restored.rates) or any(
        one is not other for one, other in zip(rates, restored.rates, strict=True)
    )


def _said(restored: Restored, where: Where | None, before: str) -> Said:
    """What the loop, or a line between the load and the loop, tells as the rate, though it is what the optimizer was built with."""
    told = constant_told(where.file, where.line) if where is not None else None
    always = told.text if told is not None and looked_up(told.text) in restored.built else ""
    place = restored.where
    below = told_below(place.file, place.line) if place is not None and where is not None else ()
    once = next((text for text in below if looked_up(text) in restored.built), "")
    return Said(always, before or once)


def _peak(group: dict[str, Any]) -> float:
    """What schedules leave in a group, OneCycleLR among them."""
    return max((each for name in ("initial_lr", "max_lr") if isinstance(each := group.get(name), float)), default=0.0)
