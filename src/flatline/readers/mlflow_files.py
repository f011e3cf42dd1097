"""MLflow's file store: ``mlruns/EXPERIMENT/RUN/metrics/NAME``, a line for each point."""

from __future__ import annotations

from pathlib import Path

from flatline.readers import Head, Reader
from flatline.readers._lines import lines
from flatline.readers._log import Log
from flatline.readers._numbers import number

FOLDER = "metrics"
EARLIEST = 1e12  # milliseconds since 1970: 2001


class MlflowFiles(Reader):
    """A run is the folder above ``metrics``; slashes in a name are folders in it."""

    name = "MLflow files"

    def claims(self, head: Head) -> int:
        """Lines of a time in milliseconds, a value and, in newer versions, a step; in a folder of that name."""
        told = [point for line in head.lines[:20] if line.strip() and (point := _point(line)) is not None]
        whole = [line for line in head.lines[:20] if line.strip()]
        return 2 if told and len(told) == len(whole) and FOLDER in head.path.parts[:-1] else 0

    def run_of(self, path: Path) -> Path:
        """Above the last ``metrics``."""
        return path.parents[_depth(path)]

    def read(self, path: Path, log: Log) -> None:
        """Line by line."""
        run, name, row = log.run(), "/".join(path.parts[-_depth(path) :]), 0
        for line in lines(path):
            if (point := _point(line)) is not None:
                value, step = point
                row += 1
                run.extend(name, (step,), (row,), (value,))


def _depth(path: Path) -> int:
    """How far below ``metrics``: 1 is in it."""
    folders = path.parts[:-1]
    return folders[::-1].index(FOLDER) + 1 if FOLDER in folders else 1


def _point(line: str) -> tuple[float, float] | None:
    words = line.split()
    if len(words) not in (2, 3):
        return None
    when, value, step = number(words[0]), number(words[1]), number(words[2]) if len(words) == 3 else 0.0
    known = when is not None and value is not None and step is not None and abs(step) < 1e15
    return (value, step) if known and value is not None and step is not None and when and when > EARLIEST else None
