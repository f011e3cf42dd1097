"""The lines of a text file of any size, in bounded memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

CHUNK = 1 << 20  # bytes that are read at once
LONGEST = 1 << 24  # bytes of a line: longer ones belong to no log


class Unreadable(Exception):
    """A file that cannot be read further; its text is one clear line."""


def encoding_of(start: bytes) -> str:
    """By the byte order mark; UTF-8 otherwise."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig" if start.startswith(codecs.BOM_UTF8) else "utf-8"


def batches(path: Path) -> Iterator[list[str]]:
    """Lists of whole lines, without their ends."""
    with path.open("rb") as file:
        decoder = codecs.getincrementaldecoder(encoding_of(file.read(4)))("replace")
        file.seek(0)
        rest = ""
        while data := file.read(CHUNK):
            if not data.strip(b"\0"):
                continue  # a hole, as a crash leaves them
            text = (rest + decoder.decode(data)).replace("\0", "")
            *whole, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            if len(rest) > LONGEST:
                raise Unreadable("a line is too long for a log")
            yield whole
        if rest := rest + decoder.decode(b"", final=True):
            yield [rest]


def lines(path: Path) -> Iterator[str]:
    """One line after the other."""
    for batch in batches(path):
        yield from batch
