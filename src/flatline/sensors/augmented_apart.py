"""An image and its mask, seen again in a later pass: were both flipped and turned in the same way since?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from flatline.sensors.models import fingerprint, sample, tensors_in

Tensor = torch.Tensor
ITEMS = 48  # of a loader that are remembered
SMALLEST = 8  # side of an image
SIDE = 128  # at most; of larger images some rows and columns are kept, mirrored onto each other by every move
SAMPLED = 4_096  # elements that tell a mask from an image, and that are compared with what a model is called with
FEW_VALUES = 32  # in a mask
ALIKE, UNLIKE = 0.98, 0.9  # correlation of two views under a move: more is that move, less is not
SAME = 0.9999  # correlation of an input with the image that it was made from by one factor and one shift
ENOUGH = 4  # items whose image and mask went different ways
SHARE = 0.2  # of the items compared: a flip with p = 0.5 of each parts a half of them
EXPLAINED = 0.8  # of the masks are what a move makes of them; else something moves, crops or draws them
PATIENCE, MOST = 40, 160  # second looks at items: so many of which none was apart, and in all
CALLS = 2  # of a model, with the image as it was served


def _as_it_is(plane: Tensor) -> Tensor:
    return plane


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "left as it was": _as_it_is,
    "flipped left to right": lambda plane: plane.flip(1),
    "flipped upside down": lambda plane: plane.flip(0),
    "turned by 180°": lambda plane: plane.flip(0, 1),
    "turned by 90°": lambda plane: plane.rot90(),
    "turned by 270°": lambda plane: plane.rot90(3),
    "mirrored at a diagonal": lambda plane: plane.t(),
    "mirrored at the other diagonal": lambda plane: plane.rot90(2).t(),
}


class Turned(NamedTuple):
    """What tells that images and masks are moved apart."""

    item: int  # an index of the data set
    image: str  # what its image went through between two passes
    mask: str
    apart: int  # items
    compared: int


class Parts(NamedTuple):
    """The image and the mask of a batch, and all else that it holds."""

    image: Tensor
    mask: Tensor
    others: tuple[Tensor, ...]

    def view(self, row: int) -> View:
        """One item of it."""
        return View(
            _plane(self.image[row]),
            _plane(self.mask[row]),
            tuple(fingerprint(t[row]) for t in self.others if t.dim() and len(t) == len(self.image)),
        )


class View(NamedTuple):
    """One item, as it was served."""

    image: Tensor  # [h, w], float32
    mask: Tensor
    others: tuple[int, ...]  # prints of what else belongs to it

    def drawing(self) -> tuple[float, ...]:
        """Moments about the middle: the same for masks that a move makes of one another."""
        down, across = (torch.arange(1.0 - n, n, 2, dtype=torch.float64).square() for n in self.mask.shape)
        ways = torch.ones(()), down[:, None] + across, down[:, None] * across
        return tuple(float(f"{float((self.mask.double() * way).sum()):.9g}") for way in ways)


class Views:
    """The images and masks of one loader that a model learns from."""

    def __init__(self) -> None:
        self.done = False
        self._kept: dict[int, View] = {}
        self._drawings: dict[int, tuple[float, ...]] = {}  # of their masks
        self._compared: set[int] = set()
        self._apart: dict[int, tuple[str, str]] = {}
        self._looks = 0
        self._explained = 0  # of them
        self._elsewhere: set[int] = (
            set()
        )  # items whose image and mask both were other ones, of the values that they had
        self._told = False
        self._calls = 0
        self._newest: Parts | None = None  # at a close look, until the model was called

    def add(self, samples: Sequence[Any], batch: Any, *, close: bool) -> None:
        """One more batch; ``samples`` are the first indices that it is made of."""
        self._newest = None
        if self._looks >= (MOST if self._apart else PATIENCE):
            self.close()
        whole = [index for index in samples if type(index) is int]
        known = [index for index in whole if index in self._kept]
        if self.done or len(whole) < len(samples) or not (known or close or len(self._kept) < ITEMS):
            return
        parts = split(batch)
        if parts is None or len(parts.image) < len(samples):
            self.close()
            return
        self._newest = parts if close else None
        for row, index in enumerate(samples):
            if index in self._kept:
                self._compare(index, parts.view(row))
            elif len(self._kept) < ITEMS:
                view = self._kept[index] = parts.view(row)
                self._drawings[index] = view.drawing()

    def called_with(self, tensors: Sequence[Any]) -> None:
        """A model in training was called: with the image as it is, and without the mask?"""
        parts = self._newest
        if parts is None:
            return
        if any(_same(tensor, parts.mask) for tensor in tensors):
            self.close()
            return
        shaped = [tensor for tensor in tensors if tensor.shape == parts.image.shape]
        self._calls += bool(shaped)
        if not all(_same(tensor, parts.image) for tensor in shaped):
            self.close()

    def turned(self) -> Turned | None:
        """What was found, once it is sure."""
        drawings = list(self._drawings.values())
        apart = {index: moves for index, moves in self._apart.items() if drawings.count(self._drawings[index]) == 1}
        sure = self._calls >= CALLS and self._explained >= EXPLAINED * self._looks
        if not sure or len(apart) < max(ENOUGH, SHARE * len(self._compared)):
            return None
        item, (image, mask) = next(iter(apart.items()))
        return Turned(item, image, mask, len(apart), len(self._compared))

    def elsewhere(self) -> int:
        """Items that came again with another image and another mask, as after a crop; told once, when it is sure."""
        if self._told or self._calls < CALLS or len(self._elsewhere) < ENOUGH:
            return 0
        self._told = True
        return len(self._elsewhere)

    def close(self) -> None:
        """Nothing more is to be learned: keep no tensor."""
        self.done, self._newest = True, None
        self._kept.clear()

    def _compare(self, index: int, now: View) -> None:
        before = self._kept[index]
        if now.image.shape != before.image.shape or now.others != before.others:
            return
        if _drawn_elsewhere(before, now):
            self._elsewhere.add(index)
        moved = [name for name, plane in _moved(before.mask) if torch.equal(plane, now.mask)]
        self._looks += 1
        self._explained += bool(moved)
        likeness = {name: _correlation(plane, now.image) for name, plane in _moved(before.image)}
        best = max(likeness, key=lambda name: likeness[name])
        if not moved or not likeness[best] >= ALIKE:
            return
        self._compared.add(index)
        if all(likeness[name] < UNLIKE for name in moved):
            self._apart.setdefault(index, (best, moved[0]))


def split(batch: Any) -> Parts | None:
    """An image of many values and a mask of few, both of one height and width, on the processor; None for all else."""
    tensors = list(tensors_in(batch))
    if any(t.device.type != "cpu" or t.is_sparse or t.is_complex() or t.is_quantized for t in tensors):
        return None
    spatial = [t for t in tensors if t.dim() in (3, 4) and min(t.shape[-2:]) >= SMALLEST]
    if len(spatial) != 2 or len(spatial[0]) != len(spatial[1]) or spatial[0].shape[-2:] != spatial[1].shape[-2:]:
        return None
    values = [len(set(sample(t, SAMPLED))) for t in spatial]
    if not min(values) <= FEW_VALUES < max(values):
        return None
    mask, image = spatial if values[0] < values[1] else spatial[::-1]
    return Parts(image, mask, tuple(t for t in tensors if t is not mask and t is not image))


def _drawn_elsewhere(before: View, now: View) -> bool:
    """Neither is what it was, and the mask has no value that it had not: moved, not made brighter."""
    others = not torch.equal(before.image, now.image) and not torch.equal(before.mask, now.mask)
    return others and torch.equal(torch.unique(before.mask), torch.unique(now.mask))


def _plane(item: Tensor) -> Tensor:
    """All channels in one, in steps that leave rows and columns where a flip finds them."""
    rows, columns = (_mirrored(side) for side in item.shape[-2:])
    some = item.detach()[..., rows, columns].float()
    if some.dim() == 2:
        return some.clone()
    return (some * torch.arange(1, len(some) + 1, dtype=some.dtype).square()[:, None, None]).sum(0)


def _mirrored(side: int) -> slice:
    """Every n-th place, n odd, as far from the first one as from the last."""
    step = -(-side // SIDE)
    step += step % 2 == 0
    first = ((side - 1) * ((step + 1) // 2)) % step
    return slice(first, side - first, step)


def _moved(plane: Tensor) -> list[tuple[str, Tensor]]:
    """The plane after every move that keeps its shape."""
    every = [(name, move(plane)) for name, move in MOVES.items()]
    return [(name, moved) for name, moved in every if moved.shape == plane.shape]


def _correlation(one: Tensor, other: Tensor) -> float:
    """Of two planes, or lists of numbers; nan where one of them is a constant."""
    one, other = one - one.mean(), other - other.mean()
    return float((one * other).sum() / (one.square().sum() * other.square().sum()).sqrt())


def _same(tensor: Tensor, served: Tensor) -> bool:
    """It holds the numbers that were served, maybe in another type, on another scale and with one more dimension."""
    if tensor.numel() != served.numel():
        return False
    ours, theirs = (torch.tensor(sample(t, SAMPLED), dtype=torch.float64) for t in (tensor, served))
    return bool(torch.equal(ours, theirs)) or _correlation(ours, theirs) >= SAME
