"""The first items of a validation pass, again and again: whether they are the ones of the pass before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.utils.data import Subset

from flatline.sensors.models import fingerprint, tensors_in

ROWS = 16  # of the first batch that are compared
FEWEST = 4  # rows that tell something
CHANGED = 0.25  # of them: a flip with p = 0.5 changes half of them from one pass to the next, on average


class Glimpse(NamedTuple):
    """The first batch of one pass."""

    step: int
    targets: int
    rows: tuple[int, ...]  # prints of its first inputs

    def changed(self, other: Glimpse) -> int:
        """Items whose target is the same and whose input is not."""
        return sum(a != b for a, b in zip(self.rows, other.rows, strict=True)) if self.same_items(other) else 0

    def same_items(self, other: Glimpse) -> bool:
        """As far as the targets tell."""
        return self.targets == other.targets and len(self.rows) == len(other.rows)


class Revisits:
    """The passes over one loader that nothing was learned from."""

    def __init__(self) -> None:
        self.changes: list[int] = []  # items that changed, from each pass to the next with steps in between
        self.last: Glimpse | None = None
        self._given_up = False  # the items are others, or are seen several times with the same weights

    def add(self, glimpse: Glimpse | None) -> None:
        """One more pass began; two passes with the same weights are several views of each item, which are averaged."""
        last, self.last = self.last, glimpse
        if glimpse is None or last is None:
            return
        self._given_up = self._given_up or glimpse.step == last.step or not glimpse.same_items(last)
        self.changes.append(glimpse.changed(last))

    def redrawn(self) -> int:
        """How many of the first items changed from pass to pass, if that is so every time; else 0."""
        fewest = min(self.changes, default=0)
        enough = len(self.changes) > 1 and fewest >= CHANGED * self.rows()
        return fewest if enough and not self._given_up else 0

    def rows(self) -> int:
        """Items that are compared."""
        return len(self.last.rows) if self.last is not None else 0

    def seen_plainly(self, other: Revisits) -> bool:
        """The other loader serves the same items, and they stay what they are."""
        same = self.last is not None and other.last is not None and self.last.same_items(other.last)
        return same and bool(other.changes) and not any(other.changes)


def glimpse(step: int, batch: Any) -> Glimpse | None:
    """A batch of inputs and one number for each of them, where the numbers differ; None for all else."""
    tensors = list(tensors_in(batch))
    if len(tensors) != 2 or any(t.device.type != "cpu" or t.is_sparse or not t.dim() for t in tensors):
        return None
    inputs, targets = sorted(tensors, key=lambda t: -t.numel())
    rows = min(ROWS, len(inputs))
    single = len(targets) == len(inputs) == targets.numel() < inputs.numel()
    if not single or rows < FEWEST or not inputs.is_floating_point() or len(torch.unique(targets)) < 2:
        return None
    return Glimpse(step, fingerprint(targets[:rows]), tuple(fingerprint(inputs[row]) for row in range(rows)))


def held_out(dataset: Any, learned: Iterable[Any]) -> bool:
    """No item of the data set is learned from, as far as the objects tell."""
    return not any(_share(dataset, other) for other in learned)


def _share(one: Any, other: Any) -> bool:
    if isinstance(one, Subset) and isinstance(other, Subset) and one.dataset is other.dataset:
        return not set(one.indices).isdisjoint(other.indices)
    return base(one) is base(other)


def base(dataset: Any) -> Any:
    """What a part is a part of."""
    return base(dataset.dataset) if isinstance(dataset, Subset) else dataset
