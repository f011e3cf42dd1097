"""How much samples differ: rows that are one and the same under other targets, and numbers that hardly vary."""

from __future__ import annotations

from collections import Counter

import torch

Tensor = torch.Tensor
FEW_ROWS = 4  # of a batch; of fewer, two may be equal by accident
FEW_NUMBERS = 4  # of a sample: of one or two that are yes or no, most rows are equal
FEW_BATCHES = 6
MOST_ROWS = 4_096  # whose targets are kept
MOSTLY = 0.5  # of the rows of each batch; less is not kept in mind
UNIT = 1.0  # a bias counts in a layer as an input of 1 does: what varies by less beside it is small, too
CLOSE = 0.02  # of that; more is not kept in mind


class Sameness:
    """The rows of several batches, beside the targets of each."""

    def __init__(self) -> None:
        self.batches = self.rows = self.width = 0
        self.spread = self.common = self.rms = 0.0  # of the newest batch, the first of them the largest of all
        self.value: float | None = None  # that all numbers of the common row are
        self._row: float | None = None  # key of the common row
        self._equal: list[Tensor] | None = []  # targets of the rows that are equal to it
        self._targets: list[Tensor] = []

    def add(self, rows: Tensor, keys: list[float], targets: Tensor) -> None:
        """One batch of flat samples."""
        if len(rows) < FEW_ROWS or rows.shape[1] < FEW_NUMBERS or not rows.is_floating_point():
            self._equal, self.spread = None, CLOSE
        if not self.possible or self.rows >= MOST_ROWS:
            return
        self.batches, self.rows, self.width = self.batches + 1, self.rows + len(rows), rows.shape[1]
        self._compare_numbers(rows)
        self._compare_rows(rows, keys, targets)

    @property
    def possible(self) -> bool:
        """Some of it was so in all batches."""
        return self._equal is not None or self.spread < CLOSE

    @property
    def enough(self) -> bool:
        """It was so in several batches."""
        return self.batches >= FEW_BATCHES and self.possible

    def _compare_numbers(self, rows: Tensor) -> None:
        if self.spread >= CLOSE:
            return
        spread, mean = torch.std_mean(rows.float(), 0)
        self.spread = max(self.spread, float((spread / mean.abs().clamp(min=UNIT)).max()))
        self.common, self.rms = (float(each.float().square().mean().sqrt()) for each in (mean, rows))

    def _compare_rows(self, rows: Tensor, keys: list[float], targets: Tensor) -> None:
        """A common row that is the same in all batches."""
        if self._equal is None:
            return
        key, times = Counter(keys).most_common(1)[0]
        if times < MOSTLY * len(keys) or (self._row is not None and key != self._row):
            self._equal = None
            return
        first = rows[keys.index(key)]
        same = (rows == first).all(1).cpu()
        self._row, self.value = key, float(first[0]) if bool((first == first[0]).all()) else None
        self._equal.append(targets[same])
        self._targets.append(targets)

    @property
    def equal(self) -> float:
        """Share of rows that are one and the same."""
        return sum(map(len, self._equal)) / max(1, self.rows) if self._equal is not None else 0.0

    @property
    def left(self) -> float:
        """Share of the scatter of all targets that lies under these rows: what no model can tell."""
        if not self._equal:
            return 0.0
        return self.equal * _scatter(torch.cat(self._equal)) / max(_scatter(torch.cat(self._targets)), 1e-12)


def _scatter(targets: Tensor) -> float:
    """The variance of numbers; of labels, how often two that are drawn differ."""
    if targets.is_floating_point():
        return float(targets.var(0, correction=0).sum())
    shares = torch.unique(targets, return_counts=True)[1] / len(targets)
    return 1.0 - float(shares.square().sum())
