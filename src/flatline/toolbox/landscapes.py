"""The loss around the weights: along lines, on planes, between two trainings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatline.toolbox._losses import LossFn, gradients, value_of
from flatline.toolbox._state import preserved

Direction = Sequence[Tensor]


@dataclass(frozen=True)
class LandscapeResult:
    """Losses at points of a line or a plane.

    Attributes:
        positions: along each direction, in units of the direction; 0 is where the weights are.
        losses: float64, shape (n,) of a slice or (n, n) of a plane, first direction first.
        directions: one list for each direction, a tensor for each trainable parameter.
    """

    positions: tuple[float, ...]
    losses: Tensor
    directions: tuple[tuple[Tensor, ...], ...]


def filter_normalised(model: nn.Module, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
    """Draw a random direction in which every filter is as long as the filter of the weights.

    So the picture does not depend on the scale of the weights, which norms and ReLU make meaningless. A filter is what
    makes one output: ``weight[i]``. Biases and norms, with one dimension, stay where they are.

    Args:
        model: its trainable parameters.
        generator: on the CPU; the global one if None.

    Returns:
        A tensor for each trainable parameter, in their order.

    Source: H. Li et al., Visualizing the Loss Landscape of Neural Nets (2018), arXiv:1712.09913.
    """
    return tuple(_direction(p.detach(), generator) for p in model.parameters() if p.requires_grad)


def _direction(weight: Tensor, generator: torch.Generator | None) -> Tensor:
    if weight.dim() < 2:
        return torch.zeros_like(weight)
    drawn: Tensor = torch.randn(weight.shape, generator=generator, dtype=torch.float32).to(weight)
    shape = (-1, *[1] * (weight.dim() - 1))
    ratio: Tensor = weight.flatten(1).norm(dim=1) / drawn.flatten(1).norm(dim=1).clamp(min=1e-12)
    return drawn * ratio.view(shape)


def loss_slice(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFn,
    *,
    distance: float = 1.0,
    points: int = 21,
    direction: Direction | None = None,
    generator: torch.Generator | None = None,
) -> LandscapeResult:
    """Measure the loss along a line through the weights; afterwards everything is the same bit for bit.

    Norms in train mode use each point's own statistics. In eval mode they use those of the middle, which are wrong
    elsewhere. Dropout draws the same numbers at every point.

    Args:
        model: in the mode in which it shall be looked at.
        batch: whatever ``loss_fn`` takes, on the model's device; the larger the smoother.
        loss_fn: ``loss_fn(model, batch) -> Tensor`` with one element. See :func:`supervised`.
        distance: of the ends, in lengths of the direction.
        points: odd, so that one of them is the middle.
        direction: a tensor for each trainable parameter; :func:`filter_normalised` if None.
        generator: of the random direction, on the CPU; a fixed one if None.

    Raises:
        ValueError: too few points, no distance, or a direction that does not fit the parameters.

    Source: H. Li et al., Visualizing the Loss Landscape of Neural Nets (2018), arXiv:1712.09913.
    """
    positions = _positions(distance, points)
    (along,) = _directions(model, [direction], generator)
    with preserved(model):
        losses = [_loss_at(model, batch, loss_fn, [(at, along)]) for at in positions]
    return LandscapeResult(positions, torch.tensor(losses, dtype=torch.float64), (along,))


def loss_plane(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFn,
    *,
    distance: float = 1.0,
    points: int = 21,
    directions: tuple[Direction, Direction] | None = None,
    generator: torch.Generator | None = None,
) -> LandscapeResult:
    """Measure the loss on a plane through the weights, as :func:`loss_slice` does on a line.

    Args:
        model: in the mode in which it shall be looked at.
        batch: whatever ``loss_fn`` takes, on the model's device.
        loss_fn: ``loss_fn(model, batch) -> Tensor`` with one element. See :func:`supervised`.
        distance: of the edges, in lengths of the directions.
        points: along each direction, odd; the loss is asked ``points ** 2`` times.
        directions: two, each with a tensor for each trainable parameter; :func:`filter_normalised` if None.
        generator: of the random directions, on the CPU; a fixed one if None.

    Raises:
        ValueError: as of :func:`loss_slice`.

    Source: H. Li et al., Visualizing the Loss Landscape of Neural Nets (2018), arXiv:1712.09913.
    """
    positions = _positions(distance, points)
    first, second = _directions(model, directions or [None, None], generator)
    with preserved(model):
        losses = [[_loss_at(model, batch, loss_fn, [(a, first), (b, second)]) for b in positions] for a in positions]
    return LandscapeResult(positions, torch.tensor(losses, dtype=torch.float64), (first, second))


def _positions(distance: float, points: int) -> tuple[float, ...]:
    if points < 3 or points % 2 == 0 or not 0 < distance < math.inf:
        raise ValueError(
            f"need an odd number of at least 3 points and a positive distance, not {points} and {distance}"
        )
    half = points // 2
    return tuple(distance * step / half for step in range(-half, half + 1))


def _directions(
    model: nn.Module, given: Sequence[Direction | None], generator: torch.Generator | None
) -> list[tuple[Tensor, ...]]:
    drawn = generator or torch.Generator().manual_seed(0)
    directions = [filter_normalised(model, drawn) if d is None else tuple(d) for d in given]
    shapes = [p.shape for p in model.parameters() if p.requires_grad]
    if any([part.shape for part in direction] != shapes for direction in directions):
        raise ValueError("a direction needs a tensor of the same shape for each trainable parameter, in their order")
    return directions


def _loss_at(model: nn.Module, batch: Any, loss_fn: LossFn, where: list[tuple[float, Direction]]) -> float:
    """The loss beside the weights; weights, buffers and random numbers are the same afterwards."""
    with preserved(model):
        _move(model, where)
        return value_of(loss_fn, model, batch)


@torch.no_grad()
def _move(model: nn.Module, where: list[tuple[float, Direction]]) -> None:
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for at, direction in where:
        for weight, part in zip(weights, direction, strict=True):
            weight.add_(part.to(weight), alpha=at)


def sharpness(model: nn.Module, batch: Any, loss_fn: LossFn, *, rho: float = 0.05) -> float:
    """Measure how much the loss rises one step of length ``rho`` up the gradient; everything is put back.

    The quantity that :class:`SAM` minimises. Flat minima have little of it. Compare models of one architecture only.

    Args:
        model: in the mode in which it shall be looked at.
        batch: whatever ``loss_fn`` takes, on the model's device.
        loss_fn: ``loss_fn(model, batch) -> Tensor`` with one element. See :func:`supervised`.
        rho: length of the step, L2 norm over all parameters.

    Returns:
        Loss there minus loss here, in the loss's unit; 0 where the gradient is 0.

    Raises:
        ValueError: ``rho`` is not positive, or the loss is no scalar or has no graph.

    Source: P. Foret et al., Sharpness-Aware Minimization (2021), arXiv:2010.01412, equation 1.
    """
    if not 0 < rho < math.inf:
        raise ValueError(f"rho must be positive, not {rho}; the source uses 0.05")
    with preserved(model):
        with preserved(model):
            here = gradients(loss_fn, model, batch)
            found = [None if p.grad is None else p.grad.to_dense() for p in model.parameters() if p.requires_grad]
        norm = math.sqrt(sum(float(g.norm()) ** 2 for g in found if g is not None))
        weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        up = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)]
        return _loss_at(model, batch, loss_fn, [(rho / norm, up)]) - here if norm else 0.0


@dataclass(frozen=True)
class ConnectivityResult:
    """Losses on the way from one set of weights to another.

    Attributes:
        positions: from 0 at the first to 1 at the second.
        losses: at each position.
        barrier: how far the highest loss lies above the straight line between both ends' losses, at least 0.
        bend: weights in the middle of the curve by name; None for a straight line.
    """

    positions: tuple[float, ...]
    losses: tuple[float, ...]
    barrier: float
    bend: dict[str, Tensor] | None

    def __str__(self) -> str:
        kind = "straight line" if self.bend is None else "curve"
        return f"{kind}: loss {self.losses[0]:.4g} -> {self.losses[-1]:.4g}, barrier {self.barrier:.4g}"


def mode_connectivity(
    model: nn.Module,
    first: Mapping[str, Tensor],
    second: Mapping[str, Tensor],
    batch: Any,
    loss_fn: LossFn,
    *,
    points: int = 21,
    steps: int = 0,
    lr: float = 0.01,
    generator: torch.Generator | None = None,
) -> ConnectivityResult:
    """Measure the loss between two trainings, straight, or on a curve that is trained to avoid high losses.

    With ``steps`` the middle of a quadratic Bézier curve, at first that of the straight line, is trained by Adam on the
    loss at random points of the curve. Buffers are those of the straight line; put the model in train mode, so that norms
    use the batch's own statistics. Afterwards the model is the same bit for bit.

    Args:
        model: of the architecture of both.
        first: state dict at position 0.
        second: state dict at position 1.
        batch: whatever ``loss_fn`` takes, on the model's device.
        loss_fn: ``loss_fn(model, batch) -> Tensor`` with one element. See :func:`supervised`.
        points: on the way, both ends among them.
        steps: of training the curve; 0 for the straight line.
        lr: of this training.
        generator: of the random points, on the CPU; a fixed one if None.

    Raises:
        ValueError: the state dicts do not fit the model, or there are fewer than 3 points.

    Source: T. Garipov et al., Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs (2018), arXiv:1802.10026.
    """
    ends = [_end(model, first, "first"), _end(model, second, "second")]
    if points < 3 or steps < 0:
        raise ValueError(f"need at least 3 points and no negative steps, not {points} and {steps}")
    positions = tuple(step / (points - 1) for step in range(points))
    with preserved(model):
        bend = _train(model, ends, batch, loss_fn, steps, lr, generator) if steps else None
        losses = tuple(_loss_on_curve(model, ends, bend, at, batch, loss_fn) for at in positions)
    above = [loss - (losses[0] + at * (losses[-1] - losses[0])) for at, loss in zip(positions, losses, strict=True)]
    return ConnectivityResult(positions, losses, max(*above, 0.0), bend)


def _end(model: nn.Module, state: Mapping[str, Tensor], which: str) -> dict[str, Tensor]:
    """The floating point tensors of a state dict, on the model's device."""
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    wrong = [name for name in own if name not in state or state[name].shape != own[name].shape]
    if wrong:
        raise ValueError(f"the {which} state dict does not fit the model at {wrong[0]!r}; both need its architecture")
    return {n: state[n].detach().to(own[n].device).clone() for n in own if own[n].is_floating_point()}


