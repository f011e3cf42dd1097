"""A quantity's own past, so that a rule can compare a value with it: robust location, scale and trend."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

MAD_TO_SIGMA = 1.4826  # of a normal distribution
STANDS = 0.95  # of a loss that does not move, beside the noise of its batches
HARDLY = 0.75  # of the first loss: what large scores of fresh weights add to the loss of guessing is soon gone
FEW = 5  # values that stand for "early" and for "late"


def median(values: Iterable[float]) -> float:
    """The middle value. The standard library's own brings decimal and random, which take longer than all rules together."""
    found = sorted(values)
    middle = len(found) // 2
    return found[middle] if len(found) % 2 else (found[middle - 1] + found[middle]) / 2


def fmean(values: Iterable[float]) -> float:
    """The mean."""
    found = list(values)
    return sum(found) / len(found)


class History:
    """Values of one quantity over the steps. Keeps the first few and the newest ``keep``, never more."""

    def __init__(self, keep: int = 128) -> None:
        self.count = 0
        self.early: list[float] = []
        self.steps: deque[int] = deque(maxlen=keep)
        self.values: deque[float] = deque(maxlen=keep)

    def add(self, step: int, value: float) -> None:
        """One more value."""
        self.count += 1
        if len(self.early) < FEW:
            self.early.append(value)
        self.steps.append(step)
        self.values.append(value)

    @property
    def first(self) -> float:
        """Median of the first few values."""
        return median(self.early)

    @property
    def last(self) -> float:
        """Median of the newest few values."""
        return median(list(self.values)[-FEW:])

    @property
    def location(self) -> float:
        """Median of the kept values."""
        return median(self.values)

    @property
    def lowest(self) -> float:
        """The lowest median of a few values in a row."""
        values = list(self.values)
        return min(median(values[at : at + FEW]) for at in range(max(1, len(values) - FEW + 1)))

    @property
    def stood(self) -> bool:
        """Of a loss: the last fifth of the steps is no lower than the first half was, and that hardly lower than the start."""
        if not self.steps or self.first <= 0:
            return False
        end, pairs = self.steps[-1], list(zip(self.steps, self.values, strict=True))
        half = [value for step, value in pairs if 0.1 * end <= step <= 0.5 * end]
        tail = [value for step, value in pairs if step >= 0.8 * end]
        return bool(half) and median(tail) >= max(STANDS * median(half), HARDLY * self.first)

    @property
    def scale(self) -> float:
        """Robust standard deviation: the scaled median absolute deviation."""
        middle = self.location
        return MAD_TO_SIGMA * median(abs(value - middle) for value in self.values)

    def departure(self, value: float) -> float:
        """How many robust standard deviations a value lies above (or below) the past; infinite for a constant past."""
        distance, scale = value - self.location, self.scale
        if distance == 0:
            return 0.0
        return distance / scale if scale > 0 else float("inf") * distance

    def rising(self, newest: int | None = None) -> float:
        """Share of pairs (earlier, later) in which the later value is larger: 0.5 without a trend (Kendall)."""
        values = list(self.values)[-(newest or self.count) :]
        pairs = [(a, b) for i, a in enumerate(values) for b in values[i + 1 :]]
        ups = sum(0.5 if a == b else float(b > a) for a, b in pairs)
        return ups / len(pairs) if pairs else 0.5


class Stretch(NamedTuple):
    """Some steps in a row: how many, their mean loss, their mean rate."""

    steps: int
    loss: float
    rate: float


class Course:
    """Loss and rate over a whole run, in 32 to 64 stretches of equally many steps."""

    MOST = 64  # stretches; then every two become one

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []
        self.peak = 0.0  # highest rate of any step
        self._length = 1
        self._losses: list[float] = []  # of the stretch that is not full
        self._rates: list[float] = []

    def extend(self, losses: Sequence[float], rates: Sequence[float]) -> None:
        """Some more steps; a thousand at once cost little more than one."""
        self.peak = max(chain([self.peak], rates))
        at = 0
        while at < len(losses):
            end = at + self._length - len(self._losses)
            self._losses += losses[at:end]
            self._rates += rates[at:end]
            at = end
            if len(self._losses) == self._length:
                self._close()

    def _close(self) -> None:
        self.stretches.append(Stretch(self._length, fmean(self._losses), fmean(self._rates)))
        self._losses, self._rates = [], []
        if len(self.stretches) == self.MOST:
            pairs = zip(self.stretches[::2], self.stretches[1::2], strict=True)
            self.stretches = [Stretch(2 * a.steps, (a.loss + b.loss) / 2, (a.rate + b.rate) / 2) for a, b in pairs]
            self._length *= 2

    @property
    def steps(self) -> int:
        """All of them, but those of a stretch that is not full."""
        return sum(each.steps for each in self.stretches)

    def level(self, begin: float, end: float) -> float:
        """Mean loss in one part of the run, which is told by shares of all that the rates add up to."""
        whole = sum(each.rate for each in self.stretches)
        passed, found = 0.0, []
        for each in self.stretches:
            passed += each.rate
            if begin * whole <= passed - each.rate / 2 <= end * whole:
                found.append(each.loss)
        return fmean(found) if found else float("nan")

    def falls(self) -> tuple[float, float]:
        """How far the loss came down in the first half of the run, and in the second, by what the rates add up to."""
        first, middle, last = (self.level(*part) for part in ((0.0, 0.1), (0.45, 0.55), (0.9, 1.0)))
        return first - middle, middle - last

    @property
    def stood(self) -> bool:
        """The last fifth of the steps is no lower than what came before it, after the first tenth, nor than the start."""
        losses = [each.loss for each in self.stretches]
        if len(losses) < self.MOST // 2:
            return False
        half, tail = losses[len(losses) // 10 : len(losses) // 2], losses[-len(losses) // 5 :]
        return fmean(tail) >= max(STANDS * fmean(half), HARDLY * losses[0]) > 0

    def from_floor(self, share: float) -> list[Stretch]:
        """The last stretches, at rates under that share of the peak."""
        place = len(self.stretches)
        while place and self.peak and self.stretches[place - 1].rate <= share * self.peak:
            place -= 1
        return self.stretches[place:]
