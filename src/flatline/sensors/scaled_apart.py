"""Training and validation inputs that were each scaled by their own mean and deviation: both are exactly 0 and 1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from flatline.events import ScaledApart
from flatline.sensors.bad_data import in_reach
from flatline.sensors.callers import caller, users_frame
from flatline.sensors.loop import Loop
from flatline.sensors.models import readable

Tensor = torch.Tensor
LOOKS = 4  # at validation batches that are found in no data
MOST_NUMBERS = 100_000  # of one sample
GROUPS = 3  # columns or channels that are at 0 and 1, each by chance in 1 of 500
EXACT = 0.05  # of 1/√rows, by which the mean and the deviation of other rows under the same scale are off
FEW_EXACT = 0.002  # the same where there are fewer than three
FEWEST_ROWS = 64


class ScaledApartSensor:
    """Called with what models train on, at close looks, and with what they are validated on."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        loop.begins.append(self._begin)
        self._begin()

    def _begin(self) -> None:
        self._row: Tensor | None = None  # the first one of a batch that was learned from
        self._model = ""
        self._looks, self._looked_at = 0, -1

    def called(self, model: str, first: Tensor) -> None:
        """A model that is being trained was called."""
        if self._row is None and self.loop.wants(ScaledApart) and _is_batch(first):
            self._row, self._model = _first_row(first), model

    def validated(self, model: str, first: Any) -> None:
        """It ran without gradients: on data that were scaled alike?"""
        step = self.loop.steps
        if self._looks >= LOOKS or self._row is None or model != self._model or step in (0, self._looked_at):
            return
        self._looked_at = step
        if not isinstance(first, Tensor) or not _is_batch(first) or first.shape[1:] != self._row.shape:
            return
        self._looks += 1
        self._compare(self._row, _first_row(first))

    def _compare(self, learned: Tensor, shown: Tensor) -> None:
        """The data that hold the one row, and those that hold the other."""
        data = [(name, each) for name, each in in_reach(users_frame()) if each.shape[1:] == learned.shape]
        trains = [(name, each) for name, each in data if _holds(each, learned)]
        others = [(name, each) for name, each in data if _holds(each, shown) and not _holds(each, learned)]
        if not trains or not others:
            return
        self._looks = LOOKS
        (train, rows), (validation, held_out) = _most(trains), _most(others)
        groups = min(own_scale(rows), own_scale(held_out))
        if groups:
            self.loop.emit(
                ScaledApart(
                    step=self.loop.steps,
                    where=caller(),
                    train=train,
                    validation=validation,
                    rows=len(rows),
                    validation_rows=len(held_out),
                    groups=groups,
                )
            )


def _most(found: list[tuple[str, Tensor]]) -> tuple[str, Tensor]:
    """All rows, and no batch of them; by the outermost of several names."""
    return max(reversed(found), key=lambda each: len(each[1]))


def _is_batch(tensor: Tensor) -> bool:
    plain = readable(tensor) and tensor.is_floating_point() and tensor.grad_fn is None and tensor.dim() > 1
    return plain and tensor.numel() > 0 and tensor[0].numel() <= MOST_NUMBERS


def _first_row(tensor: Tensor) -> Tensor:
    return tensor[0].detach().to("cpu", torch.float32, copy=True)


def _holds(data: Tensor, row: Tensor) -> bool:
    """One of the rows is this one; first one number of each is compared."""
    flat, wanted = data.reshape(len(data), -1), row.reshape(-1)
    places = (flat[:, 0].float() == wanted[0]).nonzero().reshape(-1)
    return any(torch.equal(flat[int(place)].float(), wanted) for place in places[:FEWEST_ROWS])


def own_scale(data: Tensor) -> int:
    """Columns, channels or whole sets of numbers whose mean is 0 and whose deviation is 1, if all of them are so; else 0."""
    if len(data) < FEWEST_ROWS or _each_by_itself(data):
        return 0
    for axes in _layouts(data):
        mean, deviation = data.double().mean(axes), data.double().std(axes, correction=0)
        varied = deviation > 0
        groups = int(varied.sum())
        exact = (EXACT if groups >= GROUPS else FEW_EXACT) * len(data) ** -0.5
        off = (deviation[varied] - 1).abs()
        if groups and bool((mean[varied].abs() < exact).all()) and bool((off < max(exact, 1 / len(data))).all()):
            return groups
    return 0


def _each_by_itself(data: Tensor) -> bool:
    """The rows, or the series in them, have the mean 0 and the deviation 1 each: no other row took part in that."""
    some = data[:FEWEST_ROWS].double()
    for flat in (some.reshape(len(some), -1), some.reshape(-1, some.shape[-1])):
        mean, deviation = flat.mean(1), flat.std(1, correction=0)
        off = torch.maximum(mean.abs(), (deviation - 1).abs())[deviation > 0]
        if len(off) and bool((off < 1 / flat.shape[1]).all()):
            return True
    return False


def _layouts(data: Tensor) -> Iterator[tuple[int, ...]]:
    """Over rows; over all but the last dimension, or all but that of channels; over everything."""
    everything = tuple(range(data.dim()))
    yield (0,)
    if data.dim() > 2:
        yield everything[:-1]
        yield (0, *everything[2:])
    yield everything
