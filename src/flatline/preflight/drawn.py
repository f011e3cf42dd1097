"""Which sizes are proven to be numbers of samples: the script itself drew so many, in no order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from flatline.preflight.hearing import STRANGE

FEWEST = 5  # indices whose order can be judged
MOST = 100_000  # indices that are read
GATHERED = 8  # of one step
TURNS = (0.15, 0.85)  # share of descents among random indices: windows of time have none, or all


class Drawn:
    """Listens to loaders, indexing and stacking. Order means nothing to a script that draws at random."""

    def __init__(self, listens: Callable[[], bool]) -> None:
        self.listens = listens  # not within a model
        self.sizes: set[int] = set()
        self.padded: set[tuple[int, ...]] = set()  # shapes that pad_sequence made
        self.gathered: list[Tensor] = []  # by which scores were picked: the labels, where a loss is made by hand

    def attach(self) -> None:
        """For the rest of the process."""
        from torch.nn.utils import rnn
        from torch.utils.data import dataloader

        base: Any = dataloader._BaseDataLoaderIter
        base._next_index = self._after(base._next_index, lambda indices, iterator: self._indices(indices))
        taking: Any = torch.Tensor
        taking.__getitem__ = self._after(taking.__getitem__, lambda taken, tensor, at: self._indices(at))
        selecting = self._after(taking.index_select, lambda taken, tensor, dim, index: self._indices(index))
        taking.index_select = selecting
        torch.stack = self._after(torch.stack, lambda made, tensors, *args, **kwargs: self._stacked(tensors))
        taking.gather = self._after(taking.gather, self._gathered, torch.is_grad_enabled)
        torch.gather = self._after(torch.gather, self._gathered, torch.is_grad_enabled)  # a model may make its loss
        rnn.pad_sequence = self._after(rnn.pad_sequence, lambda made, *args, **kwargs: self.padded.add(made.shape))

    def _after(
        self, original: Callable[..., Any], hear: Callable[..., object], listens: Callable[[], bool] | None = None
    ) -> Callable[..., Any]:
        listens = listens or self.listens

        def called(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if torch.compiler.is_compiling():
                return made
            with suppress(*STRANGE):
                if listens():
                    hear(made, *args, **kwargs)
            return made

        return called

    def _indices(self, given: Any) -> None:
        """A loader's, or those that a tensor is indexed with."""
        if isinstance(given, Tensor):
            if given.dim() != 1 or given.dtype not in (torch.long, torch.int32) or not FEWEST <= len(given) <= MOST:
                return
            given = given.tolist()
        elif type(given).__name__ == "ndarray" and given.ndim == 1 and given.dtype.kind in "iu":
            given = given[:MOST].tolist()
        if isinstance(given, list) and random(given):
            self.sizes.add(len(given))

    def _gathered(self, made: Any, scores: Tensor, dim: int, index: Tensor, **kwargs: Any) -> None:
        if index.dim() > 1 and index.shape[-1] == 1:
            self.gathered = [*self.gathered[1 - GATHERED :], index.detach().squeeze(-1)]

    def _stacked(self, tensors: Any) -> None:
        """Windows and rows of one tensor, begun anywhere."""
        if not isinstance(tensors, (list, tuple)) or not FEWEST <= len(tensors) <= MOST:
            return
        if len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1:
            if random([tensor.storage_offset() for tensor in tensors]):
                self.sizes.add(len(tensors))


def random(indices: Sequence[Any]) -> bool:
    """Whether these numbers go up and down: neither forwards, backwards, nor round a ring."""
    if len(indices) < FEWEST or not all(isinstance(index, int) for index in indices):
        return False
    falls = sum(later < earlier for earlier, later in itertools.pairwise(indices))
    share = falls / (len(indices) - 1)
    return falls > 1 and bool(TURNS[0] < share < TURNS[1])