def _on_curve(ends: list[dict[str, Tensor]], bend: Mapping[str, Tensor] | None, at: float) -> dict[str, Tensor]:
    line = {name: torch.lerp(value, ends[1][name], at) for name, value in ends[0].items()}
    for name, middle in (bend or {}).items():
        a, b = ends[0][name], ends[1][name]
        line[name] = (1 - at) ** 2 * a + 2 * at * (1 - at) * middle + at**2 * b
    return line


def _loss_on_curve(
    model: nn.Module,
    ends: list[dict[str, Tensor]],
    bend: Mapping[str, Tensor] | None,
    at: float,
    batch: Any,
    loss_fn: LossFn,
) -> float:
    with preserved(model):
        model.load_state_dict(_on_curve(ends, bend, at), strict=False)
        return value_of(loss_fn, model, batch)


def _train(
    model: nn.Module,
    ends: list[dict[str, Tensor]],
    batch: Any,
    loss_fn: LossFn,
    steps: int,
    lr: float,
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    """Train the middle: the gradient at a point reaches it with the factor 2 t (1 - t)."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    bend = {name: torch.lerp(ends[0][name], ends[1][name], 0.5).requires_grad_() for name in trained}
    optimizer = torch.optim.Adam(bend.values(), lr=lr)
    drawn = generator or torch.Generator().manual_seed(0)
    for _ in range(steps):
        at = float(torch.rand((), generator=drawn))
        here = {name: value.detach() for name, value in bend.items()}
        with preserved(model):
            model.load_state_dict(_on_curve(ends, here, at), strict=False)
            gradients(loss_fn, model, batch)
            for name, parameter in trained.items():
                bend[name].grad = None if parameter.grad is None else parameter.grad * (2 * at * (1 - at))
        optimizer.step()
    return {name: value.detach() for name, value in bend.items()}
