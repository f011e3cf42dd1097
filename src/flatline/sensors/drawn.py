"""Weights that look as an initialiser leaves them: each number drawn on its own, about 0."""

from __future__ import annotations

import torch

ENOUGH = 256  # numbers from which on a distribution shows
SIDE = 256  # rows and columns that are looked at
DEVIATIONS = 4  # standard errors of a mean and of a kurtosis
KURTOSES = {3.0: 24.0, 1.8: 1.4}  # normal and uniform: kurtosis -> variance of its estimate, times the count
EDGE = 1.1  # over the largest singular value of a random matrix of this size (Marchenko and Pastur, 1967)


def drawn_alone(weight: torch.Tensor) -> bool:
    """A matrix of independent normal or uniform numbers: no tails, no rows alike, no direction of its own."""
    if weight.dim() < 2 or not weight.is_floating_point() or not weight.numel():
        return False
    flat = weight.detach().reshape(len(weight), -1)
    flat = flat[:: -(-flat.shape[0] // SIDE), :SIDE].float()
    flat = flat[flat.any(1)]  # without the row of the padding
    if flat.numel() < ENOUGH or not bool(flat.isfinite().all()):
        return False
    normed = flat / flat.std().clamp(min=1e-12)
    edge = (flat.shape[0] ** 0.5 + flat.shape[1] ** 0.5) * EDGE
    facts = torch.stack([normed.mean(), normed.pow(4).mean(), torch.linalg.matrix_norm(normed, 2)])
    mean, kurtosis, longest = (float(value) for value in facts)
    error = DEVIATIONS / flat.numel() ** 0.5
    known = any(abs(kurtosis - usual) < error * variance**0.5 for usual, variance in KURTOSES.items())
    return abs(mean) < error and known and longest < edge
