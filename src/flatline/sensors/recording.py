"""Hands on what was read at every step, about once a second; takes histograms at some of the close looks."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flatline.events import HistogramFacts, HistogramsTaken, LossesRead, Where
from flatline.sensors.activations import is_plain, spread
from flatline.sensors.forensics import parameter_names
from flatline.sensors.loop import SPREAD, Loop, OptimizerState
from flatline.sensors.models import Call, Model, ModelSensor
from flatline.sensors.patching import Patches

BINS = 32
SAMPLE = 1_024  # numbers of a tensor
TENSORS = 64  # weights, and as many activations
Tensor = torch.Tensor


class RecordingSensor:
    """Nothing is done, and nothing is collected, unless somebody wants it."""

    def __init__(self, loop: Loop, patches: Patches, models: ModelSensor) -> None:
        self.loop, self.patches, self.models = loop, patches, models
        self.then: Callable[[], float] | None = None  # called when all was handed on; the time to do so again
        self._rates: dict[int, float] = {}
        self._activations: dict[str, Tensor] = {}
        self._next = 0  # step of the next histograms

    # ------------------------------------------------------------------ every step

    def hand_on(self) -> None:
        """Tell the losses and rates of the steps that are over."""
        started, timed = time.thread_time_ns(), self.patches.timed
        self._tell(self.loop.steps)
        self.loop.due = self.then() if self.then is not None else math.inf
        spent = time.thread_time_ns() - started
        self.loop.recording_nanoseconds += spent
        if timed:  # the guard around us counts it, too; and it belongs to no step
            self.patches.nanoseconds -= spent

    def finish(self) -> None:
        """The run is over: that of the last step, too."""
        self._tell(self.loop.step)

    def _tell(self, last: int) -> None:
        losses, rates = self.loop.losses, self.loop.rates
        if losses is None or rates is None:
            return
        taken, losses[:] = list(losses), [entry for entry in losses if entry[0] > last]
        changed, rates[:] = list(rates), []
        states = {state.key: state for state in (*self.loop.retired, *self.loop.states)}
        for key, means in _by_optimizer(taken, last):
            if key in states:
                self._tell_one(
                    states[key], means, [(step, _number(rate)) for step, rate, owner in changed if owner == key]
                )

    def _tell_one(self, state: OptimizerState, means: dict[int, float], changed: list[tuple[int, float]]) -> None:
        """The mean loss of each step, and the rate that was set when it was taken."""
        steps = sorted(means)
        rate, at = self._rates.get(state.key, math.nan), 0
        rates: list[float] = []
        for step, new in changed:
            before = bisect_left(steps, step, at)
            rates += [rate] * (before - at)
            at, rate = before, new
        rates += [rate] * (len(steps) - at)
        self._rates[state.key] = rate
        losses = tuple(map(means.__getitem__, steps))
        self.loop.emit(
            LossesRead(optimizer=state.facts, step=steps[-1], steps=tuple(steps), losses=losses, rates=tuple(rates))
        )

    # ------------------------------------------------------------------ histograms

    def _is_due(self) -> bool:
        return self.loop.dense and self.loop.step >= self._next and self.loop.wants(HistogramsTaken)

    def after_module(self, model: Model, call: Call, args: Any, outputs: list[Tensor]) -> None:
        """What a module without children made, once a step."""
        if not call.leaf or not call.grad_enabled or not outputs or not self._is_due():
            return
        name = call.path or model.label
        if name not in self._activations and len(self._activations) < TENSORS and is_plain(outputs[0]):
            self._activations[name] = _counted(outputs[0])

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """Those of the weights; tell all."""
        if not self._is_due():
            return
        self._next = max(self.loop.step + 1, int(self.loop.step * SPREAD))
        made, self._activations = self._activations, {}
        self._emit("activations", made)
        names = parameter_names(self.models)
        weights = {name: p for p in state.parameters if p.dim() > 1 and is_plain(p) and (name := names.get(id(p)))}
        self._emit("weights", {name: _counted(p) for name, p in list(weights.items())[:TENSORS]})

    def _emit(self, what: Any, made: dict[str, Tensor]) -> None:
        by_device: dict[Any, list[str]] = {}
        for name, numbers in made.items():
            by_device.setdefault(numbers.device, []).append(name)
        for names in by_device.values():
            rows = torch.stack([made[name] for name in names]).tolist()
            told = [_facts(name, row) for name, row in zip(names, rows, strict=True)]
            self.loop.emit(HistogramsTaken(step=self.loop.step, what=what, histograms=tuple(told)))


def _by_optimizer(taken: Sequence[tuple[int, float, int | list[int]]], last: int) -> list[tuple[int, dict[int, float]]]:
    """The mean loss of each step up to the last one, for every optimizer that it reached."""
    steps, losses, keys = zip(*taken, strict=True) if taken else ((), (), ())
    means = dict(zip(steps, losses, strict=True))
    if len(means) == len(steps) and len(steps) and steps[-1] <= last and keys.count(keys[0]) == len(keys):
        owners = keys[0] if isinstance(keys[0], list) else [keys[0]]
        return [(key, means) for key in owners]
    found: dict[int, dict[int, list[float]]] = {}
    for step, loss, owner in taken:
        for key in (owner if isinstance(owner, list) else [owner]) if step <= last else ():
            found.setdefault(key, {}).setdefault(step, []).append(loss)
    return [(key, {step: sum(each) / len(each) for step, each in by_step.items()}) for key, by_step in found.items()]


def _counted(tensor: Tensor) -> Tensor:
    """Lowest and highest of a sample, and how many of its numbers lie in each bin between them; on its device."""
    ordered = spread(tensor, SAMPLE).double().sort().values
    low, high = ordered[0], ordered[-1]
    share = torch.arange(1, BINS, dtype=ordered.dtype, device=ordered.device) / BINS
    below = torch.searchsorted(ordered, low + (high - low) * share, right=False)
    ends = below.new_tensor([0]), below.new_tensor([len(ordered)])
    counts = torch.cat([ends[0], below, ends[1]]).diff()
    return torch.cat([low.reshape(1), high.reshape(1), counts.to(ordered.dtype)])


def _facts(name: str, row: list[float]) -> HistogramFacts:
    return HistogramFacts(name=name, low=row[0], high=row[1], counts=tuple(map(int, row[2:])))


def _number(rate: Any) -> float:
    """A rate that lies on an accelerator is not read."""
    if isinstance(rate, (int, float)):
        return float(rate)
    return float(rate) if isinstance(rate, Tensor) and rate.is_cpu and rate.numel() == 1 else math.nan
