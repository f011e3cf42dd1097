"""Scores that are multiplied with a constant that grows from look to look: looked at again as the run goes on."""

from __future__ import annotations

from flatline.events import LossComputed, Where
from flatline.sensors.loop import Loop, OptimizerState

LOOKS = 8  # besides the usual ones
LATER = 1.6  # times the step of the last look
GROWN = 1.02  # factor over what it was at first
AT_FIRST = 3  # looks, of which each sees it higher than the one before


class AnnealedSensor:
    """Told of the losses of closely watched steps; called after sampled ones."""

    def __init__(self, loop: Loop, *, looks: int = LOOKS) -> None:
        self.loop, self._looks = loop, looks
        loop.begins.append(self._begin)
        self._begin()

    def _begin(self) -> None:
        self._seen: list[tuple[int, float]] = []  # step, factor
        self._left = self._looks

    def after_losses(self, found: list[LossComputed]) -> None:
        """The first factor of a step, while it only grows."""
        factor = next((each.factor for each in found if each.kind == "cross_entropy" and each.factor > 0), 0.0)
        self.note(factor)

    def note(self, factor: float) -> None:
        """What is multiplied with now; 0 if that is not known."""
        if factor and (not self._seen or self._seen[-1][0] < self.loop.step):
            self._seen = [*self._seen, (self.loop.step, factor)] if self._higher(factor) else [(self.loop.step, factor)]

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """Look closely again, each time as much later."""
        if self.loop.dense or not self._left or not self._grows():
            return
        if self.loop.step >= LATER * self._seen[-1][0]:
            self._left -= 1
            self.loop.look_closely()

    def _grows(self) -> bool:
        return len(self._seen) > AT_FIRST and self._seen[-1][1] >= GROWN * self._seen[0][1]

    def _higher(self, factor: float) -> bool:
        return bool(self._seen) and factor > self._seen[-1][1]
