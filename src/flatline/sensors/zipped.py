"""Two loaders that are gone through side by side, each in an order of its own: is one the input, the other the target?"""

from __future__ import annotations

from typing import Any

import torch

from flatline.events import LoadersApart, Where
from flatline.sensors.graph import walk
from flatline.sensors.loop import Loop
from flatline.sensors.origins import Origin, Origins
from flatline.sensors.outliers import batch_of

LOOKS = 4  # steps at which the samples were others, and none at which they were the same


class Zipped:
    """Called with each loss whose targets are looked at; labels alone are a matter of pairing."""

    def __init__(self, loop: Loop, origins: Origins) -> None:
        self.loop, self._origins = loop, origins
        loop.begins.append(self._begin)
        self._begin()

    def _begin(self) -> None:
        self._looks, self._step, self._done = 0, 0, False

    def look(self, scores: Any, target: Any, where: Where | None) -> None:
        """What a loss compares, and with what."""
        if self._done or self.loop.step == self._step or not self.loop.wants(LoadersApart):
            return
        given = self._origins.of(target) if isinstance(target, torch.Tensor) and target.numel() > len(target) else None
        made = self._made_of(scores) if given is not None else None
        if given is None or made is None:
            return
        self._step = self.loop.step
        self._looks += 1
        self._done = given.loader == made.loader or given.samples == made.samples or self._looks == LOOKS
        if self._looks == LOOKS and given.loader != made.loader and given.samples != made.samples:
            self.loop.emit(
                LoadersApart(
                    step=self.loop.step, where=where, inputs=made.samples, targets=given.samples, looks=self._looks
                )
            )

    def _made_of(self, scores: Any) -> Origin | None:
        """The batch that these were reckoned from, where it is one alone."""
        if not isinstance(scores, torch.Tensor) or scores.grad_fn is None:
            return None
        known = {self._origins.of(tensor) for _, tensor in batch_of(walk(scores.grad_fn))} - {None}
        return known.pop() if len(known) == 1 else None
