"""C9."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from flatline.events import Curve, CurvesUpdated
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule
from flatline.trends import MAD_TO_SIGMA, falling_is_due, lacking, main, shown


class EpochBoundaryJump(Rule):
    """The training loss jumps up at exactly the first batches of each epoch.

    Symptom
    -------
    A saw with the teeth at the epoch boundaries: the loss falls within every epoch, and is up again at the next.

    Root cause
    ----------
    The batches come in an order that means something: sorted by class, length or source, or the same order in every epoch. The
    model adapts to what comes last, and forgets it when the first part comes again. Or one part of the data is harder.

    Fix
    ---
    ``shuffle=True`` on the training DataLoader, ``sampler.set_epoch(epoch)`` under DistributedSampler, and a larger shuffle
    buffer for streamed data.

    Example
    -------
    ::

        DataLoader(train_set, batch_size=64)

    Use instead
    -----------
    ::

        DataLoader(train_set, batch_size=64, shuffle=True)

    Healthy look-alikes
    -------------------
    Jumps downwards, as repeated data makes them; averages that are reset at the boundary of an epoch; a schedule that restarts
    there, if the rate was logged; noise that is as large at other places.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    code = "C9"
    severity = "hint"
    cause = (
        "the batches come in an order that means something, and the model forgets the first part while it sees the last"
    )
    fix = "DataLoader(..., shuffle=True), sampler.set_epoch(epoch) with DistributedSampler, a larger buffer for streams"

    boundaries: int = 3  # jumps that were seen
    window: int = 6  # points before and after; fewer in short epochs
    sure: float = 4.0  # robust deviations of the jumps at other places
    share: float = 0.8  # of the boundaries that jump
    size: float = 0.03  # of the level

    def lacks(self, event: CurvesUpdated) -> str:
        """Whether the curves are there, and long enough."""
        return lacking(event, train_loss=4 * self.boundaries, epoch=self.boundaries + 1)

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """Jumps at the boundaries beside jumps elsewhere."""
        loss, epoch = main(event, "train_loss"), main(event, "epoch")
        if loss is None or epoch is None or not falling_is_due(event):
            return
        marks = _boundaries(loss, epoch)
        lengths = [b - a for a, b in pairwise(marks)]
        if len(marks) < self.boundaries or min(lengths) < 4 or _restarts(event, [loss.steps[i] for i in marks]):
            return
        window = min(self.window, min(lengths) // 2)
        jumps = [_jump(loss.values, i, window) for i in marks if window <= i <= len(loss.values) - window]
        others = [
            _jump(loss.values, i, window)
            for i in range(window, len(loss.values) - window)
            if min(abs(i - mark) for mark in marks) >= window
        ]
        if len(jumps) >= self.boundaries and len(others) >= 2 * window and self._stand_out(jumps, others, loss):
            yield self.finding(
                event,
                f"{loss.name} jumps up by {median(jumps):.3g} at the start of the epochs ({len(jumps)} boundaries seen, the first "
                f"at step {shown(loss.steps[marks[0]])}); elsewhere it moves by {MAD_TO_SIGMA * median(map(abs, others)):.2g}",
                jump=median(jumps),
                boundaries=len(jumps),
            )

    def _stand_out(self, jumps: list[float], others: list[float], loss: Curve) -> bool:
        middle = median(others)
        deviation = MAD_TO_SIGMA * median(abs(each - middle) for each in others)
        least = max(middle + self.sure * deviation, self.size * abs(median(loss.values)))
        return sum(jump > least for jump in jumps) >= self.share * len(jumps)


def _boundaries(loss: Curve, epoch: Curve) -> list[int]:
    """Points of the loss with which an epoch begins."""
    found: list[int] = []
    k, previous = 0, math.inf
    for i, step in enumerate(loss.steps):
        while k < len(epoch.steps) and epoch.steps[k] <= step:
            k += 1
        now = math.floor(epoch.values[k - 1] + 1e-9) if k else math.inf
        if now > previous:
            found.append(i)
        previous = now
    return found


def _jump(values: Sequence[float], at: int, window: int) -> float:
    return median(values[at : at + window]) - median(values[at - window : at])


def _restarts(event: CurvesUpdated, steps: list[float]) -> bool:
    """The logged rate goes up at most of these steps."""
    rate = main(event, "learning_rate")
    if rate is None:
        return False
    gap = (rate.steps[-1] - rate.steps[0]) / max(len(rate.steps) - 1, 1)
    ups = [s for s, a, b in zip(rate.steps[1:], rate.values, rate.values[1:], strict=False) if b > 1.2 * a]
    return sum(any(abs(step - up) <= 2 * gap for up in ups) for step in steps) >= len(steps) / 2
