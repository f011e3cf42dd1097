"""The last good weights."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

KEPT = 2
SHARE = 0.02  # of the time, for copies


class Ring:
    """Copies of the weights of steps whose loss and gradients were finite, within a limit of bytes and of time."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._states: deque[tuple[int, dict[str, torch.Tensor]]] = deque(maxlen=KEPT)
        self._due = 0.0

    def due(self) -> bool:
        """Time enough has gone by."""
        return time.perf_counter() >= self._due

    def keep(self, step: int, names: dict[int, str], parameters: list[torch.Tensor]) -> str:
        """These weights gave numbers. Why they cannot be kept, or nothing."""
        started = time.perf_counter()
        size = sum(p.numel() * p.element_size() for p in parameters)
        if KEPT * size > self.limit:
            self._due = float("inf")
            return f"the last good weights are not kept, which takes {KEPT * size >> 20} MB; the batch is"
        known = {names.get(id(p), f"parameter {at}"): p for at, p in enumerate(parameters)}
        self._states.append((step, {name: p.detach().clone() for name, p in known.items()}))
        spent = time.perf_counter() - started
        self._due = started + spent / SHARE
        return ""

    def newest(self) -> dict[str, Any]:
        """For the file."""
        if not self._states:
            return {}
        step, weights = self._states[-1]
        return {"good_step": step, "good_weights": weights}
