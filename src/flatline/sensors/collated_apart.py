"""A collate function that puts the sequences of a batch into another order, and leaves the labels in theirs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch

from flatline.events import Where
from flatline.sensors.models import tensors_in
from flatline.sensors.patching import NO_FRAME

Tensor = torch.Tensor
LOOKS = 6  # batches whose items are kept until they are collated
ENOUGH = 2  # of them with labels apart
ROWS = 6  # in all, that carry another item's label
FEWEST = 4  # rows of a batch
MOST_NUMBERS = 200_000  # of a batch


class Apart(NamedTuple):
    """What tells that sequences and labels are in two orders."""

    batches: int
    rows: int
    wrong: int
    where: Where


class Collations:
    """The first batches that one loader's own collate function makes, beside the items that it makes them of."""

    def __init__(self, collate: Callable[..., Any]) -> None:
        code: CodeType = collate.__code__
        self.where = Where(code.co_filename, code.co_firstlineno, code.co_name)
        self._own, self._left = weakref.ref(collate), LOOKS  # it may know its loader
        self._items: Sequence[Any] | None = None
        self._labels: Tensor | None = None  # of the newest batch, in the order of the items
        self._wrong = 0
        self._found: list[tuple[int, int]] = []  # rows, and those with a wrong label, of batches learned from

    def is_own(self, function: Any) -> bool:
        """The loader's own one, which no batch was made by under our eyes yet."""
        return function is self._own()

    def watched(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """What an iterator has in the place of the loader's own, and alone holds it; made without a frame of its own."""

        def collate(items: Any) -> Any:
            batch = own(items)
            self._items = items
            return batch

        collate.__code__ = collate.__code__.replace(co_filename=NO_FRAME)
        vars(collate).update(collations=self, own=own)
        return collate

    def own_of(self, function: Any) -> Callable[..., Any] | None:
        """What such a one stands for."""
        held = vars(function) if type(function) is FunctionType else {}
        return held["own"] if held.get("collations") is self else None

    def made(self, batch: Any) -> bool:
        """A batch was made of the newest items. Returns whether there is more to see."""
        items, self._items, self._labels = self._items, None, None
        self._left -= 1
        if isinstance(items, Sequence) and len(items) >= FEWEST and not _puts_back(batch, len(items)):
            self._compare(items, [t for t in tensors_in(batch) if t.device.type == "cpu" and not t.is_sparse])
        return self._left > 0

    def learned(self, target: Tensor) -> Apart | None:
        """A loss was given these targets."""
        labels, self._labels = self._labels, None
        if labels is None or target.numel() != labels.numel() or target.device != labels.device:
            return None
        if torch.equal(target.detach().reshape(-1).double(), labels.reshape(-1).double()):
            self._found.append((len(labels), self._wrong))
        wrong = sum(each for _, each in self._found)
        if len(self._found) != ENOUGH or wrong < ROWS:
            return None
        return Apart(ENOUGH, sum(rows for rows, _ in self._found), wrong, self.where)

    def _compare(self, items: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        fields = _fields(items)
        order = next((found for each in tensors if (found := _order(each, fields.sequences)) is not None), None)
        if order is None or order == list(range(len(items))):
            return
        for numbers in fields.scalars:
            moved = torch.tensor(numbers)[order]
            for labels in (each for each in tensors if each.shape == (len(items),)):
                stays = torch.equal(labels.double(), torch.tensor(numbers, dtype=torch.float64))
                if stays and not torch.equal(labels.double(), moved.double()):
                    self._labels, self._wrong = labels.detach().clone(), int((labels.double() != moved.double()).sum())


def _puts_back(batch: Any, count: int) -> bool:
    """The batch holds an order of its rows, by which answers, or labels, may be put into place later on."""
    if isinstance(batch, Tensor):
        flat = batch.reshape(-1) if batch.device.type == "cpu" and batch.dim() == 1 and len(batch) == count else None
        return flat is not None and bool(torch.equal(flat.double().sort()[0], torch.arange(count, dtype=torch.float64)))
    if isinstance(batch, Mapping):
        return _puts_back(list(batch.values()), count)
    if not isinstance(batch, (list, tuple)):
        return False
    whole = len(batch) == count and all(isinstance(each, int) for each in batch)
    return sorted(batch) == list(range(count)) if whole else any(_puts_back(each, count) for each in batch)


class _Fields(NamedTuple):
    """Of the items: sequences of numbers, and single numbers."""

    sequences: list[list[Tensor]]
    scalars: list[list[float]]


def _fields(items: Sequence[Any]) -> _Fields:
    rows = [list(item.values()) if isinstance(item, Mapping) else item for item in items]
    found = _Fields([], [])
    if not all(isinstance(row, (tuple, list)) and len(row) == len(rows[0]) for row in rows):
        return found
    for column in zip(*rows, strict=True):
        numbers = [_tensor(value) for value in column]
        some = [each for each in numbers if each is not None]
        if len(some) < len(numbers) or sum(each.numel() for each in some) > MOST_NUMBERS:
            continue
        if all(each.numel() == 1 for each in some):
            found.scalars.append([float(each) for each in some])
        elif all(each.dim() and each.numel() for each in some):
            found.sequences.append(some)
    return found


def _tensor(value: Any) -> Tensor | None:
    """What holds numbers."""
    if isinstance(value, Tensor):
        return value.detach() if value.device.type == "cpu" and not value.is_sparse else None
    if isinstance(value, (bool, int, float)) or type(value).__module__ == "numpy":
        return _as_tensor(value)
    plain = isinstance(value, (list, tuple)) and bool(value) and all(isinstance(each, (int, float)) for each in value)
    return _as_tensor(value) if plain else None


def _as_tensor(value: Any) -> Tensor | None:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _order(batch: Tensor, columns: list[list[Tensor]]) -> list[int] | None:
    """Which item each row of a padded batch is, where that is certain."""
    for items in columns:
        for rows in (batch, batch.transpose(0, 1) if batch.dim() > 1 else batch):
            if len(rows) == len(items) and rows.dim() > 1:
                found = [_which(row.reshape(-1), items) for row in rows]
                if None not in found and len(set(found)) == len(found):
                    return [each for each in found if each is not None]
    return None


def _which(row: Tensor, items: list[Tensor]) -> int | None:
    """The only item that the row begins with, and of which nothing but one number is left."""
    fits = [at for at, item in enumerate(items) if _begins(row, item.reshape(-1))]
    return fits[0] if len(fits) == 1 else None


def _begins(row: Tensor, item: Tensor) -> bool:
    count = len(item)
    if count > len(row) or (count < len(row) and not bool((row[count:] == row[-1]).all())):
        return False
    return bool(torch.equal(row[:count].double(), item.double()))
