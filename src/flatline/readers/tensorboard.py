"""TensorBoard event files: records of protocol buffers, of which the scalars are read."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from math import inf
from pathlib import Path

from flatline.readers import Head, Reader
from flatline.readers._checksum import masked
from flatline.readers._lines import Unreadable
from flatline.readers._log import Log, RunLog
from flatline.readers._protobuf import BYTES, FIXED32, VARINT, fields, varint

CHUNK = 1 << 22  # bytes that are read at once
BATCH = 2048  # points of a tag that are handed on at once
KNOWN = 50_000  # forms of records that are remembered
LARGEST = 1 << 28  # bytes of a record
SPLITS = re.compile(r"(?:^|_)(train|training|val|valid|validation|eval|test)$", re.IGNORECASE)
FLOAT, DOUBLE, INT32, INT64 = 1, 2, 3, 9  # DT_FLOAT and others, of a tensor's dtype
FORMS = {FLOAT: "<f", DOUBLE: "<d", INT32: "<i", INT64: "<q"}
VALUES = {5: "<f", 6: "<d"}  # float_val and double_val


class TensorBoard(Reader):
    """Event files of one folder are one run; so are those in ``train`` and ``validation`` under it."""

    name = "TensorBoard"
    known_as = r"tfevents"

    def claims(self, head: Head) -> int:
        """The first record names the version of the format."""
        return 2 if b"brain.Event:" in head.start[:64] else 0

    def run_of(self, path: Path) -> Path:
        """The folder, or that above ``train``."""
        split = SPLITS.fullmatch(path.parent.name)
        return path.parent.parent if split else path.parent

    def read(self, path: Path, log: Log) -> None:
        """Record by record. A scalar is recognised by the bytes before it, which are the same at every step."""
        split = SPLITS.search(path.parent.name)
        tags = _Tags(log.run(), f"{split[1].lower()}/" if split else "")
        try:
            for data, start, stop in _records(path):
                tags.take(data, start, stop)
        finally:
            tags.hand_on()
            if tags.damaged:
                log.notes.append(f"{path}: {tags.damaged} damaged records were left out")


def _records(path: Path) -> Iterator[tuple[bytes, int, int]]:
    """Buffer, start and end of each record. Its length is checked, its content is not."""
    headers: dict[bytes, int] = {}
    data, at = b"", 0
    with path.open("rb") as file:
        while more := file.read(CHUNK):
            data, at = data[at:] + more, 0
            while at + 12 <= len(data):
                header = data[at : at + 12]
                length = headers.get(header)
                if length is None:
                    length = headers[header] = _length(header)
                if at + length + 16 > len(data):
                    break
                yield data, at + 12, at + 12 + length
                at += length + 16
    if at < len(data):
        raise Unreadable("the last record is cut off")


def _length(header: bytes) -> int:
    length, checksum = struct.unpack("<QI", header)
    if masked(header[:8]) != checksum or length > LARGEST:
        raise Unreadable("damaged, and read up to there")
    return int(length)


class _Points:
    """What was read of a tag and not yet handed on."""

    __slots__ = ("last", "limit", "name", "rows", "steps", "values")

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[int] = []
        self.rows: list[float] = []
        self.values: list[float] = []
        self.limit, self.last = 0.0, -1  # what is beyond them is looked at twice


class _Tags:
    """Points of all tags of a file."""

    def __init__(self, run: RunLog, prefix: str) -> None:
        self.run, self.prefix = run, prefix
        self.tags: dict[str, _Points] = {}
        self.known: dict[bytes, _Points] = {}  # by the bytes between step and value
        self.damaged = 0

    def take(self, data: bytes, start: int, stop: int) -> None:
        """The scalars of a record."""
        if stop - start < 16 or data[start] != 9 or data[start + 9] != 16:  # wall time, then step
            return self._slow(data, start, stop)
        at, step, shift = start + 10, 0, 0
        while (byte := data[at]) >= 0x80 and shift < 63:
            step |= (byte & 0x7F) << shift
            shift, at = shift + 7, at + 1
        step |= byte << shift
        points = self.known.get(data[at + 1 : stop - 4])
        if points is None:
            return self._slow(data, start, stop)
        (value,) = struct.unpack_from("<f", data, stop - 4)
        if not -points.limit <= value <= points.limit or not points.last <= step <= 2 * points.last + 1000:
            return self._slow(data, start, stop)
        points.last = step
        self._keep(points, step, value)
        return None

    def _keep(self, points: _Points, step: int, value: float) -> None:
        self.run.row += 1
        points.steps.append(step)
        points.rows.append(self.run.row)
        points.values.append(value)
        if len(points.values) >= BATCH:
            self._hand_on(points)

    def _slow(self, data: bytes, start: int, stop: int) -> None:
        """A record of another form, or with a value that is far from the others: is it as it was written?"""
        if masked(data[start:stop]) != int.from_bytes(data[stop : stop + 4], "little"):
            self.damaged += 1
            return
        try:
            self._parsed(data, start, stop)
        except (Unreadable, struct.error):
            self.damaged += 1

    def _parsed(self, data: bytes, start: int, stop: int) -> None:
        step, values = 0, []
        for number, kind, first, last in fields(data, start, stop):
            if number == 2 and kind == VARINT:
                step = first - (1 << 64) if first >> 63 else first
            elif number == 5 and kind == BYTES:
                values += [(a, b) for inner, form, a, b in fields(data, first, last) if (inner, form) == (1, BYTES)]
        for first, last in values:
            if scalar := _scalar(data, first, last):
                name, value, end = scalar
                points = self.tags.setdefault(name, _Points(self.prefix + name))
                self._widen(points, step, value)
                self._keep(points, step, value)
                if end == stop and len(values) == 1:
                    self._remember(points, data, start, stop)

    def _remember(self, points: _Points, data: bytes, start: int, stop: int) -> None:
        """The next record of this tag begins with the same bytes."""
        if data[start] == 9 and data[start + 9] == 16 and len(self.known) < KNOWN:
            self.known[data[varint(data, start + 10, stop)[1] : stop - 4]] = points

    def _widen(self, points: _Points, step: int, value: float) -> None:
        points.last = max(0, step)
        points.limit = max(points.limit, 2 * abs(value)) if abs(value) < inf else points.limit

    def _hand_on(self, points: _Points) -> None:
        if points.values:
            self.run.extend(points.name, points.steps, points.rows, points.values)
            points.steps, points.rows, points.values = [], [], []

    def hand_on(self) -> None:
        """All that is left."""
        for points in self.tags.values():
            self._hand_on(points)


def _scalar(data: bytes, start: int, stop: int) -> tuple[str, float, int] | None:
    """Tag, value, and where a float32 value ended (0 for other types)."""
    tag, found, end = "", None, 0
    for number, kind, first, last in fields(data, start, stop):
        if number == 1 and kind == BYTES:
            tag = data[first:last].decode("utf-8", "replace")
        elif number == 2 and kind == FIXED32:
            found, end = struct.unpack_from("<f", data, first)[0], last
        elif number == 8 and kind == BYTES:
            found, end = _tensor(data, first, last)
    return (tag, found, end) if found is not None else None


def _tensor(data: bytes, start: int, stop: int) -> tuple[float | None, int]:
    """The number in a tensor of no dimensions."""
    dtype = 0
    for number, kind, first, last in fields(data, start, stop):
        if number == 1 and kind == VARINT:
            dtype = first
        elif number == 2 and last > first:
            return None, 0  # it has dimensions
        elif form := VALUES.get(number) or (FORMS.get(dtype) if number == 4 else None):
            if kind != VARINT and last - first == struct.calcsize(form):
                return struct.unpack_from(form, data, first)[0], last if form == "<f" else 0
        elif number in (7, 10) and dtype in (INT32, INT64):
            value = first if kind == VARINT else varint(data, first, last)[0]
            return float(value - (1 << 64) if value >> 63 else value), 0
    return None, 0
