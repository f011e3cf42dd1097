"""Scalars as a TensorBoard event file: records of protocol buffers, each with its checksums.

Nothing here raises, or keeps a file open. Of a long run every tenth, later every hundredth point is written.
"""

from __future__ import annotations

import math
import os
import platform
import struct
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from flatline.record.checksum import masked

ALL = 100_000  # points of a scalar before the first ones are left out
PREFIX = "flatline/"
LARGEST = 16 << 20  # bytes that wait at most
VERSION = b"brain.Event:2"


class EventFile:
    """One process's file in a folder that is named when there is something to write."""

    def __init__(self, place: Callable[[], Path | None], *, on_note: Callable[[str], None]) -> None:
        self._place, self._note = place, on_note
        self.forked()

    def forked(self) -> None:
        """In a child after a fork: the parent's file is not ours, and neither is what waits for it."""
        self.file: Path | None = None
        self.alive = True
        self._waiting = bytearray()
        self._counts: dict[tuple[str, ...], int] = {}

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """What was measured at one step."""
        names = tuple(values)
        count = self._counts[names] = self._counts.get(names, -1) + 1
        if self.alive and count % stride(count) == 0 and len(self._waiting) < LARGEST:
            summary = b"".join(_value(name, value) for name, value in values.items())
            self._waiting += record(_event(b"\x10" + varint(step) + field(5, summary)))

    def flush(self) -> None:
        """Write what waits. Whatever goes wrong with the disk ends the file with one note."""
        if not self.alive or not self._waiting or (folder := self._place()) is None:
            return
        try:
            with (self.file or self._made(folder)).open("ab") as file:
                file.write(self._waiting)
        except OSError as error:
            self.alive = False
            self._note(f"the TensorBoard file could not be written: {error}")
        self._waiting.clear()

    def _made(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{platform.node() or 'host'}.{os.getpid()}.flatline"
        self.file = folder / name
        with self.file.open("xb") as file:
            file.write(record(_event(field(3, VERSION))))
        return self.file


def stride(count: int) -> int:
    """Every so many points are written after so many."""
    kept = 1
    while count >= ALL * kept:
        kept *= 10
    return kept


# --------------------------------------------------------------------------- the format


def record(content: bytes) -> bytes:
    """With its length, and the checksums of both."""
    return _header(len(content)) + content + struct.pack("<I", masked(content))


@lru_cache(maxsize=1024)
def _header(length: int) -> bytes:
    told = struct.pack("<Q", length)
    return told + struct.pack("<I", masked(told))


def _event(content: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", time.time()) + content


def _value(name: str, value: float) -> bytes:
    return field(1, field(1, _tag(name)) + b"\x15" + _float(value))


@lru_cache(maxsize=4096)
def _tag(name: str) -> bytes:
    return (PREFIX + name).encode("utf-8", "replace")


def _float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:  # too large for 32 bits
        return struct.pack("<f", math.copysign(math.inf, value))


def field(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    """A whole number in as few bytes as it needs."""
    number &= (1 << 64) - 1
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])
