"""The first test of a loop: can it learn one batch by heart?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from flatline.toolbox._losses import LossFn, scalar
from flatline.toolbox._state import preserved

Verdict = Literal["memorised", "falling", "stuck", "plateau", "oscillating", "non-finite"]

STUCK = 0.05  # of the first loss: less than this was gained
FALLING = 0.95  # the last quarter still lost a twentieth: more steps would help
DETOUR = 4.0  # the path of the last quarter, in units of what it gained
ROUGH = 0.02  # of its mean: a mean change from step to step that is no longer smooth

ADVICE: dict[Verdict, str] = {
    "memorised": "forward, loss, backward and step work together",
    "falling": "the loss still falls: allow more steps or a higher learning rate",
    "stuck": "look for parameters outside the optimizer, a detached loss, a wrong loss function, or a far too low rate",
    "plateau": "look for labels that contradict each other, a softmax before the loss, a dead layer or too small a model",
    "oscillating": "the learning rate is too high for this batch",
    "non-finite": "the learning rate is far too high, or an operation overflows, divides by zero or takes log(0)",
}


@dataclass(frozen=True)
class OverfitResult:
    """What became of one batch.

    Attributes:
        verdict: "memorised", "falling", "stuck", "plateau", "oscillating" or "non-finite".
        losses: the loss before each step, in its own unit.
        bar: the loss below which the batch counts as memorised.
    """

    verdict: Verdict
    losses: tuple[float, ...]
    bar: float

    @property
    def passed(self) -> bool:
        """The batch was learnt by heart."""
        return self.verdict == "memorised"

    def __str__(self) -> str:
        course = f"loss {self.losses[0]:.4g} -> {self.losses[-1]:.4g} in {len(self.losses)} steps, bar {self.bar:.4g}"
        return f"{self.verdict}: {course}; {ADVICE[self.verdict]}"


def overfit_one_batch(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFn,
    optimizer: Optimizer | None = None,
    *,
    steps: int = 500,
    lr: float | None = None,
    target: float = 0.01,
    ratio: float = 0.01,
    floor: float = 0.0,
) -> OverfitResult:
    """Train on one batch until it is memorised, tell how that went, and put everything back.

    A sound loop brings the loss below ``target``, or below ``ratio`` of its start. One that does not has a defect
    which no choice of hyperparameters mends. The model is in train mode, dropout modules and weight decay are off.
    ``F.dropout`` in a forward of your own stays on.

    Args:
        model: any module; it is the same bit for bit afterwards, and so are its gradients, the optimizer and all RNGs.
        batch: whatever ``loss_fn`` takes, on the model's device.
        loss_fn: ``loss_fn(model, batch) -> Tensor`` with one element. See :func:`supervised`.
        optimizer: over the model's parameters; Adam with a rate of 1e-3 if None.
        steps: at most so many.
        lr: a rate in place of the optimizer's own, which may be 0 at the start of a warm-up.
        target: loss above ``floor``, in the loss's unit; used only if the loss starts above it.
        ratio: share of the loss at the start.
        floor: the lowest possible loss, for soft targets :func:`entropy_floor`.

    Raises:
        ValueError: the loss is no scalar, has no graph, or starts at its floor; the learning rate is 0.

    Source: A. Karpathy, A Recipe for Training Neural Networks (2019).
    """
    with preserved(model, optimizer), _undisturbed(model), torch.enable_grad():
        model.train()
        _dropout_off(model)
        used = optimizer or torch.optim.Adam([p for p in model.parameters() if p.requires_grad] or [Tensor()], lr=1e-3)
        _prepare(used, lr)
        return _memorise(model, batch, loss_fn, used, steps, target, ratio, floor)


def _memorise(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFn,
    optimizer: Optimizer,
    steps: int,
    target: float,
    ratio: float,
    floor: float,
) -> OverfitResult:
    losses: list[float] = []
    bar = -math.inf

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = scalar(loss_fn(model, batch))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    for _ in range(max(steps, 1)):
        losses.append(float(optimizer.step(closure)))  # type: ignore[arg-type]
        if len(losses) == 1:
            bar = _bar(losses[0], target, ratio, floor)
        if losses[-1] < bar or not math.isfinite(losses[-1]):
            break
    return OverfitResult(classify(losses, bar, floor), tuple(losses), bar)


def _bar(start: float, target: float, ratio: float, floor: float) -> float:
    if not math.isfinite(start):
        return -math.inf
    excess = start - floor
    if excess <= 0:
        raise ValueError(
            f"the loss starts at {start:.4g}, not above its floor of {floor:.4g}; pass floor=, its minimum"
        )
    return floor + (max(target, ratio * excess) if excess > target else ratio * excess)


def classify(losses: Sequence[float], bar: float, floor: float = 0.0) -> Verdict:
    """What a row of losses on one batch says."""
    if not all(math.isfinite(loss) for loss in losses):
        return "non-finite"
    if losses[-1] < bar:
        return "memorised"
    tail = losses[-max(len(losses) // 4, 2) :]
    path = sum(abs(b - a) for a, b in pairwise(tail))
    level = sum(tail) / len(tail) - floor
    if path > DETOUR * abs(tail[-1] - tail[0]) and path / len(tail) > ROUGH * level:
        return "oscillating"
    if losses[0] - min(losses) < STUCK * (losses[0] - floor):
        return "stuck"
    return "falling" if tail[-1] - floor < FALLING * (tail[0] - floor) else "plateau"


def _prepare(optimizer: Optimizer, lr: float | None) -> None:
    for group in optimizer.param_groups:
        if lr is not None:
            set_lr(group, lr)
        if "weight_decay" in group:
            group["weight_decay"] = 0.0
    if not any(float(group.get("lr", 1.0)) for group in optimizer.param_groups):
        raise ValueError("the learning rate is 0, perhaps at the start of a warm-up; pass lr=")


def set_lr(group: dict[str, Any], lr: float) -> None:
    """Set a group's rate, also where it is a tensor that a captured graph reads."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


def _dropout_off(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.eval()
        elif isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
            module.dropout = 0.0


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Dropout that is a number of a module, put back."""
    kept = [(m, m.dropout) for m in model.modules() if isinstance(m, (nn.RNNBase, nn.MultiheadAttention))]
    try:
        yield
    finally:
        for module, dropout in kept:
            module.dropout = dropout
