"""Which loader the tensors of a step came from, and which samples that loader had asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from flatline.sensors.models import sample, tensors_in

MOST = 32  # tensors of one step
FEW = 4  # indices of a batch that tell it from others


class Origin(NamedTuple):
    """Where a tensor came from."""

    loader: int
    samples: tuple[Any, ...]  # the first indices of the batch; none where they are no whole numbers
    labels: bool  # the batch holds labels and nothing else: one number for each row


class Origins:
    """The tensors that loaders served since the last step, known by their numbers, on whatever device they are now."""

    def __init__(self) -> None:
        self._known: dict[int, Origin] = {}

    def add(self, loader: int, samples: Sequence[Any], batch: Any) -> None:
        """One more batch; ``samples`` are the first indices that it is made of."""
        plain = tuple(samples) if all(type(index) is int for index in samples) else ()
        tensors = list(tensors_in(batch))
        labels = all(t.dim() > 0 and t.numel() == len(t) for t in tensors)
        for tensor in tensors[: MOST - len(self._known)]:
            self._known[_print(tensor)] = Origin(loader, plain, labels)

    def clear(self) -> None:
        """A step was taken."""
        self._known.clear()

    def of(self, tensor: torch.Tensor) -> Origin | None:
        """Where this one came from, if its samples have numbers."""
        found = self._known.get(_print(tensor))
        return found if found is not None and found.samples else None

    def apart(self, inputs: torch.Tensor, target: torch.Tensor) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
        """The samples of both, where they came from two loaders, one of them for labels alone, and are not the same ones."""
        one, other = self._known.get(_print(inputs)), self._known.get(_print(target))
        if one is None or other is None or one.loader == other.loader or one.labels or not other.labels:
            return None
        both = one.samples, other.samples
        return both if all(both) and both[0] != both[1] else None


def _print(tensor: torch.Tensor) -> int:
    """The same for the same numbers, in whatever shape and type."""
    return hash((tensor.numel(), tuple(sample(tensor))))
