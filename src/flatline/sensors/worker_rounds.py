"""Rounds of the workers of a loader: each gives one batch in turn. Is it the same one from all of them?"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from flatline.events import Where
from flatline.sensors.batches import content
from flatline.sensors.callers import is_users
from flatline.sensors.models import tensors_in
from flatline.sensors.revisited import nested

MOST_WORKERS = 16
ROUNDS = 4  # that are compared: a pass may begin with a few batches that all workers share


class Rounds:
    """The first batches of a stream that several workers serve."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.rows = 0
        self.alike = self.done = False
        self._prints: list[int] = []

    def add(self, batch: Any) -> None:
        """One more; the first two of different workers tell nearly all streams apart."""
        tensors = list(tensors_in(batch))
        self._prints.append(content(tensors) if tensors else 0)
        self.rows = max((len(t) for t in tensors if t.dim()), default=1)
        rounds = [set(self._prints[i : i + self.workers]) for i in range(0, len(self._prints), self.workers)]
        same = 0 not in self._prints and all(len(each) == 1 for each in rounds)
        self.done = not same or len(self._prints) == ROUNDS * self.workers
        self.alike = self.done and same and len(set(self._prints)) > 1  # or the data are one batch for ever


def streams(dataset: Any, workers: int) -> Rounds | None:
    """For a stream: a data set with indices is split among the workers by its sampler."""
    streamed = any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)
    return Rounds(workers) if streamed and 1 < workers <= MOST_WORKERS else None


def served_by(dataset: Any) -> tuple[Where | None, bool]:
    """The function of the user's that makes the stream, and whether the class asks which worker it is in."""
    methods = [m for kind in type(dataset).__mro__ for m in vars(kind).values() if isinstance(m, FunctionType)]
    methods = [m for m in methods if is_users(m.__code__.co_filename)]
    asks = any("get_worker_info" in code.co_names for m in methods for code in nested(m.__code__))
    made = next((m.__code__ for m in methods if m.__name__ == "__iter__"), None)
    return (Where(made.co_filename, made.co_firstlineno, "__iter__") if made is not None else None), asks
