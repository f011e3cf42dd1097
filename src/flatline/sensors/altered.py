"""What a model is called with, where a loader is restarted for each step: its batch again, with something done to it?"""

from __future__ import annotations

from typing import Any

import torch

from flatline.sensors.models import tensors_in

HELD = 1_048_576  # numbers of a batch that are kept until the step: four megabytes
COLUMNS = 256  # of each sample that are compared
LEAST_ROWS = 16  # of which unlike ones agree by chance with a correlation of 0.25
ALIKE = 0.3  # correlation of a batch with what was made of it; a diffusion keeps half, four times in a row are needed


class Altered:
    """The first batch of a pass, and whether all that models in training are called with is made of it."""

    def __init__(self) -> None:
        self._served: list[torch.Tensor] = []
        self._calls: list[bool] = []

    def serve(self, batch: Any) -> None:
        """The first batch of another pass; its tensors may be gone before the model is called."""
        tensors = [t for t in tensors_in(batch) if t.dim() > 1 and len(t) >= LEAST_ROWS]
        self._served = tensors if sum(t.numel() for t in tensors) <= HELD else []

    def called(self, tensors: list[torch.Tensor]) -> None:
        """A model in training was called; what another model made is no data."""
        if self._served and tensors[0].dim() > 1 and tensors[0].grad_fn is None:
            self._calls.append(any(_alike(tensors[0], each) for each in self._served))

    def of_batch(self) -> bool:
        """All calls of the step were with the batch, as it is or changed. Forgets them."""
        calls, self._calls, self._served = self._calls, [], []
        return bool(calls) and all(calls)


def _alike(made: torch.Tensor, served: torch.Tensor) -> bool:
    """The samples differ from each other as those that were served do, number by number."""
    if len(made) != len(served) or made.is_complex() or served.is_complex():
        return False
    made, served = made.detach().flatten(1), served.detach().flatten(1)
    columns = served.shape[1]
    if not columns <= made.shape[1] < 2 * columns:  # a time or a condition may be put behind them
        return False
    one, other = (_spread(each) for each in (made[:, :columns], served))
    both = float((one * other).sum())
    return both > ALIKE * float((one.square().sum() * other.square().sum()).sqrt())


def _spread(rows: torch.Tensor) -> torch.Tensor:
    """Some columns, each with a mean of 0: what all samples have in common tells nothing."""
    stride = -(-rows.shape[1] // COLUMNS)
    some = rows[:, ::stride].to("cpu", torch.float64)
    return some - some.mean(0)
