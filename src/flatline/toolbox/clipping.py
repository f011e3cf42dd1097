"""Clipping that knows how often it clips."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

ENOUGH = 20  # norms, of which the 95th percentile is the second highest


class GradientClipper:
    """Clip gradients by their norm, and remember the norms, without waiting for the device.

    About 1 to 10 % of clipped steps is healthy. When nearly all are clipped, the threshold sets the step's length and
    the rate, the batch or the threshold is wrong.

    Args:
        max_norm: threshold, in the gradient's unit; ``math.inf`` only measures.
        norm_type: as in ``clip_grad_norm_``.
        window: how many norms are kept.

    Raises:
        ValueError: ``max_norm`` is not positive.

    Source: R. Pascanu et al., On the difficulty of training recurrent neural networks (2013), arXiv:1211.5063.
    """

    def __init__(self, max_norm: float, *, norm_type: float = 2.0, window: int = 1000) -> None:
        if not max_norm > 0 or window < 1:
            raise ValueError("max_norm must be positive, math.inf to measure only, and window at least 1")
        self.max_norm, self.norm_type, self.steps = max_norm, norm_type, 0
        self._norms: deque[Tensor] = deque(maxlen=window)
        self._counts: Tensor | None = None

    def __call__(self, parameters: Tensor | Iterable[Tensor]) -> Tensor:
        """Clip in place; between backward (and ``scaler.unscale_``) and step.

        Args:
            parameters: those whose gradients are clipped together.

        Returns:
            The norm before clipping, 0-dim, on the gradients' device. ``item()`` of it would wait for the device.
        """
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.max_norm, self.norm_type).detach()
        if self._counts is None:
            self._counts = torch.zeros(2, dtype=torch.int64, device=norm.device)
        self._counts += torch.stack([norm > self.max_norm, ~torch.isfinite(norm)])
        self._norms.append(norm)
        self.steps += 1
        return norm

    @property
    def clipped(self) -> int:
        """How many steps were clipped. Waits for the device."""
        return 0 if self._counts is None else int(self._counts[0])

    @property
    def non_finite(self) -> int:
        """How many steps had a norm that was not finite. Waits for the device."""
        return 0 if self._counts is None else int(self._counts[1])

    @property
    def rate(self) -> float:
        """Share of clipped steps, nan before the first. Waits for the device."""
        return self.clipped / self.steps if self.steps else math.nan

    @property
    def norms(self) -> list[float]:
        """The newest norms before clipping, oldest first. Waits for the device, once for all."""
        return torch.stack(list(self._norms)).tolist() if self._norms else []

    def suggest(self, percentile: float = 95.0) -> float:
        """The threshold that would have clipped only the highest norms of the window.

        Args:
            percentile: 90 to 95 leaves ordinary steps alone.

        Raises:
            ValueError: fewer than 20 finite norms are known, or the percentile is out of range.
        """
        finite = [norm for norm in self.norms if math.isfinite(norm)]
        if len(finite) < ENOUGH or not 0 <= percentile <= 100:
            raise ValueError(f"{len(finite)} norms of {ENOUGH} are known; ask later, with a percentile of 0 to 100")
        return float(torch.quantile(torch.tensor(finite, dtype=torch.float64), percentile / 100))
