"""Reads the record of a run: finished, running, killed, or damaged. Nothing is written to it."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import tempfile
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flatline.events import Where
from flatline.findings import Finding, Unchecked, Value
from flatline.record.labels import labelled, labels_of
from flatline.record.thinning import stride_of, unpacked
from flatline.record.writing import APPLICATION, MOST_BAD, VERSION

FILE = "record.sqlite"
SECONDS = 120.0  # for a query: a damaged or malicious file may make it endless
OFTEN = 100_000  # instructions between two looks at the clock
MOST_COLUMNS = 100_000
MOST_ROWS = 1_000_000  # of an answer: no record has more
DAMAGE = (sqlite3.Error, OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError, RecursionError)


class RecordError(Exception):
    """No record, or a damaged one; its text is one clear line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One scalar over the steps."""

    name: str
    steps: tuple[float, ...]  # of the first point of each stretch
    values: tuple[float, ...]  # mean of the stretch; nan where nothing in it is finite
    lows: tuple[float, ...]  # () when nothing was thinned
    highs: tuple[float, ...]
    not_finite: tuple[float, ...]  # steps at which nan or inf was recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """One quantity of every layer over the sampled steps."""

    quantity: str
    names: tuple[str, ...]
    steps: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]  # a row for each step, a column for each name; nan: not measured then


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How the numbers of a tensor lay."""

    name: str
    step: int
    edges: tuple[float, ...]  # one more than counts
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of the models."""

    name: str
    shape: tuple[int, ...]
    elements: int
    dtype: str
    trainable: bool
    model: str
    optimizer: str
    learning_rate: float | None
    weight_decay: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something worth a mark on the curves."""

    step: int
    seconds: float
    kind: str
    text: str
    where: Where | None


def open_record(path: str | Path) -> Recording:
    """The record in a run's folder, those of all its processes as one, or a record's file. Raises RecordError."""
    try:
        file = _file(Path(path))
        if Path(path).is_dir():
            from flatline.record.ranks import Ranks

            return Ranks(file.parent, file)
        return Recording(file)
    except DAMAGE as error:
        raise RecordError(f"{path}: {reason_of(error)}") from None


def _file(path: Path) -> Path:
    if not path.is_dir():
        if not path.is_file():
            raise RecordError(f"{path}: is not there")
        return path
    if (path / FILE).is_file():
        return path / FILE
    found = (
        sorted(path.glob("record-*.sqlite"))
        or sorted(path.glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime)[-1:]
    )
    if not found:
        raise RecordError(f"{path}: no record of a run is in it")
    return found[0]


def reason_of(error: BaseException) -> str:
    """Why a file cannot be read as a record."""
    text = " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
    return f"is no record of flatline, or a damaged one ({text[:120]})"


# --------------------------------------------------------------------------- the file


