"""Tables of a model: what is trained by whom, and what gradients arrive."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatline.toolbox._losses import LossFn, gradients
from flatline.toolbox._state import preserved

VANISHING = 1e-7  # mean absolute gradient: SageMaker Debugger's VanishingGradient
SPREAD = 1e-3  # of the largest mean absolute gradient: a loss that is small everywhere harms nobody
EXPLODING = 1e3  # norm, for a mean loss of ordinary size


@dataclass(frozen=True)
class ParameterRow:
    """One parameter.

    Attributes:
        name: as in ``named_parameters``; a shared one has its first name.
        shape: its shape.
        dtype: its dtype.
        numel: how many numbers.
        trainable: ``requires_grad``.
        groups: (optimizer, group) pairs of indices in which it is.
        lr: the rate of its first group, None without one.
        weight_decay: the decay of its first group, None without one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    numel: int
    trainable: bool
    groups: tuple[tuple[int, int], ...]
    lr: float | None
    weight_decay: float | None

    def __str__(self) -> str:
        state = "trained" if self.trainable else "frozen"
        where = ", ".join(f"{o}.{g}" for o, g in self.groups) or "no optimizer"
        rate = "" if self.lr is None else f" lr {self.lr:.3g} decay {self.weight_decay or 0:.3g}"
        return f"{self.name}  {list(self.shape)}  {self.numel:,}  {state}  {where}{rate}"


@dataclass(frozen=True)
class ParameterAudit:
    """All parameters of a model.

    Attributes:
        rows: one for each parameter, in the model's order.
        foreign: shapes of tensors that an optimizer holds and the model does not: often the weights before ``.to()``.
    """

    rows: tuple[ParameterRow, ...]
    foreign: tuple[tuple[int, ...], ...]

    @property
    def frozen(self) -> list[str]:
        """Parameters without ``requires_grad``."""
        return [row.name for row in self.rows if not row.trainable]

    @property
    def without_optimizer(self) -> list[str]:
        """Trainable parameters that no optimizer moves."""
        return [row.name for row in self.rows if row.trainable and not row.groups]

    @property
    def frozen_in_optimizer(self) -> list[str]:
        """Frozen parameters that an optimizer holds: decay and momentum may still move them."""
        return [row.name for row in self.rows if not row.trainable and row.groups]

    @property
    def in_several_groups(self) -> list[str]:
        """Parameters that are stepped more than once."""
        return [row.name for row in self.rows if len(row.groups) > 1]

    @property
    def towers(self) -> dict[str, tuple[int, int]]:
        """For each top-level part: how many numbers, and how many of them trainable."""
        counts: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for row in self.rows:
            every, trained = counts[row.name.partition(".")[0]]
            counts[row.name.partition(".")[0]] = (every + row.numel, trained + row.trainable * row.numel)
        return dict(counts)

    def __str__(self) -> str:
        total, trained = (sum(counts) for counts in zip(*self.towers.values(), strict=True)) if self.rows else (0, 0)
        return "\n".join([*map(str, self.rows), f"{total:,} parameters, {trained:,} trainable"])


def parameter_audit(model: nn.Module, *optimizers: Optimizer) -> ParameterAudit:
    """List every parameter with its optimizer, rate and decay. Only looks.

    Args:
        model: any module.
        optimizers: all that train it; without one, ``without_optimizer`` names everything trainable.

    Source: the check of ``torch.optim``'s documentation that an optimizer is built after the model was moved.
    """
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    settings: dict[int, dict[str, Any]] = {}
    held: dict[int, Tensor] = {}
    for o, optimizer in enumerate(optimizers):
        for g, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                places[id(parameter)].append((o, g))
                settings.setdefault(id(parameter), group)
                held[id(parameter)] = parameter
    rows = tuple(_row(n, p, places[id(p)], settings.get(id(p))) for n, p in model.named_parameters())
    own = {id(parameter) for parameter in model.parameters()}
    return ParameterAudit(rows, tuple(tuple(p.shape) for i, p in held.items() if i not in own))


def _row(name: str, p: Tensor, places: Sequence[tuple[int, int]], group: dict[str, Any] | None) -> ParameterRow:
    lr = float(group["lr"]) if group and "lr" in group else None
    decay = float(group.get("weight_decay") or 0.0) if group else None
    return ParameterRow(name, tuple(p.shape), p.dtype, p.numel(), p.requires_grad, tuple(places), lr, decay)


