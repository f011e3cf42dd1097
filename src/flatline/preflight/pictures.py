"""Images as PNG, without a library that a training machine may not have."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor

SIDE = 96  # pixels, at most


def png(image: Tensor) -> str:
    """A ``data:`` address of an image of 1 or 3 × height × width, stretched from its lowest to its highest number.

    Large ones are thinned to at most 96 pixels a side. What is not finite is black.
    """
    step = max(1, -(-max(image.shape[1:]) // SIDE))
    small = image[:, ::step, ::step].float().nan_to_num(0.0, 0.0, 0.0)
    low, high = float(small.min()), float(small.max())
    levels = ((small - low) / max(high - low, 1e-12) * 255).round().to(torch.uint8)
    height, width = levels.shape[1:]
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in levels.movedim(0, -1))
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if len(image) == 3 else 0, 0, 0, 0)
    parts = _chunk(b"IHDR", head), _chunk(b"IDAT", zlib.compress(rows)), _chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
