"""A number that stands for a missing target, and that a loss learns from as if it were one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from flatline.events import MissingTaught, Where
from flatline.sensors.loop import Loop

SQUARED = ("mse_loss", "squared error")  # others are bounded, or grow slowly: such a number does little harm there
CODES = (32767.0, 32768.0, 65535.0, 2147483648.0, 999.25, 1e20, 9.96921e36)  # of data loggers, LAS files, NetCDF
ROUNDED = 1e-5  # of it
LEAST = 90.0  # -9 may be a measurement
FAR = 10.0  # ranges of all others
DISTINCT = 0.5  # of the others: they are measured, not counted
TIMES = 2  # that it was learned from, at different steps
LOOKS = 16  # that are asked for, once it was seen
LOST = 0.02  # of what it adds to the loss: a loss may be divided by parts of a batch
UNEXPLAINED = 4.0  # squared ranges of the others, which these cannot add
UNLEARNED = 1.5  # squares of the largest of the others, which answers near 0 add


@dataclass(slots=True)
class Seen:
    """The targets of one loss."""

    low: float
    high: float
    code: float | None = None
    times: int = 0
    steps: int = 0


class Sentinels:
    """Looks at the targets of squared errors, and whether a loss counts what stands far out."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._seen: dict[int, Seen] = {}
        self._done: set[int] = set()
        self._asked = 0
        self._pending: tuple[int, int, float, str, Where | None] | None = None  # place, times, share of the loss

    def look(self, place: int, kind: str, target: torch.Tensor, where: Where | None) -> None:
        """Targets under a loss that was not yet read."""
        if kind not in SQUARED or place in self._done or not target.is_floating_point() or target.numel() < 2:
            return
        values = target.detach().reshape(-1)
        code = next((float(written(end)) for end in map(float, torch.aminmax(values)) if is_code(end)), None)
        others = values[(values - code).abs() > ROUNDED * abs(code)] if code is not None else values
        if not len(others) or len(torch.unique(others)) < DISTINCT * len(others):
            self._done.add(place)
            return
        low, high = map(float, torch.aminmax(others))
        seen = self._seen.setdefault(place, Seen(low, high))
        seen.low, seen.high = min(low, seen.low), max(high, seen.high)
        if seen.code is not None or code is not None:
            self._ask()
        if code is not None:
            self._sight(place, seen, code, (len(values) - len(others), len(values)), kind, where)

    def _sight(
        self, place: int, seen: Seen, code: float, counts: tuple[int, int], kind: str, where: Where | None
    ) -> None:
        gap, span = max(seen.low - code, code - seen.high), seen.high - seen.low
        if not gap >= FAR * span or seen.code not in (None, code):
            self._done.add(place)
            return
        seen.code, times, of = code, *counts
        ordinary = max(UNEXPLAINED * span**2, UNLEARNED * max(abs(seen.low), abs(seen.high)) ** 2)
        self._pending = place, times, max(LOST * times / of * gap**2, ordinary), kind, where

    def _ask(self) -> None:
        """Once is not enough."""
        if self._asked < LOOKS:
            self._asked += 1
            self.loop.look_closely()

    def after_step(self, losses: Iterable[float]) -> None:
        """The loss was read: was the number in it? A mask would have left it out."""
        pending, self._pending = self._pending, None
        newest = list(losses)[-1:] if pending is not None else []
        if pending is None or not newest:
            return
        place, times, least, kind, where = pending
        seen = self._seen[place]
        if not newest[0] >= least:
            self._done.add(place)
            return
        seen.times, seen.steps = seen.times + times, seen.steps + 1
        if seen.steps >= TIMES and seen.code is not None:
            self._done.add(place)
            self.loop.emit(
                MissingTaught(
                    step=self.loop.step,
                    where=where,
                    kind=kind,
                    code=seen.code,
                    times=seen.times,
                    low=seen.low,
                    high=seen.high,
                    loss=newest[0],
                )
            )


def written(value: float) -> str:
    """As a person would write it; targets of squares by hand are worked out, and known up to rounding."""
    return str(int(value)) if value.is_integer() else f"{value:.5g}"


def is_code(value: float) -> bool:
    """-999, 9999, -99.99 and the like, which people and programs write where a number is missing."""
    size = abs(value)
    digits = set(written(size).replace(".", ""))
    return size >= LEAST and (digits == {"9"} or any(abs(size - code) <= 1e-6 * code for code in CODES))
