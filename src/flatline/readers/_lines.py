"""The lines of a text file of any size, in bounded memory."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20  # bytes that are read at once
LONGEST = 1 << 24  # bytes of a line: longer ones belong to no log


class Unreadable(Exception):
    """A file that cannot be read further; its text is one clear line."""


def encoding_of(start: bytes) -> str:
    """By the byte order mark; UTF-8 otherwise."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig" if start.startswith(codecs.BOM_UTF8) else "utf-8"


def chunks(path: Path, size: int = CHUNK) -> Iterator[bytes]:
    """What the file holds now: one that grows while it is read has an end, too. Holes are passed over, and blocks of zeros."""
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        while data := file.read(min(size, end - file.tell())):
            if data[:1] != b"\0" or data.strip(b"\0"):
                yield data
            elif (after := _after_hole(file)) < end:
                file.seek(after)
            else:
                return


def _after_hole(file: BinaryIO) -> int:
    """Where the next data is; a file system that knows of no holes takes them for data."""
    here = file.tell()
    try:
        return os.lseek(file.fileno(), here, os.SEEK_DATA)
    except AttributeError:
        return here
    except OSError:  # none is left
        return sys.maxsize


def batches(path: Path) -> Iterator[list[str]]:
    """Lists of whole lines, without their ends."""
    decoder, rest = None, ""
    for data in chunks(path):
        decoder = decoder or codecs.getincrementaldecoder(encoding_of(data[:4]))("replace")
        text = (rest + decoder.decode(data)).replace("\0", "")  # a crash leaves blocks of zeros
        *whole, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if len(rest) > LONGEST:
            raise Unreadable("a line is too long for a log")
        yield whole
    if decoder is not None and (rest := rest + decoder.decode(b"", final=True)):
        yield [rest]


def lines(path: Path) -> Iterator[str]:
    """One line after the other."""
    for batch in batches(path):
        yield from batch
