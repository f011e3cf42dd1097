"""What the script's loop is fed with: one batch for ever, or all of its batches again and again."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable
from typing import Any

import torch

from flatline.preflight.hearing import Hearing
from flatline.sensors.models import transformed
from flatline.toolbox._state import keep_random

KEPT = 64  # batches of a loader that are served again
Tensor = torch.Tensor
Guarded = Callable[[Callable[..., Any], Callable[..., Any]], Callable[..., Any]]


def copied(value: Any) -> Any:
    """A batch of our own, as the script may change its batches in place."""
    if isinstance(value, Tensor):
        return value.detach().clone() if value.layout is torch.strided else value
    if isinstance(value, UserDict):
        twin = copy.copy(value)
        twin.data = copied(value.data)
        return twin
    if isinstance(value, dict):
        return _filled(value, {name: copied(item) for name, item in value.items()})
    if isinstance(value, (list, tuple)):
        return _filled(value, list(map(copied, value)))
    return value


def _filled(value: Any, items: Any) -> Any:
    """Another one of its kind, past the class's own way to make one, which may ask for something else."""
    if isinstance(value, tuple):
        changed = any(new is not old for new, old in zip(items, value, strict=True))
        return tuple.__new__(type(value), items) if changed else value
    twin = copy.copy(value)
    if isinstance(value, dict):
        twin.update(items)
    else:
        twin[:] = items
    return twin


class Loaders:
    """Serves what the loaders gave before. ``again`` says, for a loader that trains, which of its kept batches comes next."""

    def __init__(self, again: Callable[[], int | None]) -> None:
        self.again = again
        self.kept: dict[int, list[Any]] = {}  # id of a loader -> batches
        self.served: dict[int, int] = {}
        self.training: set[int] = set()
        self._newest: int | None = None
        self._alive: list[Any] = []  # loaders, so that no identity is taken over
        self._lengths: dict[int, int] = {}
        self._since_step = 0  # batches that were served for nothing so far

    def attach(self) -> None:
        """Stand before the iterators of every DataLoader."""
        from torch.utils.data import DataLoader, dataloader

        base: Any = dataloader._BaseDataLoaderIter
        following, beginning = base.__next__, DataLoader.__iter__

        def begin(loader: Any) -> Any:
            iterator: Any = beginning(loader)
            iterator._flatline_key = id(loader)
            if id(loader) not in self.kept:
                self._alive.append(loader)
                self._lengths[id(loader)] = _length(loader)
            return iterator

        def follow(iterator: Any) -> Any:
            return self._next(getattr(iterator, "_flatline_key", id(iterator)), lambda: following(iterator))

        DataLoader.__iter__ = begin  # type: ignore[method-assign]
        base.__next__ = follow

    def _next(self, key: int, original: Callable[[], Any]) -> Any:
        kept, count = self.kept.setdefault(key, []), self.served.get(key, 0)
        self.served[key], self._newest = count + 1, key
        self._since_step += 1
        if key in self.training and self._since_step > self._lengths.get(key, KEPT):
            self._since_step = 0
            raise StopIteration  # the script only reads on, and would for ever
        place = self.again() if key in self.training and kept else None
        if place is not None:
            return copied(kept[place])
        try:
            batch = original()
        except StopIteration:
            if key not in self.training or not kept:
                raise
            return copied(kept[count % len(kept)])
        if len(kept) < KEPT:
            kept.append(copied(batch))
        return batch

    def learned(self) -> None:
        """An optimizer stepped: loaders that were asked as often as the newest one feed the training."""
        self._since_step = 0
        if self._newest is not None and not self.training:
            count = self.served[self._newest]
            self.training = {key for key, times in self.served.items() if times == count}


def _length(loader: Any) -> int:
    """Batches of a pass, as far as the loader knows."""
    try:
        return max(1, len(loader))
    except TypeError:
        return KEPT


class Repeated:
    """Batches made by hand: the same random numbers at every step, and the first inputs and targets where that is not enough."""

    def __init__(self) -> None:
        self.inputs: tuple[Any, Any] | None = None
        self.changed = False  # a later step was called with other inputs, in spite of the same random numbers
        self._others, self._same = 0, 0  # calls of this step that its first inputs could not, and could, stand in for
        self._targets: dict[str, Any] = {}
        self._put_back: Callable[[], None] | None = None

    def attach(self, hearing: Hearing, guarded: Guarded) -> None:
        """Be asked what the outermost module and the losses are given."""
        hearing.inputs = guarded(self.given, lambda args, kwargs: (args, kwargs))
        hearing.target = guarded(self.aimed, lambda name, target: target)

    def given(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """What the outermost module is called with instead. Under ``torch.func`` tensors cannot be looked at."""
        if self._put_back is None or transformed():
            return args, kwargs
        if self.inputs is None:
            self.inputs = copied(args), copied(kwargs)
        alike = _alike((args, kwargs), self.inputs)
        self._others, self._same = self._others + (alike is None), self._same + (alike is not None)
        if alike is False:
            self.changed = True
            return copied(self.inputs[0]), copied(self.inputs[1])
        return args, kwargs

    def aimed(self, name: str, target: Tensor) -> Tensor:
        """What a loss is computed against instead."""
        if self._put_back is None or transformed():
            return target
        first: Tensor = self._targets.setdefault(f"{name} {tuple(target.shape)}", copied(target))
        return first if self.changed else target

    def stepped(self) -> bool:
        """The same random numbers as after the first step; whether this step saw the batch, and not the rest of an epoch."""
        own = self._put_back is not None and (self._same > 0 or not self._others)
        self._others = self._same = 0
        self._put_back = self._put_back or keep_random(None)
        self._put_back()
        return own


def _alike(given: Any, kept: Any) -> bool | None:
    """Whether these are the same tensors; None if they are of other shapes, and cannot stand in for each other."""
    if isinstance(given, Tensor) or isinstance(kept, Tensor):
        if not isinstance(given, Tensor) or not isinstance(kept, Tensor):
            return None
        if given.shape != kept.shape or given.dtype != kept.dtype or given.device != kept.device:
            return None
        if given.layout is not torch.strided:
            return True if given is kept else None
        return bool(torch.equal(given, kept)) or bool(given.isnan().any())
    if isinstance(given, UserDict) and isinstance(kept, UserDict):
        return _alike(given.data, kept.data)
    if isinstance(given, dict) and isinstance(kept, dict) and given.keys() == kept.keys():
        return _all([_alike(given[name], kept[name]) for name in given])
    if isinstance(given, (list, tuple)) and isinstance(kept, (list, tuple)) and len(given) == len(kept):
        return _all([_alike(one, other) for one, other in zip(given, kept, strict=True)])
    return True


def _all(found: list[bool | None]) -> bool | None:
    return None if None in found else all(found)
