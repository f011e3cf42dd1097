"""Which tensor of an optimizer of the script's own is its mean of squared gradients: by its values, whatever its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from flatline.sensors.loop import OptimizerState
from flatline.sensors.models import readable
from flatline.sensors.spacing import spaced

STATE = 512  # elements of each tensor
FEWEST = 64  # elements in all
ALIKE = 3.0  # times, between a tenth and nine tenths of the ratios: those of a proportion, rounded to float16
DIVIDED = 0.02, 1.5  # share of rate × gradient / eps that the first step is: all, or without a correction of the bias
COARSE = 1e-6  # numbers of float16 from here on are right to some per cent
SMALL_EPS = 1e-3  # from here on a step divided by eps is one of usual size
Tensor = torch.Tensor


class OwnSquares:
    """Looks at the first step of each optimizer, where the mean is that of one gradient."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[str, ...]] = {}

    def asks(self, state: OptimizerState) -> bool:
        """Whether elements of the parameters are wanted from before this step."""
        return state.key not in self._names and not _stock(state.ref())

    def names(self, state: OptimizerState, before: list[tuple[Tensor, Tensor]]) -> tuple[str, ...]:
        """What it calls them; found once."""
        if state.key not in self._names:
            first = state.steps <= 1 and not _stock(state.ref())
            self._names[state.key] = tuple(_found(state.ref(), before)) if first else ()
        return self._names[state.key]


def _stock(optimizer: Any) -> bool:
    return type(optimizer).__module__.startswith("torch.optim.")


def spread(tensor: Tensor) -> Tensor:
    """The same few elements of every tensor of one shape, in its own dtype."""
    stride, _ = spaced(tensor, STATE)
    return tensor.detach().reshape(-1)[::stride]


def _found(optimizer: Any, before: list[tuple[Tensor, Tensor]]) -> Iterator[str]:
    """Names of tensors in float16 that are nowhere negative, and that are the square of the gradient, or divided by."""
    before = [(p, old) for p, old in before if p.grad is not None]
    if not before or len({p.device for p, _ in before}) > 1:
        return
    gradient = torch.cat([spread(p.grad).float() for p, _ in before if p.grad is not None])
    factors = [torch.full_like(spread(p).float(), factor) for p, factor in _over_eps(optimizer, before)]
    pull = torch.cat(factors) * gradient
    moved = torch.cat([(spread(p).float() - old.float()).abs() for p, old in before])
    for name in optimizer.state.get(before[0][0], {}):
        kept = [optimizer.state.get(p, {}).get(name) for p, _ in before]
        if all(_may_be(each, p) for each, (p, _) in zip(kept, before, strict=True)):
            value = torch.cat([spread(each).float() for each in kept])
            if bool((value >= 0).all()) and (_squared(value, gradient) or _divided_by_eps(value, moved, pull)):
                yield name


def _over_eps(optimizer: Any, before: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, float]]:
    """The rate over the eps of each one's group; 0 where there is none, or a large one."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for p, _ in before:
        rate, eps = groups[id(p)].get("lr"), groups[id(p)].get("eps")
        known = isinstance(eps, float) and 0 < eps < SMALL_EPS and isinstance(rate, float)
        yield p, rate / eps if known else 0.0


def _may_be(value: Any, parameter: Tensor) -> bool:
    plain = isinstance(value, Tensor) and readable(value)
    return bool(plain and value.dtype is torch.float16 and value.shape == parameter.shape)


def _squared(value: Tensor, gradient: Tensor) -> bool:
    """Where it is no rounded number, it is the same share of the gradient's square."""
    some = (value > COARSE) & torch.isfinite(value) & (gradient != 0)
    return _in_proportion(value[some] / gradient[some].square())


def _divided_by_eps(value: Tensor, moved: Tensor, pull: Tensor) -> bool:
    """Where it is 0, the step was the rate times the gradient over eps."""
    gone = (value == 0) & (pull != 0) & torch.isfinite(moved)
    ratios = moved[gone] / pull[gone].abs()
    return _in_proportion(ratios) and DIVIDED[0] <= float(ratios.median()) <= DIVIDED[1]


def _in_proportion(ratios: Tensor) -> bool:
    if ratios.numel() < FEWEST:
        return False
    low, high = torch.quantile(ratios, torch.tensor([0.1, 0.9], device=ratios.device)).tolist()
    return bool(low > 0 and high <= ALIKE * low)
