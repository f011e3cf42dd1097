"""Readers of logs: one format, one file. The folder is the registry."""

from __future__ import annotations

import csv
import importlib
import pkgutil
import re
import sqlite3
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from flatline.readers._lines import Unreadable, encoding_of
from flatline.readers._log import Log

HEAD = 1 << 16  # bytes that a reader judges a file by
# what a damaged file makes the standard library raise
DAMAGE = (
    OSError,
    ValueError,
    OverflowError,
    RecursionError,
    EOFError,
    struct.error,
    csv.Error,
    sqlite3.Error,
    zlib.error,
)


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file."""

    path: Path
    start: bytes = b""
    size: int = 0
    named: bool = False  # the user gave this very file

    @property
    def text(self) -> str:
        """As text; nothing, if it is none."""
        encoding = encoding_of(self.start)
        told = self.start if encoding == "utf-16" else self.start.rstrip(b"\0")  # a crash leaves blocks of zeros
        return "" if b"\0" in told and encoding != "utf-16" else told.decode(encoding, "replace")

    @property
    def lines(self) -> list[str]:
        """Whole lines of it."""
        found = self.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return found if self.size <= len(self.start) or len(found) == 1 else found[:-1]


class Reader(ABC):
    """Reads the logs of one format."""

    name: ClassVar[str]
    known_as: ClassVar[str] = "$^"  # file names that promise this format
    stands_for_folder: ClassVar[str] = "$^"  # file names that name no run: the folder does

    @abstractmethod
    def claims(self, head: Head) -> int:
        """0: not my format; 1: it may be; 2: it is."""

    @abstractmethod
    def read(self, path: Path, log: Log) -> None:
        """The curves of one file. May raise Unreadable, or anything in DAMAGE, after what could be read."""

    def run_of(self, path: Path) -> Path:
        """The file or folder that stands for the run. Files of one run are read together."""
        return path.parent if re.search(self.stands_for_folder, path.name) else path

    def read_all(self, paths: Sequence[Path], log: Log) -> None:
        """The files of one run. What cannot be read is noted."""
        for path in paths:
            try:
                self.read(path, log)
            except Unreadable as error:
                log.notes.append(f"{path}: {error}")
            except DAMAGE as error:
                log.notes.append(f"{path}: damaged, and read as far as it goes ({_reason(error)})")


def _reason(error: BaseException) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (" ".join(reason.split()) or type(error).__name__)[:120]


@cache
def all_readers() -> tuple[Reader, ...]:
    """One of each reader in the folder, by name."""
    found: list[type[Reader]] = []
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        if not module.ispkg and not module.name.rpartition(".")[2].startswith("_"):
            members = vars(importlib.import_module(module.name)).values()
            found += [
                m for m in members if isinstance(m, type) and issubclass(m, Reader) and m.__module__ == module.name
            ]
    return tuple(reader() for reader in sorted(found, key=lambda reader: reader.name))


def reader_of(head: Head) -> Reader | None:
    """The reader that is surest of this file."""
    claims = [(reader.claims(head), reader) for reader in all_readers()]
    sure = max((claim for claim, _ in claims), default=0)
    return next((reader for claim, reader in claims if claim == sure), None) if sure else None


def promised(path: Path) -> Reader | None:
    """The reader whose format the file's name promises."""
    return next((reader for reader in all_readers() if re.search(reader.known_as, path.name)), None)
