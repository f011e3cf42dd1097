"""CSV: Lightning's metrics.csv, Stable-Baselines3's progress.csv and monitor.csv, and any table with a header."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import isnan
from pathlib import Path

from flatline.readers import Head, Reader
from flatline.readers._lines import batches
from flatline.readers._log import Log, RunLog
from flatline.readers._numbers import number, step_name
from flatline.readers._roles import LOSS, role_of, words_of

DELIMITERS = (",", "\t", ";")
COLUMNS = 20_000  # more are no log
LOOKED_AT = 20  # rows that show whether a column holds numbers


class CommaSeparated(Reader):
    """A header, then rows; cells may be missing."""

    name = "CSV"
    known_as = r"^(metrics|progress)\.csv$|monitor\.csv$"
    stands_for_folder = r"(?i)^(metrics|progress|history|log|logs|results|training|train_log|training_log)\.[ct]sv$"

    def claims(self, head: Head) -> int:
        """Several columns with names, numbers under them, and a name that is known, unless the user named the file."""
        if not head.text or head.text.lstrip()[:1] in ("{", "["):
            return 0
        header, rows, _ = _table(head.lines)
        if not _is_header(header) or not rows:
            return 0
        numeric = [
            name for at, name in enumerate(header) if any(number(row[at]) is not None for row in rows if at < len(row))
        ]
        known = any(role_of(name) not in ("", "epoch") for name in numeric) or {"r", "l", "t"} <= set(header)
        likely = step_name(numeric) is not None and any(LOSS & set(words_of(name)) for name in numeric)
        return 2 if known else int(likely or (head.named and bool(numeric) and len(header) > 1))

    def read(self, path: Path, log: Log) -> None:
        """In batches of rows, a column at a time."""
        table = _Table(log.run())
        for lines in batches(path):
            table.take([line for line in lines if line and not line.isspace()])
        if table.skipped:
            log.notes.append(f"{path}: {table.skipped} rows were not understood")


def _table(lines: Sequence[str]) -> tuple[list[str], list[list[str]], str]:
    """Header, first rows and delimiter, behind comments."""
    told = [line for line in islice(lines, 1000) if line.strip() and not line.startswith("#")][: LOOKED_AT + 1]
    if not told:
        return [], [], ","
    delimiter = max(DELIMITERS, key=told[0].count)
    header, *rows = list(csv.reader(told, delimiter=delimiter)) or [[]]
    return [name.strip() for name in header], rows, delimiter


def _is_header(header: Sequence[str]) -> bool:
    named = [name for name in header if name]
    return (
        bool(named)
        and len(header) <= COLUMNS
        and not any(number(name) is not None or len(name) > 200 for name in named)
    )


class _Table:
    """Rows on their way into curves."""

    def __init__(self, run: RunLog) -> None:
        self.run = run
        self.header: list[str] = []
        self.steps_at: int | None = None
        self.delimiter = ","
        self.last_step = 0.0
        self.skipped = 0

    def take(self, lines: list[str]) -> None:
        """The next lines of the file."""
        if not self.header:
            lines = [line for line in lines if not line.startswith("#")]
            self._begin(lines)
        rows = list(csv.reader(lines, delimiter=self.delimiter))
        wide = len(self.header)
        whole = [row for row in rows if len(row) == wide and row != self.header]
        if len(whole) < len(rows):
            whole = list(self._mended(rows))
        if whole:
            self._columns(list(zip(*whole, strict=True)), len(whole))

    def _begin(self, lines: list[str]) -> None:
        _, _, self.delimiter = _table(lines)
        first = next(csv.reader(lines[:1], delimiter=self.delimiter), [])
        self.header = [*first]
        name = step_name(first)
        self.steps_at = first.index(name) if name in first else None

    def _mended(self, rows: Iterable[list[str]]) -> Iterator[list[str]]:
        """Short rows are filled up; the header again, and rows that are too long, are left out."""
        for row in rows:
            if [cell.strip() for cell in row] == [cell.strip() for cell in self.header]:
                continue
            if len(row) > len(self.header) or len(row) <= 1 < len(self.header):
                self.skipped += 1
                continue
            yield row + [""] * (len(self.header) - len(row))

    def _columns(self, columns: list[tuple[str, ...]], count: int) -> None:
        rows = [self.run.row + at for at in range(1, count + 1)]
        self.run.row += count
        steps = rows if self.steps_at is None else self._steps(columns[self.steps_at])
        for at, cells in enumerate(columns):
            if at != self.steps_at and self.header[at].strip():
                self._column(self.header[at].strip(), cells, steps, rows)

    def _steps(self, cells: Sequence[str]) -> list[float]:
        """A row without a step belongs to the one before."""
        try:
            steps = list(map(float, cells))
        except ValueError:
            steps = []
        if steps and -1e15 < min(steps) <= max(steps) < 1e15 and not isnan(sum(steps)):
            self.last_step = steps[-1]
            return steps
        steps = []
        for value in map(_number, cells):
            self.last_step = value if value is not None and abs(value) < 1e15 else self.last_step
            steps.append(self.last_step)
        return steps

    def _column(self, name: str, cells: Sequence[str], steps: list[float], rows: list[float]) -> None:
        try:
            self.run.extend(name, steps, rows, list(map(float, cells)))
        except ValueError:
            points = [(s, r, v) for s, r, v in zip(steps, rows, map(_number, cells), strict=True) if v is not None]
            if points:
                self.run.extend(name, *map(list, zip(*points, strict=True)))


def _number(cell: str) -> float | None:
    try:
        return float(cell) if cell else None
    except ValueError:
        return number(cell)
