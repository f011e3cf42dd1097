"""Another pairing of inputs and labels, under which simple rules tell the labels that they do not tell as they are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import permutations
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils.data import TensorDataset

from flatline.sensors.callers import is_users, variables_of
from flatline.sensors.lengths import length_of
from flatline.sensors.models import readable
from flatline.sensors.pairing import ENOUGH_ROWS, are_ids, features, told_by_line, told_by_means

Tensor = torch.Tensor
ROWS = 512  # that are looked at
MOST = 100_000  # rows of a data set
ORDERS = 4  # in reach of the script, at most
FRAMES = 6  # functions that it is in
VALUES = 200  # in each of them
COLUMNS = 8  # of records
SURE = 7.0  # deviations above the commonest class: of some hundred pairings none gets there by chance
GAINED = 0.1  # and a share of the samples besides; of a correlation the same
ORDERLESS = 5.0  # deviations: an order in which neighbours are alike makes pairings look right that are not
DISTINCT = 0.9  # of the values by which rows were sorted: few may be equal
DIGITS = re.compile(r"\d+")


class Repaired(NamedTuple):
    """The order that the labels have to be put into, and how much the inputs tell of them then."""

    order: str
    right: float  # share that the nearest class mean tells; correlation with a linear fit
    rows: int


class Order(NamedTuple):
    """Places, each once."""

    name: str
    places: Tensor
    back: Tensor


def repaired(dataset: Any, frame: FrameType | None) -> Repaired | None:
    """Tries orders that the script has at hand, or that the text of numbers makes."""
    inputs, labels = _sides(dataset)
    if inputs is None or labels is None or not ENOUGH_ROWS <= len(labels) <= MOST:
        return None
    first, step = torch.arange(min(ROWS, len(labels))), max(1, len(labels) // ROWS)
    sides = [_numbers(inputs, first), labels[:, None].float()]
    if not all(side is not None and _orderless(side) for side in sides):
        return None
    rows = torch.arange(0, len(labels), step)[:ROWS]
    numbers = _numbers(inputs, rows)
    if numbers is None or _told(numbers, labels, rows) is not None:
        return None
    names = [order for order in _names_at_hand(frame, labels) if not _sorts(order, labels)]
    count = len(inputs._base) if type(inputs) is Tensor and inputs._base is not None else len(labels)
    pairings = _pairings([*_as_text(max(count, len(labels))), *names], rows)
    found = [(name, told) for name, places in pairings if (told := _told(numbers, labels, places)) is not None]
    return max((Repaired(name, *told) for name, told in found), key=lambda each: each.right, default=None)


def _told(inputs: Tensor, labels: Tensor, places: Tensor) -> tuple[float, int] | None:
    """How well the labels at these places are told, if they are; those beyond the end are of another part of the data."""
    inside = places < len(labels)
    count = int(inside.sum())
    if count < ENOUGH_ROWS:
        return None
    inputs, labels = inputs[inside], labels[places[inside]]
    if labels.is_floating_point():
        right, limit = told_by_line(inputs, labels), max(GAINED, SURE / math.sqrt(count))
    else:
        common = float(torch.unique(labels, return_counts=True)[1].max()) / count
        right = told_by_means(inputs, labels)
        limit = common + max(GAINED, SURE * math.sqrt(common * (1 - common) / count))
    return (right, count) if right >= limit else None


def _sorts(order: Order, labels: Tensor) -> bool:
    """It was made from the labels: with it everything that goes up seems to tell them."""
    moved = [labels[places[places < len(labels)], None].float() for places in (order.places, order.back)]
    return not all(_orderless(side) for side in moved)


def _orderless(side: Tensor) -> bool:
    """It neither goes up, or down, nor is a row like the one before it."""
    count = len(side)
    side = (side - side.mean(0)) / side.std(0).clamp(min=1e-9)
    index = torch.linspace(-1, 1, count)[:, None] * math.sqrt(3)
    alike = torch.stack([(side[1:] * side[:-1]).mean(0), (side * index).mean(0)])
    return bool(alike.abs().max() <= ORDERLESS / math.sqrt(count))


# --------------------------------------------------------------------------- what is paired


def _sides(dataset: Any) -> tuple[Any, Tensor | None]:
    """The inputs and the labels, each one array or list with a row for every sample."""
    while hasattr(dataset, "dataset") and hasattr(dataset, "indices"):  # a part of one
        dataset = dataset.dataset
    count = length_of(dataset)
    if not count:
        return None, None
    held = list(dataset.tensors if type(dataset) is TensorDataset else getattr(dataset, "__dict__", {}).values())
    labels = [column for each in held if (column := _label_column(each, count)) is not None]
    inputs = [each for each in held if _has_rows(each, count)]
    return (inputs[0], labels[0]) if len(inputs) == len(labels) == 1 else (None, None)


def _label_column(value: Any, count: int) -> Tensor | None:
    """One number for each sample, and not all of them the same."""
    if type(value) is list and len(value) == count and all(type(each) in (int, float) for each in value):
        value = torch.tensor(value)
    if not _is_numeric(value) or len(value) != count or math.prod(value.shape) != count:
        return None
    column = torch.as_tensor(value).detach().reshape(-1)
    column = column.float() if column.is_floating_point() else column.long()
    return column if bool(column.isfinite().all()) and bool((column != column[0]).any()) else None


def _has_rows(value: Any, count: int) -> bool:
    """Several numbers for each sample."""
    if type(value) is list:
        return len(value) == count and _is_numeric(value[0]) and math.prod(value[0].shape) > 1
    return _is_numeric(value) and len(value) == count < math.prod(value.shape)


def _is_numeric(value: Any) -> bool:
    """A tensor in memory, or an array of numbers, with rows."""
    if type(value) is Tensor:
        plain = readable(value) and not value.is_complex() and not value.is_sparse and value.dtype is not torch.bool
        return plain and value.device.type == "cpu" and value.dim() > 0
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ == "ndarray" and value.dtype.kind in "iuf" and value.ndim > 0


def _numbers(inputs: Any, rows: Tensor) -> Tensor | None:
    """Some numbers of some rows."""
    some = [inputs[at] for at in rows.tolist()]
    if not all(_is_numeric(each) and each.shape == some[0].shape for each in some):
        return None
    taken = torch.stack([torch.as_tensor(each).detach() for each in some])
    taken = features(taken if are_ids(taken) else taken.float())
    return taken if bool(taken.isfinite().all()) else None


# --------------------------------------------------------------------------- orders


def _pairings(orders: list[Order], rows: Tensor) -> Iterator[tuple[str, Tensor]]:
    """For some rows of the inputs those of their labels: either side was moved, or both, or one before a shuffle of both."""
    for order in orders:
        yield order.name, order.places[rows]
        yield order.name, order.back[rows]
    for one, other in permutations(orders, 2):
        if len(one.places) == len(other.places) and one.name != other.name:
            name, last = f"{one.name} and {other.name}", one.places[rows]
            yield name, other.back[last]
            yield name, one.back[other.places[last]]
            yield name, one.back[other.back[last]]


def _as_text(count: int) -> Iterator[Order]:
    """``case1.npy``, ``case10.npy``, ``case2.npy``: numbers from 0 or from 1, with a point, or a letter, behind them."""
    for start in (0, 1):
        for end in (".", "_"):
            texts = [f"{at}{end}" for at in range(start, start + count)]
            yield _ordered("text, 10 before 2", sorted(range(count), key=texts.__getitem__))


def _ordered(name: str, places: Any) -> Order:
    places = torch.as_tensor(places)
    return Order(name, places, places.argsort())


def _names_at_hand(frame: FrameType | None, labels: Tensor) -> list[Order]:
    """Permutations among the variables of the functions that the script is in, and what sorts by others of them."""
    found: list[Order] = []
    texts: dict[str, list[str]] = {}
    for name, value in _columns(frame):
        if len(found) >= ORDERS or not len(labels) <= len(value) <= MOST:
            continue
        texts |= {name: list(value)} if _are_texts(value) and len(texts) < ORDERS else {}
        places = _of_names(list(value)) if name in texts else _of_numbers(value, labels)
        if places is not None and not torch.equal(places, torch.arange(len(places))):
            found.append(_ordered(f"`{name}`", places))
    return found + [
        _ordered(f"`{one}` and `{other}`", places)
        for one, other in permutations(texts, 2)
        if one < other and (places := _from_one_to_another(texts[one], texts[other])) is not None
    ]


def _columns(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Variables with many values, and columns of those that are lists of records."""
    for names in _scopes(frame):
        for name, value in list(names.items())[:VALUES]:
            many = type(value) in (list, tuple, set, dict) and len(value) >= ENOUGH_ROWS
            if many and type(value) is list and type(value[0]) in (dict, tuple):
                yield from _of_records(name, value)
            elif many or (_is_array(value) and value.ndim == 1):
                yield name, value


