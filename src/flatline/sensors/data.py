"""Sees batches leave DataLoaders: how long a pass is, whether it is the same batch again."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from flatline.events import BatchesServed, Where
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import ModelSensor, fingerprint, tensors_in
from flatline.sensors.patching import Patches

REMEMBERED = 8


class Loader:
    """One DataLoader under watch."""

    def __init__(self, loader: Any) -> None:
        self.ref = weakref.ref(loader)
        self.length = _length(loader)
        self.passes = 0
        self.fed = 0  # backwards that followed one of its batches


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None


class DataSensor:
    """Patches the iterators that every DataLoader hands out."""

    def __init__(self, loop: Loop, patches: Patches, models: ModelSensor) -> None:
        self.loop, self.patches, self.models = loop, patches, models
        self.loaders: dict[int, Loader] = {}
        self.newest: Loader | None = None
        self._batch: tuple[int, int] | None = None
        self._trained_on: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        self._indices = 0

    def attach(self) -> None:
        """Patch the base class of the iterators."""
        from torch.utils.data import dataloader

        base = dataloader._BaseDataLoaderIter
        self.patches.around(base, "__init__", before=self._started)
        self.patches.around(base, "__next__", after=self._served)
        self.patches.around(base, "_next_index", after=self._indexed)

    def _started(self, iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        known = self.loaders.get(id(loader))
        if known is None or known.ref() is not loader:
            known = self.loaders[id(loader)] = Loader(loader)
        known.passes += 1
        iterator._flatline_loader = known

    def _indexed(self, indices: Any, iterator: Any) -> None:
        if self.loop.dense and getattr(iterator, "_num_workers", 0) == 0:
            self._indices = hash(tuple(indices)) if isinstance(indices, list) else hash(str(indices))

    def _served(self, batch: Any, iterator: Any) -> None:
        loader: Loader | None = getattr(iterator, "_flatline_loader", None)
        if loader is None:
            return
        self.newest = loader
        known = [entry for entry in self.loaders.values() if entry.fed]
        self.models.batch_is_foreign = bool(known) and not loader.fed
        if self.loop.dense:
            prints = [fingerprint(t) for t in tensors_in(batch)]
            self._batch = (hash(tuple(prints)), self._indices) if prints else None
            for state in list(self.loop.optimizers.values()):
                state.window.tick("batch")

    def after_backward(self) -> None:
        """The newest batch was learned from."""
        if self.newest is not None:
            self.newest.fed += 1

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """Tell which batches the last steps learned from."""
        batch, self._batch = self._batch, None
        if not self.loop.dense or batch is None or self.newest is None:
            return
        self._trained_on.append(batch)
        self.loop.emit(
            BatchesServed(
                step=self.loop.step,
                where=where,
                fingerprints=tuple(entry[0] for entry in self._trained_on),
                indices=tuple(entry[1] for entry in self._trained_on),
                restarts=self.newest.passes,
                loader_length=self.newest.length,
            )
        )

    # ------------------------------------------------------------------ for schedules

    def training_loader(self) -> Loader | None:
        """The loader that fed most backwards."""
        fed = [loader for loader in self.loaders.values() if loader.fed]
        return max(fed, key=lambda loader: loader.fed, default=None)

    def epoch_length(self) -> int | None:
        """Batches in one pass over the training data."""
        loader = self.training_loader()
        return loader.length if loader is not None else None

    def epochs(self) -> int:
        """Passes begun over the training data, less the one in progress."""
        loader = self.training_loader()
        return max(0, loader.passes - 1) if loader is not None else 0
