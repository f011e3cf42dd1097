"""A quantity's own past, so that a rule can compare a value with it: robust location, scale and trend."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

MAD_TO_SIGMA = 1.4826  # of a normal distribution
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
