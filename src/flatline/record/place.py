"""Where the record of a run is kept: a folder for each run, shared by all its processes, made when there is something to keep."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

FAMILY = ".family"  # whose run a folder belongs to
TRIES = 10_000


def name_of(script: str) -> str:
    """``20261121-171405-train``."""
    stem = re.sub(r"[^\w.-]+", "-", Path(script).stem if script.endswith(".py") else Path(script).name).strip("-.")
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{stem[:60] or 'run'}"


class Place:
    """A folder that is wanted, and the token of the processes that share it."""

    def __init__(self, folder: str, token: str, *, shelf: bool) -> None:
        self.folder, self.token, self.shelf = folder, token, shelf

    def file(self, rank: int | None) -> Path:
        """Make the folder, if no process of this run has, and name this process's file. Raises OSError."""
        folder = self.claim()
        first = folder / "record.sqlite"
        own = folder / f"record-{os.getpid()}.sqlite"
        wanted = first if not rank else folder / f"record-rank{rank}.sqlite"
        for path in (wanted, own):
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            except FileExistsError:
                continue
            return path
        raise FileExistsError(f"{own} exists")

    def claim(self) -> Path:
        """The folder, with -2, -3, … behind its name if it is another run's. All processes of a run find the same."""
        wanted = Path(self.folder)
        self._make(wanted.parent)
        for number in range(1, TRIES):
            folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
            if self._is_ours(folder) or self._take(folder):
                return folder
        raise FileExistsError(f"{wanted} exists")

    def known(self) -> Path | None:
        """The folder, if some process of this run has made it."""
        wanted = Path(self.folder)
        for number in range(1, TRIES):
            folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
            if self._is_ours(folder):
                return folder
            if not folder.is_dir():
                return None
        return None

    def _make(self, shelf: Path) -> None:
        new = not shelf.exists()
        shelf.mkdir(parents=True, exist_ok=True)
        if self.shelf and new:
            (shelf / ".gitignore").write_text("*\n", encoding="utf-8")

    def _is_ours(self, folder: Path) -> bool:
        try:
            return (folder / FAMILY).read_text(encoding="utf-8") == self.token
        except (OSError, ValueError):
            return False

    def _take(self, folder: Path) -> bool:
        """In one move: two runs that begin in the same second do not share a folder."""
        made = folder.with_name(f".{self.token}-{os.getpid()}")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        (made / FAMILY).write_text(self.token, encoding="utf-8")
        try:
            made.rename(folder)  # onto nothing, or onto an empty folder
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            return self._is_ours(folder)
        return True