@dataclass(frozen=True)
class GradientRow:
    """The gradient of one parameter.

    Attributes:
        name: of the parameter.
        shape: of the parameter.
        norm: L2 norm; None if no gradient arrived.
        mean_abs: mean absolute value of the elements that are not 0.
        zeros: share of elements that are exactly 0.
        finite: no nan and no inf.
        weight_norm: L2 norm of the parameter.
    """

    name: str
    shape: tuple[int, ...]
    norm: float | None
    mean_abs: float
    zeros: float
    finite: bool
    weight_norm: float

    def __str__(self) -> str:
        if self.norm is None:
            return f"{self.name}  no gradient"
        return f"{self.name}  norm {self.norm:.3g}  zeros {self.zeros:.0%}  weight {self.weight_norm:.3g}"


@dataclass(frozen=True)
class GradientHealth:
    """The gradients of one batch.

    Attributes:
        loss: in its own unit.
        norm: L2 norm of all gradients together, as ``clip_grad_norm_`` measures it.
        rows: one for each trainable parameter, in the model's order.
    """

    loss: float
    norm: float
    rows: tuple[GradientRow, ...]

    @property
    def missing(self) -> list[str]:
        """Trainable parameters that no gradient reached."""
        return [row.name for row in self.rows if row.norm is None]

    @property
    def vanishing(self) -> list[str]:
        """Matrices with a mean absolute gradient below 1e-7 and a thousandth of the largest, but not 0.

        Biases are left out: before a norm theirs is 0 but for rounding.
        """
        limit = min(VANISHING, SPREAD * max((row.mean_abs for row in self.rows if row.finite), default=0.0))
        matrices = [row for row in self.rows if row.norm and row.finite and len(row.shape) > 1]
        return [row.name for row in matrices if row.mean_abs < limit]

    @property
    def zero(self) -> list[str]:
        """Parameters whose gradient is exactly 0: dead, or behind a factor that starts at 0 by design."""
        return [row.name for row in self.rows if row.norm == 0]

    @property
    def exploding(self) -> list[str]:
        """Parameters whose gradient has a norm above 1,000: too much where the loss is a mean of ordinary size."""
        return [row.name for row in self.rows if row.norm is not None and row.finite and row.norm > EXPLODING]

    @property
    def non_finite(self) -> list[str]:
        """Parameters with nan or inf in their gradient."""
        return [row.name for row in self.rows if not row.finite]

    @property
    def ok(self) -> bool:
        """A gradient arrived everywhere, and all are of a sane size. Zeros may be by design and do not count."""
        return not (self.missing or self.vanishing or self.exploding or self.non_finite)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.rows), f"loss {self.loss:.4g}, norm of all gradients {self.norm:.4g}"])


def gradient_health(model: nn.Module, batch: Any, loss_fn: LossFn) -> GradientHealth:
    """Run one backward, measure every gradient, and put everything back.

    Near the end of a good training all gradients are small, so take a fresh model. A gradient of exactly 0 is right
    behind a factor that starts at 0, as for matrix A of LoRA or the body under a head of zeros.

    Args:
        model: in the mode in which it is trained.
        batch: whatever ``loss_fn`` takes, on the model's device.
        loss_fn: ``loss_fn(model, batch) -> Tensor`` with one element. See :func:`supervised`.

    Raises:
        ValueError: the loss is no scalar or has no graph.

    Source: X. Glorot and Y. Bengio, Understanding the difficulty of training deep feedforward neural networks (2010).
    """
    with preserved(model):
        loss = gradients(loss_fn, model, batch)
        rows = tuple(_gradient_row(n, p) for n, p in model.named_parameters() if p.requires_grad)
    norms = [row.norm for row in rows if row.norm is not None]
    return GradientHealth(loss, math.sqrt(sum(norm * norm for norm in norms)), rows)


def _gradient_row(name: str, parameter: Tensor) -> GradientRow:
    weight, shape = float(_sizes(parameter).norm()), tuple(parameter.shape)
    if parameter.grad is None:
        return GradientRow(name, shape, None, 0.0, 0.0, True, weight)
    sizes = _sizes(parameter.grad)
    count = max(sizes.numel(), 1)
    finite = bool(torch.isfinite(sizes).all())
    zeros = int((sizes == 0).sum())
    mean_abs = float(sizes.sum()) / max(count - zeros, 1)
    return GradientRow(name, shape, float(sizes.norm()), mean_abs, zeros / count, finite, weight)


def _sizes(tensor: Tensor) -> Tensor:
    """Absolute values, dense, in the widest dtype of the device."""
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    return dense.abs().to(torch.float32 if dense.device.type == "mps" else torch.float64)
