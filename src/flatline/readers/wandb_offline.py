"""W&B's ``run-*.wandb``: blocks like LevelDB's, records of protocol buffers, values as JSON."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from flatline.readers import Head, Reader
from flatline.readers._lines import Unreadable, chunks
from flatline.readers._log import Log
from flatline.readers._protobuf import BYTES, fields
from flatline.readers.json_lines import take

MAGIC = b":W&B"
BLOCK, HEADER = 1 << 15, 7  # bytes
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4  # parts of a record
HISTORY, EXIT = 2, 18  # kinds of records
LARGEST = 1 << 26  # bytes of a record


class WandbOffline(Reader):
    """What was logged; system metrics and the rest are passed over."""

    name = "W&B"
    known_as = r"\.wandb$"

    def claims(self, head: Head) -> int:
        """By its first bytes."""
        return 2 if head.start.startswith(MAGIC) else 0

    def run_of(self, path: Path) -> Path:
        """The folder of the run."""
        return path.parent

    def read(self, path: Path, log: Log) -> None:
        """Record by record; each part of one has a checksum."""
        run = log.run()
        run.ended = False
        for record in _records(path):
            for number, kind, start, stop in fields(record, 0, len(record)):
                if number == HISTORY and kind == BYTES:
                    take(run, dict(_items(record, start, stop)))
                run.ended = run.ended or number == EXIT


def _records(path: Path) -> Iterator[bytes]:
    whole = b""
    for kind, part in _parts(path):
        whole = part if kind in (FULL, FIRST) else whole + part
        if len(whole) > LARGEST:
            raise Unreadable("a record is too long")
        if kind in (FULL, LAST):
            yield whole


def _parts(path: Path) -> Iterator[tuple[int, bytes]]:
    at = len(MAGIC) + 3
    for block in chunks(path, BLOCK):
        while at + HEADER <= len(block):
            checksum, length, kind = struct.unpack_from("<IHB", block, at)
            part = block[at + HEADER : at + HEADER + length]
            if kind == 0 and length == 0:
                break  # the rest of the block is empty
            if len(part) < length or zlib.crc32(block[at + 6 : at + HEADER + length]) != checksum:
                raise Unreadable("cut off or damaged, and read up to there")
            yield kind, part
            at += HEADER + length
        at = 0


def _items(record: bytes, start: int, stop: int) -> Iterator[tuple[str, object]]:
    """Names, with slashes between the levels, and values."""
    for number, kind, first, last in fields(record, start, stop):
        if number != 1 or kind != BYTES:
            continue
        keys, value = [], b""
        for inner, form, at, end in fields(record, first, last):
            if inner in (1, 2) and form == BYTES:
                keys.append(record[at:end].decode("utf-8", "replace"))
            elif inner == 16 and form == BYTES:
                value = record[at:end]
        try:
            yield "/".join(keys), json.loads(value)
        except (ValueError, RecursionError):
            continue
