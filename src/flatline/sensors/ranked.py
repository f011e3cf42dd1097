"""Measured targets that rise, or fall, row by row through every pass, while no input does: rows sorted by the target."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from flatline.events import TargetsRanked, Where
from flatline.sensors.loop import Loop
from flatline.sensors.models import readable
from flatline.sensors.tree import modules

Tensor = torch.Tensor
STREAMS = 4  # losses whose targets are followed
FEWEST = 4  # rows of a batch whose order tells something
MOST_NUMBERS = 4_000_000  # of the inputs, compared row by row
WAKINGS = 6  # ends of passes at which a close look is asked for
AHEAD = 3  # steps before the end of a pass: the look goes on into the next one
COPY = 0.9999  # correlation of what a loader served with the target that was made from it


class Place(NamedTuple):
    """Where a batch stands in the data."""

    position: int  # from 1
    length: int  # batches in a pass
    passes: int = 0  # 0: not known


class Rankings:
    """The losses of a regression, each with the order of its targets."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._streams: dict[int, Ranks] = {}
        self._step = 0
        self._inputs: list[Any] = []  # weak references to what models were called with at that step
        self._recurrent = False  # rows of a batch may be moments, whose order carries meaning
        self._wake = 0  # step
        self._wakings = 0

    def called(self, step: int, tensors: Sequence[Tensor], module: Any) -> None:
        """A model in training was called."""
        if step != self._step:
            self._step, self._inputs = step, []
        self._inputs += [weakref.ref(tensor) for tensor in tensors]
        if tensors[0].dim() == 2 and not self._recurrent:
            self._recurrent = any(isinstance(each, torch.nn.RNNBase) for each in modules(module))

    def look(
        self,
        stream: int,
        scores: Any,
        target: Tensor,
        place: Place | None,
        served: Iterable[Tensor],
        step: int,
        where: Where | None,
    ) -> None:
        """One more batch, at a close look."""
        if place is None or self._recurrent or not self.loop.wants(TargetsRanked):
            return
        if stream not in self._streams and len(self._streams) >= STREAMS:
            return
        ranks = self._streams.setdefault(stream, Ranks())
        inputs = [tensor for ref in self._inputs if step == self._step and (tensor := ref()) is not None]
        if ranks.add(target, place, inputs, served) and isinstance(scores, Tensor) and scores.shape == target.shape:
            self._tell(stream, ranks, scores, place, step, where)

    def _tell(self, stream: int, ranks: Ranks, scores: Tensor, place: Place, step: int, where: Where | None) -> None:
        self.loop.emit(
            TargetsRanked(
                step=step,
                where=where,
                stream=stream,
                rising=ranks.sign > 0,
                alone=not ranks.accompanied(),
                passes=ranks.passes,
                position=place.position,
                length=place.length,
                target=ranks.mean,
                answer=float(scores.detach().double().mean()),
            )
        )
        ahead = step + place.length - place.position - AHEAD
        if ahead > self._wake and ahead > step and self._wakings < WAKINGS and not ranks.accompanied():
            self._wake = ahead

    def after_backward(self) -> None:
        """The end of a pass may be near."""
        if self._wake and self.loop.steps >= self._wake:
            self._wake, self._wakings = 0, self._wakings + 1
            self.loop.look_closely()


