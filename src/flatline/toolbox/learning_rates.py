"""Which learning rate: one sweep over all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from flatline.toolbox._losses import LossFn, endless, scalar
from flatline.toolbox._state import preserved
from flatline.toolbox.overfitting import set_lr

GAIN = 0.05  # of the first loss: less is taken for noise
BELOW_MINIMUM = 10.0  # one decade below the rate of the lowest loss: Smith 2015, and fast.ai's rule


@dataclass(frozen=True)
class LRRangeResult:
    """The curve of a sweep.

    Attributes:
        lrs: the rate of each step, of the group with the highest.
        losses: the loss before each step.
        smoothed: the same, as an exponential mean without its bias.
        suggestion: a rate to begin with, None if no rate made the loss fall.
        reason: why, in one line.
    """

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggestion: float | None
    reason: str

    def __str__(self) -> str:
        return self.reason


def lr_range_test(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Any],
    loss_fn: LossFn,
    *,
    start_lr: float = 1e-7,
    end_lr: float = 10.0,
    steps: int = 100,
    smoothing: float = 0.9,
    diverge: float = 4.0,
) -> LRRangeResult:
    """Raise the learning rate geometrically from step to step, and see where the loss falls and where it explodes.

    Stops early when the smoothed loss is ``diverge`` times its lowest, or not finite. The suggestion is a decade below
    the rate of the lowest smoothed loss. Afterwards model, optimizer and all RNGs are the same bit for bit.

    Args:
        model: in the mode in which it is trained.
        optimizer: the one to be tuned. Groups keep the ratios of their rates; the highest is swept.
        batches: a DataLoader or a list; begun again when it ends. A generator must have ``steps`` batches.
        loss_fn: ``loss_fn(model, batch) -> Tensor`` with one element. See :func:`supervised`.
        start_lr: first rate.
        end_lr: last rate.
        steps: from the first rate to the last.
        smoothing: share of the past in the exponential mean, 0 for none.
        diverge: multiple of the lowest smoothed loss.

    Raises:
        ValueError: rates or smoothing out of range, no batches, or a loss that is no scalar with a graph.

    Source: L. N. Smith, Cyclical Learning Rates for Training Neural Networks (2015), arXiv:1506.01186.
    """
    if not 0 < start_lr < end_lr or steps < 2 or not 0 <= smoothing < 1:
        raise ValueError("need 0 < start_lr < end_lr, at least 2 steps, and 0 <= smoothing < 1")
    with preserved(model, optimizer, batches), torch.enable_grad():
        ratios = _ratios(optimizer)
        losses: list[float] = []
        smooth = Smoothed(smoothing)
        rates = [start_lr * (end_lr / start_lr) ** (step / (steps - 1)) for step in range(steps)]
        for loss in _sweep(model, optimizer, batches, loss_fn, ratios, rates):
            losses.append(loss)
            if not math.isfinite(smooth.add(loss)) or _diverged(smooth.values, diverge):
                break
    return _result(rates[: len(losses)], losses, smooth.values)


def _sweep(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Any],
    loss_fn: LossFn,
    ratios: list[float],
    rates: list[float],
) -> Iterator[float]:
    """Set a rate, step, tell the loss."""
    stream = endless(batches)
    for rate in rates:
        for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
            set_lr(group, rate * ratio)

        def closure(batch: Any = next(stream)) -> torch.Tensor:  # noqa: B008
            optimizer.zero_grad()
            loss = scalar(loss_fn(model, batch))
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        yield float(optimizer.step(closure))  # type: ignore[arg-type]


def _ratios(optimizer: Optimizer) -> list[float]:
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    highest = max(rates)
    return [rate / highest if highest else 1.0 for rate in rates]


class Smoothed:
    """An exponential mean, corrected for its start at zero as in Adam."""

    def __init__(self, share: float) -> None:
        self.share, self.mean, self.values = share, 0.0, list[float]()

    def add(self, value: float) -> float:
        """One more value; the mean with it."""
        self.mean = self.share * self.mean + (1 - self.share) * value
        self.values.append(self.mean / (1 - self.share ** (len(self.values) + 1)))
        return self.values[-1]


def _diverged(smoothed: list[float], diverge: float) -> bool:
    lowest = min(smoothed)
    return lowest > 0 and smoothed[-1] > diverge * lowest


def _result(rates: list[float], losses: list[float], smoothed: list[float]) -> LRRangeResult:
    finite = [loss for loss in smoothed if math.isfinite(loss)]
    lowest = min(finite, default=math.inf)
    if not finite or lowest > finite[0] - GAIN * abs(finite[0]):
        reason = f"no rate between {rates[0]:.2g} and {rates[-1]:.2g} made the loss fall; overfit one batch first"
        return LRRangeResult(tuple(rates), tuple(losses), tuple(smoothed), None, reason)
    best = rates[smoothed.index(lowest)]
    reason = f"{best / BELOW_MINIMUM:.2g}: a decade below {best:.2g}, where the smoothed loss was lowest ({lowest:.4g})"
    return LRRangeResult(tuple(rates), tuple(losses), tuple(smoothed), best / BELOW_MINIMUM, reason)