def _connected(file: Path) -> tuple[sqlite3.Connection, Path | None]:
    """A connection, and the folder of the copy that it reads if it could not read the file itself."""
    with file.open("rb") as opened:
        if not opened.read(16).startswith(b"SQLite format 3\0"):
            raise ValueError("it is no SQLite file")
    connection = _opened(f"file:{quote(str(file.resolve()))}?mode=ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        return _copied(file)
    except sqlite3.Error:
        connection.close()
        raise
    return connection, None


def _copied(file: Path) -> tuple[sqlite3.Connection, Path]:
    """Its writer was killed in the middle of a flush: what was begun is rolled back, in a copy."""
    folder = Path(tempfile.mkdtemp(prefix="flatline-record-"))
    try:
        for name in (file.name, f"{file.name}-journal", f"{file.name}-wal"):
            if (file.parent / name).is_file():
                shutil.copyfile(file.parent / name, folder / name)
        return _opened(f"file:{quote(str(folder / file.name))}?mode=rw"), folder
    except DAMAGE:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _opened(address: str) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, timeout=5, isolation_level=None, check_same_thread=False)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class Recording:
    """One record, open for reading. A running one may be read again and again."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.name = file.resolve().parent.name if file.name.startswith("record") else file.stem
        self._connection, self._copy = _connected(file)
        try:
            self._check()
            _ = self.facts
        except (*DAMAGE, RecordError):
            self.close()
            raise

    def _check(self) -> None:
        numbers = [
            self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        ]
        if numbers[0] != APPLICATION:
            raise ValueError("a SQLite file of another program")
        if numbers[1] > VERSION:
            raise RecordError(f"{self.file}: was written by a newer flatline")

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def version(self) -> int:
        """Another number when something new was written."""
        return int(self._rows("PRAGMA data_version")[0][0])

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        end = time.monotonic() + SECONDS
        self._connection.set_progress_handler(lambda: time.monotonic() > end, OFTEN)
        found = self._connection.execute(query, values).fetchmany(MOST_ROWS + 1)
        if len(found) > MOST_ROWS:
            raise ValueError("it has no end")
        return found

    def _damaged(self, error: BaseException) -> RecordError:
        return RecordError(f"{self.file}: {reason_of(error)}")

    # ------------------------------------------------------------------ what is known of the run

    def _all_facts(self) -> dict[str, Any]:
        try:
            return {str(name): json.loads(value) for name, value in self._rows("SELECT name, value FROM facts")}
        except DAMAGE as error:
            raise self._damaged(error) from None

    @property
    def facts(self) -> Mapping[str, Value]:
        """Facts about the run, as in a report."""
        known = self._all_facts()
        return {name: value for name, value in known.items() if not isinstance(value, (list, dict))}

    @property
    def ended(self) -> bool:
        """Whether the run came to an end that it could tell of."""
        return self.facts.get("ended") is not None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings told so far, worst and earliest first."""
        try:
            rows = self._rows("SELECT value FROM findings")
            return tuple(sorted((_finding(json.loads(row[0])) for row in rows), key=lambda finding: finding.rank))
        except DAMAGE as error:
            raise self._damaged(error) from None

    @property
    def checked(self) -> tuple[str, ...]:
        """Rules that had something to judge; known at the end."""
        return self._texts("checked")

    @property
    def notes(self) -> tuple[str, ...]:
        """What was switched off; known at the end."""
        return self._texts("notes")

    def _texts(self, name: str) -> tuple[str, ...]:
        known = self._all_facts().get(name)
        return tuple(str(text) for text in known) if isinstance(known, list) else ()

    @property
    def not_checked(self) -> tuple[Unchecked, ...]:
        """Rules that could not judge, and why; known at the end."""
        known = self._all_facts().get("not_checked")
        pairs = known if isinstance(known, list) else []
        return tuple(
            Unchecked(str(pair[0]), str(pair[1])) for pair in pairs if isinstance(pair, list) and len(pair) == 2
        )

    # ------------------------------------------------------------------ curves

    def series(self) -> tuple[Series, ...]:
        """All scalars, those of flatline first."""
        found: dict[str, _Points] = {}
        with self._steady():
            labels = self._labels()
            for names, width, rows in self._chunks("scalars"):
                for column, name in enumerate(names):
                    found.setdefault(name, _Points()).extend(rows, len(names), column, width)
            bad: dict[str, list[float]] = {}
            for name, step in self._rows("SELECT name, step FROM bad"):
                bad.setdefault(name, []).append(float(step))
            made = [points.series(labelled(name, labels), bad.get(name, [])) for name, points in found.items()]
        return tuple(sorted(made, key=lambda series: series.name.startswith("logged/")))

    def _labels(self) -> dict[str, str]:
        """``3`` -> ``Adam 2``: optimizers of which there are several."""
        known = self._all_facts().get("optimizers")
        pairs = (
            {str(key): (str(name), str(model)) for key, (name, model) in known.items()}
            if isinstance(known, dict)
            else {}
        )
        return labels_of(pairs)

    @contextmanager
    def _steady(self) -> Iterator[None]:
        """Nothing is written while several answers are put together."""
        try:
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")
        except DAMAGE as error:
            raise self._damaged(error) from None

    def _chunks(self, kind: str) -> Iterator[tuple[list[str], int, array[float]]]:
        for identity, text in self._rows("SELECT id, names FROM layouts WHERE kind = ? ORDER BY id", kind):
            names = [str(name) for name in json.loads(text)]
            if len(names) > MOST_COLUMNS:
                raise ValueError("too many columns")
            for (row,) in self._rows("SELECT id FROM chunks WHERE layout = ? ORDER BY place", identity):
                for width, data in self._rows("SELECT width, data FROM chunks WHERE id = ?", row):
                    yield names, int(width), unpacked(data, stride_of(len(names), int(width)))

    def quantities(self) -> tuple[str, ...]:
        """What was measured of every layer."""
        try:
            found = self._rows("SELECT kind FROM layouts WHERE kind != 'scalars' GROUP BY kind ORDER BY min(id)")
            return tuple(str(row[0]) for row in found)
        except DAMAGE as error:
            raise self._damaged(error) from None

    def grid(self, quantity: str) -> Grid | None:
        """One quantity of every layer, or None if it was never measured."""
        columns: dict[str, int] = {}
        rows: dict[int, dict[int, float]] = {}
        with self._steady():
            for names, width, numbers in self._chunks(quantity):
                places = [columns.setdefault(name, len(columns)) for name in names]
                stride, first = stride_of(len(names), width), 1 if width == 1 else 2
                for at in range(0, len(numbers), stride):
                    row = rows.setdefault(int(numbers[at]), {})
                    row.update(zip(places, numbers[at + first : at + first + len(names)], strict=True))
        if not columns:
            return None
        ordered = sorted(rows)
        wide = range(len(columns))
        values = tuple(tuple(rows[step].get(column, math.nan) for column in wide) for step in ordered)
        return Grid(quantity=quantity, names=tuple(columns), steps=tuple(ordered), values=values)

    # ------------------------------------------------------------------ the rest

    def histograms(self) -> tuple[Histogram, ...]:
        """In the order in which they were taken."""
        try:
            asked = "SELECT name, step, low, high, counts FROM histograms ORDER BY id"
            return tuple(_histogram(*row) for row in self._rows(asked))
        except DAMAGE as error:
            raise self._damaged(error) from None

    def parameters(self) -> tuple[Parameter, ...]:
        """Every parameter, once the first steps are over."""
        known = self._all_facts().get("parameters")
        try:
            return tuple(_parameter(entry) for entry in known) if isinstance(known, list) else ()
        except DAMAGE as error:
            raise self._damaged(error) from None

    def happenings(self) -> tuple[Happening, ...]:
        """In the order in which they happened."""
        asked = "SELECT step, seconds, kind, text, place FROM happenings ORDER BY id"
        try:
            return tuple(
                Happening(step=int(step), seconds=float(seconds), kind=str(kind), text=str(text), where=_where(place))
                for step, seconds, kind, text, place in self._rows(asked)
            )
        except DAMAGE as error:
            raise self._damaged(error) from None


