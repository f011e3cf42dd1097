"""Two loaders that are gone through side by side, each in an order of its own: is one the input, the other the target?

Only the end of the run tells whether that does harm: another frame, or a file of the same name, may well be the right target. So
what is told is what the best constant answer would cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flatline.events import LoadersApart, Where
from flatline.sensors.graph import walk
from flatline.sensors.loop import Loop
from flatline.sensors.origins import Origin, Origins
from flatline.sensors.outliers import batch_of


def _entropy(target: torch.Tensor) -> torch.Tensor:
    share = target.mean().clamp(1e-7, 1 - 1e-7)
    return -(share * share.log() + (1 - share) * (1 - share).log())


GUESSING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "binary_cross_entropy": _entropy,
    "binary_cross_entropy_with_logits": _entropy,
    "mse_loss": lambda target: target.var(correction=0),
    "squared error": lambda target: target.var(correction=0),
    "l1_loss": lambda target: (target - target.median()).abs().mean(),
}
LOOKS = 4  # steps at which the samples were others, and none at which they were the same


class Zipped:
    """Called with each loss whose targets are looked at; labels alone are a matter of pairing."""

    def __init__(self, loop: Loop, origins: Origins) -> None:
        self.loop, self._origins = loop, origins
        loop.begins.append(self._begin)
        self._begin()

    def _begin(self) -> None:
        self._step, self._done = 0, False
        self._chance: list[
            float
        ] = []  # what the best constant answer costs, at each step at which the samples were others

    def look(self, kind: str, scores: Any, target: Any, where: Where | None) -> None:
        """What a loss compares, and with what."""
        if self._done or self.loop.step == self._step or not self.loop.wants(LoadersApart):
            return
        guessing = GUESSING.get(kind)
        maps = isinstance(target, torch.Tensor) and target.dim() > 1 and target.numel() > len(target)
        given = self._origins.of(target) if maps and guessing is not None else None
        made = self._made_of(scores) if given is not None else None
        if given is None or made is None or guessing is None:
            return
        self._step = self.loop.step
        if given.loader == made.loader or given.samples == made.samples:
            self._done = True  # they go together
            return
        self._chance.append(float(guessing(target.detach().float())))
        if len(self._chance) == LOOKS:
            self._done = True
            self.loop.emit(
                LoadersApart(
                    step=self.loop.step,
                    where=where,
                    inputs=made.samples,
                    targets=given.samples,
                    looks=LOOKS,
                    guessing=sum(self._chance) / LOOKS,
                )
            )

    def _made_of(self, scores: Any) -> Origin | None:
        """The batch that these were reckoned from, where it is one alone."""
        if not isinstance(scores, torch.Tensor) or scores.grad_fn is None:
            return None
        known = {self._origins.of(tensor) for _, tensor in batch_of(walk(scores.grad_fn))}
        return known.pop() if len(known) == 1 else None  # of a tensor that no loader served nothing is known