class Ranks:
    """The order of one loss's targets, and of the inputs beside them."""

    def __init__(self) -> None:
        self.sign = 0  # 1: they rise, -1: they fall
        self.passes = 0
        self.mean = 0.0  # of the newest batch
        self._spoilt = False
        self._rows = 0  # of every batch but the last one
        self._last: tuple[Place, float] | None = None  # the newest batch, and its last target
        self._columns: list[Columns] = []

    def add(self, target: Tensor, place: Place, inputs: Sequence[Tensor], served: Iterable[Tensor]) -> bool:
        """One more batch. Returns whether all of them were in order so far."""
        rows = len(target) if target.dim() else 0
        self._rows = self._rows or rows
        if self._spoilt or rows != self._rows:
            return False
        beside = [t for t in inputs if t.dim() and len(t) == rows]
        small = sum(t.numel() for t in beside) <= MOST_NUMBERS
        if rows != target.numel() or rows < FEWEST or not beside or not small or not self._ordered(target, place):
            self._spoilt, self._columns = True, []
            return False
        beside += [t for t in served if t.dim() and len(t) == rows and not _copies(t, target)]
        self._compare(beside)
        self.mean, self._last = float(target.detach().double().mean()), (place, float(target.reshape(-1)[-1]))
        return not self._spoilt

    def accompanied(self) -> bool:
        """Some input rises or falls as the targets do."""
        return any(columns.along() for columns in self._columns)

    def _ordered(self, target: Tensor, place: Place) -> bool:
        """It goes on where the batch before it in the pass has ended."""
        values = target.detach().double().reshape(-1)
        again = self._last is None or place.position <= self._last[0].position or place.passes > self._last[0].passes
        if again:
            self.passes = place.passes or self.passes + 1
        elif self._last is not None:
            values = torch.cat([values.new_tensor([self._last[1]]), values])
        for columns in self._columns if again else ():
            columns.begin()
        steps = values.diff()
        up, down = bool((steps >= 0).all()), bool((steps <= 0).all())
        if self.sign == 0 and up != down:
            self.sign = 1 if up else -1
        return up if self.sign > 0 else down if self.sign < 0 else False

    def _compare(self, beside: Sequence[Tensor]) -> None:
        numbers = [_numbers(tensor) for tensor in beside]
        if not self._columns:
            self._columns = [Columns() for _ in numbers]
        fits = len(numbers) == len(self._columns)
        if not fits or not all(columns.add(one) for columns, one in zip(self._columns, numbers, strict=True)):
            self._spoilt = True


class Columns:
    """Those of one input that only rose, or only fell, in every pass so far."""

    def __init__(self) -> None:
        self._ways: tuple[Tensor, Tensor] | None = None
        self._varied: Any = None
        self._last: Tensor | None = None  # row

    def begin(self) -> None:
        """A new pass."""
        self._last = None

    def add(self, rows: Tensor) -> bool:
        """One more batch; False if it has other columns."""
        if self._ways is not None and self._ways[0].shape != rows.shape[1:]:
            return False
        whole = rows if self._last is None else torch.cat([self._last[None], rows])
        steps = whole.diff(dim=0)
        up, down, varied = (steps >= 0).all(0), (steps <= 0).all(0), (steps != 0).any(0)
        if self._ways is not None:
            up, down, varied = up & self._ways[0], down & self._ways[1], varied | self._varied
        self._ways, self._varied, self._last = (up, down), varied, rows[-1]
        return True

    def along(self) -> bool:
        """Some of them, and no constants."""
        return self._ways is not None and bool(((self._ways[0] | self._ways[1]) & self._varied).any())


def _numbers(tensor: Tensor) -> Tensor:
    """[rows, columns], and three columns more: the mean, the size, and how much of a row is filled."""
    flat = tensor.detach().reshape(len(tensor), -1).float()
    return torch.cat([flat, flat.mean(1, True), flat.abs().mean(1, True), (flat != 0).float().sum(1, True)], 1)


def _copies(tensor: Tensor, target: Tensor) -> bool:
    """It holds the targets, maybe in other units."""
    if tensor.numel() != target.numel():
        return False
    pair = torch.stack([each.detach().double().reshape(-1).cpu() for each in (tensor, target)])
    return abs(float(torch.corrcoef(pair)[0, 1])) >= COPY or bool(torch.equal(pair[0], pair[1]))


def sliced_place(target: Tensor) -> Place | None:
    """Of a slice of a column that holds one number for every row of the data."""
    base: Tensor | None = target._base
    rows = len(target) if target.dim() else 0
    if base is None or rows == 0 or base.numel() != len(base) or base.numel() < rows or not readable(base):
        return None
    if not base.is_contiguous() or (rows > 1 and target.stride(0) != 1):
        return None
    return Place(target.storage_offset() // rows + 1, -(-base.numel() // rows))