class _Points:
    """One scalar while it is read."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.values: list[float] = []
        self.lows: list[float] = []
        self.highs: list[float] = []
        self.thinned = False

    def extend(self, rows: array[float], columns: int, column: int, width: int) -> None:
        stride = stride_of(columns, width)
        self.steps += rows[::stride]
        if width == 1:
            raw = rows[1 + column :: stride]
            means = lows = highs = [value if value - value == 0.0 else math.nan for value in raw]
        else:
            means, lows, highs = (list(rows[2 + column + part * columns :: stride]) for part in range(3))
            self.thinned = True
        self.values += means
        self.lows += lows
        self.highs += highs

    def series(self, name: str, bad: list[float]) -> Series:
        """In the order of the steps; several layouts may have had a part of it."""
        if any(one > other for one, other in zip(self.steps, self.steps[1:], strict=False)):
            order = sorted(range(len(self.steps)), key=self.steps.__getitem__)
            for numbers in (self.steps, self.values, self.lows, self.highs):
                numbers[:] = [numbers[at] for at in order]
        return Series(
            name=name,
            steps=tuple(self.steps),
            values=tuple(self.values),
            lows=tuple(self.lows) if self.thinned else (),
            highs=tuple(self.highs) if self.thinned else (),
            not_finite=tuple(sorted(bad)[:MOST_BAD]),
        )


def _finding(entry: dict[str, Any]) -> Finding:
    where = entry.pop("where", None)
    entry["ranks"], entry["consequences"] = tuple(entry.get("ranks", ())), tuple(entry.get("consequences", ()))
    if entry.get("severity") not in ("error", "warning", "hint") or not isinstance(entry.get("step"), int):
        raise ValueError("a finding is damaged")
    return Finding(**entry, where=Where(**where) if where else None)


def _histogram(name: str, step: int, low: float, high: float, counts: str) -> Histogram:
    numbers = tuple(int(count) for count in json.loads(counts))
    edges = tuple(low + (high - low) * at / max(1, len(numbers)) for at in range(len(numbers) + 1))
    return Histogram(name=str(name), step=int(step), edges=edges, counts=numbers)


def _parameter(entry: dict[str, Any]) -> Parameter:
    return Parameter(**{**entry, "shape": tuple(entry["shape"])})


def _where(text: str) -> Where | None:
    with suppress(ValueError, TypeError):
        place = json.loads(text)
        return Where(str(place[0]), int(place[1]), str(place[2])) if place else None
    return None
