"""A rate that load_state_dict brought back from a file, in the place of the one that the optimizer was built with."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import optim

from flatline.events import RateRestored, Where
from flatline.sensors.callers import caller, looked_up
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.patching import Patches
from flatline.sensors.schedules import ScheduleSensor
from flatline.sensors.told_rates import constant_told, rates_of

STEPS = 50  # at the restored rate: nobody is about to write another one
FEWEST = 10  # of a run that is over before
SMALLEST = 0.01  # relative change


class Restored(NamedTuple):
    """Rates of the groups: as they were built, as they were loaded, and the largest that a schedule of the file noted there."""

    built: list[Any]
    rates: list[Any]
    peaks: list[float]
    where: Where | None


class RestoredRates:
    """Rates of optimizers that had not stepped when a state was loaded, and that no schedule moves since."""

    def __init__(self, loop: Loop, patches: Patches, schedules: ScheduleSensor) -> None:
        self.loop, self.patches, self.schedules = loop, patches, schedules
        self._before: dict[int, list[Any]] = {}  # key of an optimizer whose state is being loaded
        self._waiting: dict[int, tuple[OptimizerState, Restored, str]] = {}  # and what the loop tells as its rate

    def attach(self) -> None:
        """Patch ``Optimizer.load_state_dict``."""
        self.patches.around(optim.Optimizer, "load_state_dict", before=self._loading, after=self._loaded)

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
            self._waiting[state.key] = state, restored, ""

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """On sampled steps: does it still train at the rate of the file?"""
        if state.key not in self._waiting:
            return
        _, restored, _ = self._waiting[state.key]
        optimizer = state.ref()
        moved = optimizer is not None and rates_of(optimizer) != restored.rates
        if moved or any(each.state is state for each in self.schedules.known()):
            del self._waiting[state.key]
            return
        told = constant_told(where.file, where.line) if where is not None else None
        own = told is not None and looked_up(told.text) in restored.built
        self._waiting[state.key] = state, restored, told.text if told is not None and own else ""
        if state.steps >= STEPS:
            self._tell(state.key)

    def finish(self) -> None:
        """A run that was over before."""
        for key, (state, _, _) in list(self._waiting.items()):
            if state.steps >= FEWEST:
                self._tell(key)

    def _tell(self, key: int) -> None:
        state, restored, told = self._waiting.pop(key)
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
                peak=peak,
                steps=state.steps,
                told=told,
            )
        )


def _peak(group: dict[str, Any]) -> float:
    """What schedules leave in a group, OneCycleLR among them."""
    return max((each for name in ("initial_lr", "max_lr") if isinstance(each := group.get(name), float)), default=0.0)
