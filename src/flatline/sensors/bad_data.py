"""Numbers that are not finite, in the data that the user's own frames hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Subset

from flatline.sensors.callers import is_users, variables_of
from flatline.sensors.models import readable

FRAMES = 4  # of the user's, from the innermost outwards
MOST = 64  # tensors that are looked at
LARGEST = 50_000_000  # elements of one
ROWS = 64  # a smaller one is a batch, and what a broken model made of it
SHARE = 0.1  # of the numbers; what a broken model has made is nan altogether


def bad_data(frame: FrameType | None) -> str:
    """'X holds 1 of 20,000 numbers that are not finite, first in row 1203'; '' where all that is within reach is finite."""
    for name, tensor in in_reach(frame):
        bad = ~torch.isfinite(tensor)
        count = int(bad.sum())
        if 0 < count <= SHARE * tensor.numel():
            first = int(bad.reshape(len(tensor), -1).any(1).nonzero()[0])
            verb = "number that is" if count == 1 else "numbers that are"
            return f"{name} holds {count:,} {verb} not finite, among {tensor.numel():,}, first in row {first}"
    return ""


def in_reach(frame: FrameType | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of data that the user's frames hold, with the names of the variables that they were found in."""
    seen: dict[int, torch.Tensor] = {}
    for name, value in _named(frame):
        for tensor in _tensors(value):
            if len(seen) < MOST and id(tensor) not in seen and _is_data(tensor):
                seen[id(tensor)] = tensor
                yield name, tensor


def _named(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Variables of the innermost functions of the user's, and of their module."""
    inner, frames = frame, 0
    while frame is not None and frames < FRAMES:
        if is_users(frame.f_code.co_filename):
            frames += 1
            yield from variables_of(frame).items()
        frame = frame.f_back
    yield from list(inner.f_globals.items()) if inner is not None else ()


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    """A tensor or an array; those of a data set, of a loader, of an object that holds them."""
    while isinstance(value, (DataLoader, Subset)):
        value = value.dataset
    if isinstance(value, Dataset):
        held = vars(value).values()
        return [t for each in held for one in (each if isinstance(each, tuple) else (each,)) for t in _plain(one)]
    return _plain(value)


def _plain(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray" and value.dtype.kind == "f":
        return [torch.as_tensor(value)] if value.flags.writeable and value.dtype.isnative else []
    return []


def _is_data(tensor: torch.Tensor) -> bool:
    plain = readable(tensor) and not tensor.requires_grad and tensor.is_floating_point() and tensor.device.type == "cpu"
    return plain and tensor.dim() > 0 and len(tensor) >= ROWS and tensor.numel() <= LARGEST
