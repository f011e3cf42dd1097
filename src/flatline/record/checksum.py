"""CRC-32C, as record files use it."""

from __future__ import annotations

from functools import cache


@cache
def _table() -> tuple[int, ...]:
    return tuple(_entry(byte) for byte in range(256))


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


def crc32c(data: bytes) -> int:
    """Castagnoli's."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """Rotated and shifted, so that a checksum of checksums is none."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
