"""The wire format of protocol buffers, without their schema."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.readers._lines import Unreadable

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


def varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """A number and the place after it."""
    found = shift = 0
    while at < stop and shift < 70:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7
    raise Unreadable("a number that does not end")


def fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, and the span of each field's value; a varint's span is its value twice."""
    at = start
    while at < stop:
        key, at = varint(data, at, stop)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = varint(data, at, stop)
            yield number, kind, value, value
            continue
        length, at = varint(data, at, stop) if kind == BYTES else ({FIXED64: 8, FIXED32: 4}.get(kind, -1), at)
        if length < 0 or at + length > stop:
            raise Unreadable("a field that does not end")
        yield number, kind, at, at + length
        at += length
