"""Some elements of a tensor for all of them: how far apart they are taken."""

from __future__ import annotations

import math
from functools import lru_cache

from torch import Tensor


def spaced(tensor: Tensor, count: int) -> tuple[int, int]:
    """Distance and number of at most ``count`` elements, from all columns of a tensor and not from a few of them."""
    return _spaced(tensor.numel(), tensor.shape[0] if tensor.dim() else 1, count)


@lru_cache(maxsize=4096)
def _spaced(size: int, rows: int, count: int) -> tuple[int, int]:
    stride = max(1, -(-size // count))
    inner = size // max(1, rows)
    while math.gcd(stride, inner) > 1:
        stride += 1
    return stride, -(-size // stride)
