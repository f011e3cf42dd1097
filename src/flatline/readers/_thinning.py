"""A curve of any length in bounded memory: long ones become stretches with a median, a lowest and a highest value."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, isinf, isnan
from operator import itemgetter

MOST = 4096  # stretches of a curve
KEPT = 8  # values of a stretch that stand for all of it when two are merged
RESTARTS = 16  # a step that goes back more often than this is a counter within something
LISTED = 1000  # steps with nan or inf that are named


class Stretch:
    """Neighbouring points of a curve."""

    __slots__ = ("count", "high", "low", "row", "sample", "step")

    def __init__(self, step: float, row: float, sample: Sequence[float], count: int) -> None:
        self.step, self.row, self.count = step, row, count
        self.low, self.high = sample[0], sample[-1]
        self.sample = _thin(sample)

    def merged(self, other: Stretch) -> Stretch:
        """This one and the next as one."""
        both = Stretch(self.step, self.row, sorted([*self.sample, *other.sample]), self.count + other.count)
        both.low, both.high = min(self.low, other.low), max(self.high, other.high)
        return both

    @property
    def median(self) -> float:
        """Exact for up to KEPT points, near it for more."""
        middle = len(self.sample) // 2
        return self.sample[middle] if len(self.sample) % 2 else self.sample[middle - 1] / 2 + self.sample[middle] / 2


def _thin(ordered: Sequence[float]) -> tuple[float, ...]:
    """At most KEPT values at even distances of an ordered sequence, as many of each half."""
    return _even(len(ordered))(ordered) if len(ordered) > KEPT else tuple(ordered)


@lru_cache(maxsize=1024)
def _even(length: int) -> Callable[[Sequence[float]], tuple[float, ...]]:
    low = [(2 * at + 1) * length // (2 * KEPT) for at in range(KEPT // 2)]
    return itemgetter(*low, *(length - 1 - at for at in reversed(low)))


@dataclass(frozen=True, slots=True)
class Bad:
    """A point that was nan or infinite."""

    part: int
    step: float
    row: float


class Thinner:
    """Takes points in the order they were logged. A step that goes back begins a new part."""

    def __init__(self, most: int = MOST) -> None:
        self.count = 0
        self.bad: list[Bad] = []
        self.nans = self.infinities = self.recoveries = 0
        self.parts: list[list[Stretch]] = [[]]
        self.disordered = False  # too many parts: from here on they are one
        self._most, self._width = most, 1
        self._steps, self._rows, self._values = array("d"), array("d"), array("d")
        self.last = float("-inf")
        self._was_bad = False

    def extend(self, steps: Sequence[float], rows: Sequence[float], values: Sequence[float]) -> None:
        """Points in their order."""
        self.count += len(values)
        if not self._was_bad and _all_finite(values) and (self.disordered or self._goes_on(steps)):
            self._append(steps, rows, values)
        else:
            for step, row, value in zip(steps, rows, values, strict=True):
                self._one(step, row, value)

    def _goes_on(self, steps: Sequence[float]) -> bool:
        return not steps or (steps[0] >= self.last and list(steps) == sorted(steps))

    def _one(self, step: float, row: float, value: float) -> None:
        if step < self.last and not self.disordered:
            self._restart()
        self.last = step
        if isfinite(value):
            self.recoveries += self._was_bad
            self._was_bad = False
            self._append((step,), (row,), (value,))
            return
        self._was_bad = True
        self.nans, self.infinities = self.nans + isnan(value), self.infinities + isinf(value)
        if len(self.bad) < LISTED:
            self.bad.append(Bad(len(self.parts) - 1, step, row))

    def _append(self, steps: Sequence[float], rows: Sequence[float], values: Sequence[float]) -> None:
        self._steps.extend(array("d", steps))  # faster than from a list
        self._rows.extend(array("d", rows))
        self._values.extend(array("d", values))
        if steps:
            self.last = steps[-1]
        if len(self._values) >= max(self._most, self._width) + 1:
            self._flush()

    def _restart(self) -> None:
        self._flush(all_of_it=True)
        if len(self.parts) <= RESTARTS:
            self.parts.append([])
            return
        self.disordered = True
        self.parts = [[stretch for part in self.parts for stretch in part]]

    def _flush(self, *, all_of_it: bool = False) -> None:
        """What waits becomes stretches; as many as are too many are merged."""
        while self._held() > self._most and not self._crowded():
            self._double()
        whole = len(self._values) if all_of_it else len(self._values) // self._width * self._width
        for start in range(0, whole, self._width):
            self.parts[-1].append(self._stretch(start, min(start + self._width, whole)))
        for waiting in (self._steps, self._rows, self._values):
            del waiting[:whole]

    def _held(self) -> int:
        return sum(map(len, self.parts)) - (-len(self._values) // self._width)

    def _crowded(self) -> bool:
        """Nothing is left to merge: every part is one stretch."""
        return len(self._values) <= self._width and all(len(part) <= 1 for part in self.parts)

    def _stretch(self, start: int, stop: int) -> Stretch:
        return Stretch(self._steps[start], self._rows[start], sorted(self._values[start:stop]), stop - start)

    def _double(self) -> None:
        self._width *= 2
        self.parts = [_halved(part) for part in self.parts]

    def finished(self) -> list[list[Stretch]]:
        """The parts, with nothing left waiting."""
        self._flush(all_of_it=True)
        return self.parts


def _all_finite(values: Sequence[float]) -> bool:
    total = sum(values)
    return total - total == 0.0 or all(map(isfinite, values))  # the sum may be beyond the largest number


def _halved(part: list[Stretch]) -> list[Stretch]:
    pairs = [first.merged(second) for first, second in zip(part[::2], part[1::2], strict=False)]
    return [*pairs, part[-1]] if len(part) % 2 else pairs