def _of_records(name: str, records: list[Any]) -> Iterator[tuple[str, Any]]:
    """Columns that all of them have."""
    first = records[0]
    keys = [key for key in (first if type(first) is dict else range(len(first))) if type(key) in (int, str)]
    alike = all(type(each) is type(first) and len(each) == len(first) for each in records)
    for key in keys[:COLUMNS] if alike else ():
        if type(first) is tuple or all(key in each for each in records):
            yield f"{name}[{key!r}]", [each[key] for each in records]


def _is_array(value: Any) -> bool:
    return _is_numeric(value) or (type(value).__module__ == "numpy" and type(value).__name__ == "ndarray")


def _scopes(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    outside: list[int] = []
    for _ in range(FRAMES):
        if frame is None:
            return
        if is_users(frame.f_code.co_filename):
            if frame.f_locals is not frame.f_globals:
                yield variables_of(frame)
            if id(frame.f_globals) not in outside:
                outside.append(id(frame.f_globals))
                yield dict(frame.f_globals)
        frame = frame.f_back


def _are_texts(value: Any) -> bool:
    """Of one kind, and each once."""
    if _is_array(value) and not _is_numeric(value):
        return value.dtype.kind == "U" and len(set(value.tolist())) == len(value)
    return not _is_numeric(value) and all(type(each) is str for each in value) and len(set(value)) == len(value)


def _of_names(names: list[str]) -> Tensor:
    """What sorts them as text; what sorts them by their numbers where that was done already."""
    names = [str(each) for each in names]
    by_text = sorted(range(len(names)), key=names.__getitem__)
    if by_text != list(range(len(names))):
        return torch.tensor(by_text)
    return torch.tensor(sorted(by_text, key=lambda at: [int(each) for each in DIGITS.findall(names[at])]))


def _from_one_to_another(one: list[str], other: list[str]) -> Tensor | None:
    """Where each name of one list stands in the other."""
    places = {name: at for at, name in enumerate(other)}
    if len(one) != len(other) or any(name not in places for name in one):
        return None
    return torch.tensor([places[name] for name in one])


def _of_numbers(value: Any, labels: Tensor) -> Tensor | None:
    """A permutation, or that by which different numbers are sorted; none of what tells the labels themselves."""
    if type(value) in (set, dict) or (type(value) in (list, tuple) and not all(type(v) in (int, float) for v in value)):
        return None
    if _is_array(value) and not _is_numeric(value):
        return None
    numbers = torch.as_tensor(value)
    if not bool(numbers.isfinite().all()) or torch.equal(numbers[: len(labels)].double(), labels.double()):
        return None
    ordered, places = torch.sort(numbers, stable=True)
    if not numbers.is_floating_point() and torch.equal(ordered.long(), torch.arange(len(ordered))):
        return numbers.long()
    return places if int((ordered.diff() != 0).sum()) >= DISTINCT * len(ordered) else None
