"""Means and weights that losses need: over tokens, over logits, over noise levels, over advantages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["none", "mean", "sum"]
Prediction = Literal["epsilon", "v", "sample"]


def masked_mean(
    values: Tensor, mask: Tensor, dim: int | tuple[int, ...] | None = None, keepdim: bool = False
) -> Tensor:
    """Take the mean where the mask is set; nan and inf elsewhere harm neither the value nor the gradient.

    Args:
        values: floating point, any shape; half precision is summed in float32.
        mask: bool or whole numbers 0 and 1, of a shape that broadcasts to that of ``values``.
        dim: as in ``torch.mean``; all dimensions if None.
        keepdim: as in ``torch.mean``.

    Returns:
        The mean in the dtype of ``values``; 0, with a gradient of 0, where the mask lets nothing through.

    Raises:
        ValueError: the mask is floating point, or its shape does not broadcast.

    Source: the reduction of ``ignore_index`` in ``nn.CrossEntropyLoss``, for any values.
    """
    chosen = _mask(values, mask)
    dims = tuple(range(values.dim())) if dim is None else dim
    total = torch.where(chosen, values, 0).sum(dims, keepdim, dtype=_wide(values))
    return (total / chosen.sum(dims, keepdim).clamp(min=1)).to(values.dtype)


def _mask(values: Tensor, mask: Tensor) -> Tensor:
    if mask.is_floating_point():
        raise ValueError("a floating point mask may be additive; pass mask.bool(), or mask == 0 for an additive one")
    try:
        return mask.bool().expand(values.shape)
    except RuntimeError as error:
        shapes = f"mask {list(mask.shape)} does not broadcast to values {list(values.shape)}"
        raise ValueError(f"{shapes}; add dimensions, as in mask.unsqueeze(-1)") from error


def _wide(values: Tensor) -> torch.dtype:
    return torch.float32 if values.dtype in (torch.float16, torch.bfloat16) else values.dtype


class TokenAccumulation:
    """Accumulate gradients over micro-batches so that every token weighs the same.

    The mean of the micro-batches' means gives tokens of short micro-batches more weight. Here losses are summed, and the
    gradients divided once by all tokens. Under DDP, which takes the mean over ranks, pass the mean of the ranks' tokens.

    Args:
        parameters: those whose gradients are accumulated.

    Source: Hugging Face, Fixing Gradient Accumulation (2024).
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        self._loss: Tensor | float = 0.0
        self._tokens: Tensor | float = 0.0

    def backward(self, loss: Tensor, tokens: Tensor | float) -> None:
        """Run one micro-batch's backward.

        Args:
            loss: sum over the micro-batch's tokens, as with ``reduction="sum"``.
            tokens: how many tokens that is, a number or a 0-dim tensor, which is not waited for.
        """
        loss.backward()  # type: ignore[no-untyped-call]
        self._loss = self._loss + loss.detach()
        self._tokens = self._tokens + tokens

    def divide(self) -> Tensor:
        """Divide all gradients by all tokens: once, before clipping and the step. Then a new count begins.

        Returns:
            The mean loss of a token, 0-dim.

        Raises:
            RuntimeError: no backward was run since the last time.
        """
        if not isinstance(self._loss, Tensor):
            raise RuntimeError("nothing was accumulated; call backward(loss, tokens) for each micro-batch first")
        tokens = torch.as_tensor(self._tokens, dtype=torch.float32, device=self._loss.device).clamp(min=1e-12)
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.div_(tokens.to(parameter.grad.device))
        mean = self._loss / tokens
        self._loss = self._tokens = 0.0
        return mean


def z_loss(logits: Tensor, coefficient: float = 1e-4, *, dim: int = -1, reduction: Reduction = "mean") -> Tensor:
    """Compute an auxiliary loss that keeps the softmax's normaliser near 1: ``coefficient * log(Z) ** 2``.

    Add it to the cross entropy. For padded positions take ``reduction="none"`` and :func:`masked_mean`.

    Args:
        logits: scores, float, shape (..., C) with ``dim=-1``; half precision is computed in float32.
        coefficient: 1e-4 in the source.
        dim: the dimension of classes, which the result lacks.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: unknown reduction.

    Source: A. Chowdhery et al., PaLM (2022), arXiv:2204.02311, section 5.
    """
    squared = coefficient * torch.logsumexp(logits.to(_wide(logits)), dim).square()
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction must be 'none', 'mean' or 'sum', not {reduction!r}")
    return squared if reduction == "none" else squared.mean() if reduction == "mean" else squared.sum()


def min_snr_weights(snr: Tensor, gamma: float = 5.0, *, prediction: Prediction = "epsilon") -> Tensor:
    """Compute the weights of a diffusion loss that keep easy noise levels from ruling the gradient.

    Args:
        snr: signal-to-noise ratio of each sample's timestep, ``alphas_cumprod / (1 - alphas_cumprod)``, float, any
            shape, from 0 to inf.
        gamma: where the ratio is cut, 5 in the source.
        prediction: what the model predicts: the noise "epsilon", the velocity "v" or the clean "sample".

    Returns:
        Weights of the shape of ``snr``: ``min(snr, gamma)`` over ``snr`` for epsilon, over ``snr + 1`` for v.

    Raises:
        ValueError: ``snr`` is no float, ``gamma`` is not positive, or the prediction is unknown.

    Source: T. Hang et al., Efficient Diffusion Training via Min-SNR Weighting Strategy (2023), arXiv:2303.09556.
    """
    if not snr.is_floating_point() or not gamma > 0:
        raise ValueError("need gamma > 0 and snr as float: a[t] / (1 - a[t]) with a = alphas_cumprod, not t itself")
    if prediction == "epsilon":
        return (gamma / snr).clamp(max=1)
    if prediction not in ("v", "sample"):
        raise ValueError(f"prediction must be 'epsilon', 'v' or 'sample', not {prediction!r}")
    cut = snr.clamp(max=gamma)
    return cut / (snr + 1) if prediction == "v" else cut


def whiten(values: Tensor, mask: Tensor | None = None, *, shift_mean: bool = True, eps: float = 1e-8) -> Tensor:
    """Bring values, such as the advantages of a minibatch, to mean 0 and variance 1.

    Args:
        values: float, any shape; statistics are over all of it.
        mask: as in :func:`masked_mean`; what it hides counts for nothing and becomes 0.
        shift_mean: False leaves the mean where it was, as rewards are whitened.
        eps: added to the variance, so that equal values become 0 (or keep their mean).

    Returns:
        Shape and dtype of ``values``. The variance is the unbiased one.

    Raises:
        ValueError: the mask is floating point, or its shape does not broadcast.

    Source: J. Schulman et al., PPO (2017), arXiv:1707.06347, as its implementations normalise advantages.
    """
    chosen = torch.ones_like(values, dtype=torch.bool) if mask is None else _mask(values, mask)
    wide = torch.where(chosen, values, 0).to(_wide(values))
    count = chosen.sum()
    mean = wide.sum() / count.clamp(min=1)
    centred = torch.where(chosen, wide - mean, 0)
    scaled = centred * torch.rsqrt(centred.square().sum() / (count - 1).clamp(min=1) + eps)
    return torch.where(chosen, scaled if shift_mean else scaled + mean, 0).to(values.dtype)
