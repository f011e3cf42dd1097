"""The first items of a validation pass, again and again: whether they are the ones of the pass before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch.utils.data import Subset

from flatline.sensors.batches import is_torchs
from flatline.sensors.models import fingerprint, tensors_in

ROWS = 16  # of the first batch that are compared
FEWEST = 4  # rows that tell something, and items that come again
ITEMS = 64  # of a loader that is learned from
DEEP = 4  # functions that call functions
RANDOM = {
    "rand", "randn", "randint", "random", "uniform", "normal", "choice", "choices", "rand_like", "randn_like", "bernoulli",
    "permutation", "randperm", "gauss", "multinomial", "standard_normal", "integers", "randrange", "normal_", "uniform_",
}  # fmt: skip
CHANGED = 0.25  # of them: a flip with p = 0.5 changes half of them from one pass to the next, on average


class Glimpse(NamedTuple):
    """The first batch of one pass."""

    step: int
    shape: tuple[int, ...]  # of an input
    targets: int
    rows: tuple[int, ...]  # prints of its first inputs

    def changed(self, other: Glimpse) -> int:
        """Items whose target is the same and whose input is not."""
        return sum(a != b for a, b in zip(self.rows, other.rows, strict=True)) if self.same_items(other) else 0

    def same_items(self, other: Glimpse) -> bool:
        """As far as shapes and targets tell."""
        return (self.shape, self.targets, len(self.rows)) == (other.shape, other.targets, len(other.rows))


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

    def shape(self) -> tuple[int, ...]:
        """Of an input."""
        return self.last.shape if self.last is not None else ()

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
    return Glimpse(
        step,
        tuple(inputs.shape[1:]),
        fingerprint(targets[:rows]),
        tuple(fingerprint(inputs[row]) for row in range(rows)),
    )


class Learned:
    """Items of a loader that is learned from, by their indices: whether they, too, are others when they come again."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.redrawn = False
        self.done = False
        self._prints: dict[int, int] = {}
        self._again = 0

    def add(self, samples: Sequence[Any], batch: Any) -> None:
        """One more batch; ``samples`` are the first indices that it is made of."""
        known = [at for at, index in enumerate(samples) if index in self._prints]
        if self.done or not (known or len(self._prints) < ITEMS):
            return
        inputs = next((t for t in tensors_in(batch) if t.is_floating_point() and t.dim() > 1 and not t.is_sparse), None)
        near = inputs is not None and inputs.device.type == "cpu"
        if inputs is None or not near or len(inputs) < len(samples) or any(type(index) is not int for index in samples):
            self.done = True
            return
        self.shape = tuple(inputs.shape[1:])
        for at, index in enumerate(samples):
            print_ = fingerprint(inputs[at])
            if self._prints.setdefault(index, print_) != print_:
                self.redrawn = True
        self._again += len(known)
        self.done = self.redrawn or self._again >= FEWEST


def held_out(dataset: Any, learned: Iterable[Any]) -> bool:
    """No item of the data set is learned from, as far as objects and their arrays tell."""
    return not any(_share(dataset, other) for other in learned)


def _share(one: Any, other: Any) -> bool:
    if isinstance(one, Subset) and isinstance(other, Subset) and one.dataset is other.dataset:
        return not set(one.indices).isdisjoint(other.indices)
    return base(one) is base(other) or not _arrays(base(one)).isdisjoint(_arrays(base(other)))


def _arrays(dataset: Any) -> set[int]:
    """Where the tensors, arrays and lists that it holds begin."""
    held = list(getattr(dataset, "__dict__", {}).values())
    tensors = {each.data_ptr() for each in held if isinstance(each, torch.Tensor)}
    arrays = {each.ctypes.data for each in held if type(each).__module__ == "numpy" and hasattr(each, "ctypes")}
    return tensors | arrays | {id(each) for each in held if isinstance(each, list) and each}


def base(dataset: Any) -> Any:
    """What a part is a part of."""
    return base(dataset.dataset) if isinstance(dataset, Subset) else dataset


def made_alike(one: Any, other: Any) -> bool:
    """Two loaders whose items come from one class of the user's, or go through one function of theirs."""
    kinds = [type(base(loader.dataset)) for loader in (one, other)]
    same = kinds[0] is kinds[1] and not is_torchs(kinds[0])
    together = one.collate_fn is other.collate_fn and not is_torchs(one.collate_fn)
    return (same or together) and any(draws(part, DEEP) for part in (base(one.dataset), one.collate_fn))


def draws(thing: Any, deep: int) -> bool:
    """A data set, a transform or a function that asks for random numbers, as its code shows."""
    thing = thing.func if isinstance(thing, partial) else thing
    if "Random" in type(thing).__name__ or isinstance(thing, (list, tuple)):
        return not isinstance(thing, (list, tuple)) or any(draws(each, deep - 1) for each in thing[:ROWS] if deep)
    code = code_of(thing)
    if code is None or not deep or is_torchs(thing):
        return False
    if any(not RANDOM.isdisjoint(each.co_names) for each in nested(code)):
        return True
    names = {name for each in nested(code) for name in each.co_names}
    around = getattr(thing, "__globals__", None) or getattr(
        getattr(type(thing), "__getitem__", None), "__globals__", {}
    )
    found = (
        [getattr(thing, name, None) for name in names if name in dir(thing)]
        if not isinstance(thing, FunctionType)
        else []
    )
    found += [around[name] for name in names if name in around]
    return any(draws(each, deep - 1) for each in found if callable(each) or isinstance(each, (list, tuple)))


def code_of(thing: Any) -> CodeType | None:
    """Of a function, of what a data set does for one item, of what a transform does when it is called."""
    function = getattr(thing, "__func__", thing)
    for name in ("__getitem__", "forward", "__call__"):
        if not isinstance(function, FunctionType) and not isinstance(thing, (type, list, tuple)):
            function = getattr(type(thing), name, function)
    return getattr(function, "__code__", None)


def nested(code: CodeType) -> list[CodeType]:
    """The code of a function, and of the functions within it."""
    return [code, *(inner for each in code.co_consts if isinstance(each, CodeType) for inner in nested(each))]
