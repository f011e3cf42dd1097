"""TensorBoard event files: records of protocol buffers, of which the scalars are read."""

from __future__ import annotations

import re
import struct
from math import inf
from pathlib import Path

from flatline.readers import Head, Reader
from flatline.readers._lines import Unreadable, chunks
from flatline.readers._log import Log, RunLog
from flatline.readers._protobuf import BYTES, FIXED32, VARINT, fields, varint
from flatline.record.checksum import masked

CHUNK = 1 << 22  # bytes that are read at once
BATCH = 256  # points of a tag that are handed on at once, at least
TAGS = 10_000  # of a file; more are not looked at
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
            data, at = b"", 0
            for more in chunks(path, CHUNK):
                data = data[at:] + more
                at = tags.take(data)
            if at < len(data):
                raise Unreadable("the last record is cut off")
        finally:
            tags.hand_on()
            if tags.damaged:
                log.notes.append(f"{path}: {tags.damaged} damaged records were left out")


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
        self.lengths: dict[bytes, int] = {}  # by the first bytes of a record
        self.damaged = 0

    def take(self, data: bytes) -> int:
        """The records of a buffer, and where one begins that is not whole. Lengths are checked, contents are not."""
        at, end, row = 0, len(data), self.run.row
        lengths, known, unpack = self.lengths, self.known, struct.Struct("<f").unpack_from
        while at + 12 <= end:
            if (length := lengths.get(data[at : at + 12])) is None:
                self.run.row = row
                length = lengths[data[at : at + 12]] = _length(data[at : at + 12])
            start, stop = at + 12, at + 12 + length
            if stop + 4 > end:
                break
            at = stop + 4
            if length >= 16 and data[start] == 9 and data[start + 9] == 16:  # wall time, then step
                if (step := data[start + 10]) < 0x80:
                    step_end = start + 11
                else:
                    step, step_end = _step(data, start + 10)
                if (points := known.get(data[step_end : stop - 4])) is not None:
                    (value,) = unpack(data, stop - 4)
                    if abs(value) <= points.limit and points.last <= step <= 2 * points.last + 1000:
                        row += 1
                        points.last = step
                        points.rows.append(row)
                        points.steps.append(step)
                        points.values.append(value)
                        continue
            self.run.row = row
            self._slow(data, start, stop)
            row = self.run.row
        self.run.row = row
        self.hand_on(BATCH)
        return at

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
                points = self.tags.get(name) or self._points(name)
                self._keep(points, step, value)
                if end == stop and len(values) == 1:
                    self._remember(points, data, start, stop)

    def _points(self, name: str) -> _Points:
        """Of a new tag; those that are too many are read and not kept."""
        points = _Points(self.prefix + name)
        if len(self.tags) < TAGS:
            self.tags[name] = points
        return points

    def _remember(self, points: _Points, data: bytes, start: int, stop: int) -> None:
        """The next record of this tag begins with the same bytes."""
        if data[start] == 9 and data[start + 9] == 16 and len(self.known) < KNOWN:
            self.known[data[varint(data, start + 10, stop)[1] : stop - 4]] = points

    def _keep(self, points: _Points, step: int, value: float) -> None:
        self.run.row += 1
        points.last = max(0, step)
        points.limit = max(points.limit, 2 * abs(value)) if abs(value) < inf else points.limit
        points.steps.append(step)
        points.rows.append(self.run.row)
        points.values.append(value)

    def hand_on(self, fewest: int = 1) -> None:
        """What was read of tags with so many new points."""
        for points in self.tags.values():
            if len(points.values) >= fewest:
                self.run.extend(points.name, points.steps, points.rows, points.values)
                points.steps, points.rows, points.values = [], [], []


def _step(data: bytes, at: int) -> tuple[int, int]:
    """A number of several bytes, and the place after it."""
    step = shift = 0
    while (byte := data[at]) >= 0x80 and shift < 63:
        step |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return step | byte << shift, at + 1


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
