"""The reference loop: everything in its place and in its order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._pytree import tree_leaves, tree_map

from flatline.toolbox._losses import LossFn, scalar
from flatline.toolbox.audits import parameter_audit
from flatline.toolbox.clipping import GradientClipper
from flatline.toolbox.deciding import EarlyStopping, parameter_norm
from flatline.toolbox.groups import param_groups
from flatline.toolbox.nonfinite import NaNGuard, NonFinite


@dataclass
class FitResult:
    """How a training went.

    Attributes:
        train: mean training loss of each epoch.
        valid: mean validation loss of each epoch, empty without validation data.
        lrs: rate of the first group at the end of each epoch.
        best: index of the epoch whose weights the model has now.
        clip_rate: share of steps whose gradient was clipped.
        skipped: steps that were not finite.
        cause: of the first of them.
        reason: why it ended.
    """

    train: list[float] = field(default_factory=list)
    valid: list[float] = field(default_factory=list)
    lrs: list[float] = field(default_factory=list)
    best: int = -1
    clip_rate: float = math.nan
    skipped: int = 0
    cause: NonFinite | None = None
    reason: str = "all epochs are over"


def fit(
    model: nn.Module,
    train: Iterable[Any],
    loss_fn: LossFn,
    *,
    valid: Iterable[Any] | None = None,
    optimizer: Optimizer | None = None,
    epochs: int = 10,
    lr: float = 1e-3,
    weight_decay: float = 0.01,
    warmup: float = 0.05,
    max_norm: float = 1.0,
    accumulate: int = 1,
    dtype: torch.dtype | None = None,
    patience: int | None = None,
) -> FitResult:
    """Train with what a careful loop has: read it, and copy what you need.

    AdamW without decay for biases and norms, linear warm-up and cosine decay stepped once for each update, gradients
    accumulated and clipped, steps that are not finite skipped, validation in eval mode without gradients, early
    stopping that knows grokking, and the best weights at the end. Nothing waits for the device but the guard.

    Args:
        model: on its device; batches are moved there.
        train: a DataLoader or a list, with a length.
        loss_fn: ``loss_fn(model, batch) -> Tensor`` with one element, a mean over samples. See :func:`supervised`.
        valid: a DataLoader or a list; without it the last weights are kept.
        optimizer: in place of AdamW; its own rates are the highest of the schedule.
        epochs: at most so many.
        lr: of AdamW.
        weight_decay: of AdamW.
        warmup: share of all updates.
        max_norm: threshold of clipping, ``math.inf`` for none.
        accumulate: batches for each update.
        dtype: of autocast, ``torch.bfloat16``, or None for none. float16 would need a GradScaler.
        patience: epochs without a better validation before it ends, None for all epochs.

    Raises:
        ValueError: no length, settings out of range, a trainable parameter outside the optimizer, or a bad loss.
        FloatingPointError: too many steps in a row were not finite.

    Source: A. Karpathy, A Recipe for Training Neural Networks (2019).
    """
    if not isinstance(train, Sized) or len(train) == 0:
        raise ValueError("the schedule needs the length of train; pass a DataLoader or a list that is not empty")
    if min(epochs, accumulate, patience or 1) < 1 or not 0 <= warmup < 1 or dtype == torch.float16:
        raise ValueError("need epochs, accumulate and patience >= 1, 0 <= warmup < 1, and a dtype other than float16")
    optimizer = optimizer or torch.optim.AdamW(param_groups(model, lr, weight_decay=weight_decay))
    outside = parameter_audit(model, optimizer).without_optimizer
    if outside:
        raise ValueError(f"trainable, but not in the optimizer: {', '.join(outside)}; add them, or freeze them")
    updates = epochs * math.ceil(len(train) / accumulate)
    schedule = LambdaLR(optimizer, partial(warmup_cosine, warm=round(warmup * updates), total=updates))
    clipper = GradientClipper(max_norm)
    guard = NaNGuard(model, optimizer, loss_fn=loss_fn)
    loop = _Loop(model, loss_fn, optimizer, schedule, clipper, guard, accumulate, dtype)
    result = _epochs(loop, train, valid, epochs, EarlyStopping(patience or epochs))
    result.clip_rate, result.skipped, result.cause = clipper.rate, guard.bad, guard.cause
    return result


def warmup_cosine(step: int, *, warm: int, total: int) -> float:
    """Return the share of the highest rate: up linearly, down to 0 along half a cosine; for ``LambdaLR``.

    Args:
        step: updates so far.
        warm: updates on the way up.
        total: all updates.
    """
    if step < warm:
        return (step + 1) / (warm + 1)
    return 0.5 * (1 + math.cos(math.pi * min((step - warm) / max(total - warm, 1), 1.0)))


def _epochs(
    loop: _Loop, train: Iterable[Any], valid: Iterable[Any] | None, epochs: int, stopping: EarlyStopping
) -> FitResult:
    result, best = FitResult(), dict[str, Tensor]()
    for epoch in range(epochs):
        _set_epoch(train, epoch)
        result.train.append(loop.train(train))
        result.lrs.append(float(loop.optimizer.param_groups[0]["lr"]))
        result.best = epoch if valid is None else result.best
        if valid is None:
            continue
        result.valid.append(loop.evaluate(valid))
        stop = stopping.step(result.valid[-1], train=result.train[-1], norm=parameter_norm(loop.model.parameters()))
        if stopping.improved:
            best, result.best = {n: v.detach().clone() for n, v in loop.model.state_dict().items()}, epoch
        if stop:
            result.reason = stopping.reason
            break
    if best:
        loop.model.load_state_dict(best)
    return result


def _set_epoch(batches: object, epoch: int) -> None:
    """A distributed sampler draws the same order for ever unless it is told."""
    tell = getattr(getattr(batches, "sampler", None), "set_epoch", None)
    if callable(tell):
        tell(epoch)


@dataclass
class _Loop:
    model: nn.Module
    loss_fn: LossFn
    optimizer: Optimizer
    schedule: LambdaLR
    clipper: GradientClipper
    guard: NaNGuard
    accumulate: int
    dtype: torch.dtype | None

    def __post_init__(self) -> None:
        self.device = next(iter(self.model.parameters())).device

    def train(self, batches: Iterable[Any]) -> float:
        """One epoch; the mean loss, read once at its end."""
        self.model.train()
        losses = []
        for window in _windows(batches, self.accumulate):
            self.optimizer.zero_grad(set_to_none=True)
            batch: Any = None
            total = torch.zeros((), device=self.device)
            for batch in map(self._moved, window):
                loss = self._loss(batch) / len(window)
                loss.backward()  # type: ignore[no-untyped-call]
                total = total + loss.detach()
            if self.guard.check(total, batch):
                self.clipper(p for group in self.optimizer.param_groups for p in group["params"])
                self.optimizer.step()
                self.schedule.step()
                losses.append(total)
        return float(torch.stack(losses).mean()) if losses else math.nan

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Any]) -> float:
        """The mean loss over all samples, in eval mode."""
        self.model.eval()
        losses, sizes = [], []
        for batch in map(self._moved, batches):
            losses.append(self._loss(batch, graph=False).detach())
            sizes.append(_size(batch))
        self.model.train()
        if not losses:
            raise ValueError("valid has no batches; pass None for a training without validation")
        weights = torch.tensor(sizes, device=losses[0].device, dtype=losses[0].dtype)
        return float((torch.stack(losses) * weights).sum() / weights.sum())

    def _loss(self, batch: Any, *, graph: bool = True) -> Tensor:
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            return scalar(self.loss_fn(self.model, batch), graph=graph).float()

    def _moved(self, batch: Any) -> Any:
        return tree_map(lambda leaf: leaf.to(self.device) if isinstance(leaf, Tensor) else leaf, batch)


def _windows(batches: Iterable[Any], length: int) -> Iterator[list[Any]]:
    """The batches of each update; the last window may be shorter."""
    window: list[Any] = []
    for batch in batches:
        window.append(batch)
        if len(window) == length:
            yield window
            window = []
    if window:
        yield window


def _size(batch: Any) -> int:
    """How many samples, as the first tensor tells."""
    return next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()), 1)
