"""Does every self-attention under a loss hide the later positions?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from flatline.sensors.graph import Node, operation, saved
from flatline.sensors.models import readable

FUSED = "ScaledDotProduct"
MASKS = ("attn_mask", "attn_bias")
LINEAR = {"Addmm": "mat1_sym_sizes", "Mm": "self_sym_sizes"}
SHORT = 6  # fewer positions are none of a text
CLOSED = -1e4  # what stands for minus infinity, where it is a number: half precision knows no smaller one
FEW = 4  # samples, and heads, that are looked at


def causal(nodes: Iterable[Node], rows: int, length: int) -> bool:
    """Some attention of so many positions to themselves, each of them closed to later ones, and no layer over all positions."""
    nodes = list(nodes)
    found = [closed for node in nodes if (closed := _closed(node, length)) is not None]
    return bool(found) and all(found) and not any(_of_samples(node, rows) for node in nodes)


def _of_samples(node: Node, rows: int) -> bool:
    """A linear layer with one row for each sample: a sequence in one vector, from which an autoencoder makes it anew."""
    name = LINEAR.get(operation(node))
    sizes = saved(node, name) if name is not None else None
    return sizes is not None and sizes[0] == rows


def _closed(node: Node, length: int) -> bool | None:
    """None for what is no attention of so many positions to themselves."""
    if operation(node).startswith(FUSED):
        query, key = saved(node, "query"), saved(node, "key")
        if not all(isinstance(each, torch.Tensor) and each.shape[-2] == length for each in (query, key)):
            return None
        masks = [mask for name in MASKS if isinstance(mask := saved(node, name), torch.Tensor)]
        return bool(saved(node, "is_causal")) or any(_hides(mask, length) for mask in masks)
    weights = saved(node, "result") if operation(node) == "Softmax" else None
    if not isinstance(weights, torch.Tensor) or weights.shape[-2:] != (length, length) or not readable(weights):
        return None
    return _lower(weights.detach() > 0)


def _hides(mask: torch.Tensor, length: int) -> bool:
    if mask.shape[-2:] != (length, length) or not readable(mask):
        return False
    return _lower(mask.detach() if mask.dtype is torch.bool else mask.detach() > CLOSED)


def _lower(seen: Any) -> bool:
    """Nothing above the diagonal, and something on it and below."""
    while seen.dim() > 2:
        seen = seen[:FEW].any(0)
    return len(seen) >= SHORT and bool(seen.diagonal().any()) and not bool(seen.triu(1).any())
