"""Which samples of its data set a batch is made of."""

from __future__ import annotations

from collections import deque
from typing import Any

from flatline.sensors.patching import Patches

AHEAD = 10_000  # batches that workers may have been asked for


class Indices:
    """Listens to the sampler of every DataLoader; draws nothing itself."""

    def __init__(self, patches: Patches) -> None:
        self.patches = patches
        self.newest: list[int] = []

    def attach(self) -> None:
        """Stand beside the iterators, which ask the sampler and hand out in the same order."""
        from torch.utils.data import dataloader

        base = dataloader._BaseDataLoaderIter
        self.patches.around(base, "_next_index", after=self._asked)
        self.patches.around(base, "_reset", before=self._again)
        self.patches.around(base, "__next__", after=self._served)

    def _again(self, iterator: Any, *args: Any, **kwargs: Any) -> None:
        iterator._flatline_asked = deque(maxlen=AHEAD)

    def _asked(self, indices: Any, iterator: Any) -> None:
        asked = getattr(iterator, "_flatline_asked", None)
        if asked is None:
            asked = iterator._flatline_asked = deque(maxlen=AHEAD)
        asked.append(indices)

    def _served(self, batch: Any, iterator: Any) -> None:
        asked = getattr(iterator, "_flatline_asked", None)
        found = asked.popleft() if asked else None
        ordered = getattr(iterator, "_in_order", True)
        plain = isinstance(found, (list, tuple)) and ordered and all(type(index) is int for index in found)
        self.newest = list(found) if plain and found is not None else []

    def of(self, rows: tuple[int, ...], samples: int) -> tuple[int, ...]:
        """Their places in the data set, if the batch is the one that was served last."""
        if len(self.newest) != samples:
            return ()
        return tuple(self.newest[row] for row in rows)
