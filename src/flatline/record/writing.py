"""Writes the record of a run. Nothing here raises, waits for anybody, or keeps a file open.

Rows wait in memory and are written about once a second, through a connection that is closed again: a fork, a change of the
working directory or a script that counts its open files has nothing to meet. A process that is killed loses what waited.
The journal is a rollback journal, and not a WAL: between two flushes the record is one plain file, which can be copied, and
read where nothing may be written; and no file system is needed that shares memory between processes.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flatline.record.thinning import condensed, halved, packed, stride_of, unpacked

APPLICATION, VERSION = 0x666C6174, 1
EVERY = 1.0  # seconds between two flushes
SHARE = 0.005  # of the time that flushes may take: slow disks are written to less often
WAITING = 250_000  # numbers that wait at most
MOST_ROWS = {"scalars": 20_000}  # of one layout; half of them, the newest, stay as they are
MOST_LAYER_ROWS = 2_000
MOST_CELLS = 500_000  # numbers of one layout
FEWEST_ROWS = 128
FIRST_WIDTH, WIDE = 4, 8  # rows that the first stretches are made of; columns from which on it is eight times as many
CHUNK = 1_024  # rows of a blob
BLOCK, SLICES = 8, 32  # so many parts of what is kept are condensed at once; so many of the stretches are halved
MOST_NAMES = 2_000  # scalars
MOST_LAYOUTS = 256  # combinations of them; beyond, each scalar has its own
MOST_BAD = 1_000  # steps with nan or inf that are kept of each scalar
MOST_HAPPENINGS = 500  # of each kind
MOST_HISTOGRAMS = 32  # of each name
LIMIT = 256 << 20  # bytes
LOOK_AT_SIZE = 16  # flushes
SQUEEZED = 6  # times that what is kept is halved before the record is ended
TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE layouts (id INTEGER PRIMARY KEY, kind TEXT, names TEXT);
CREATE TABLE chunks (id INTEGER PRIMARY KEY, layout INTEGER, place INTEGER, width INTEGER, rows INTEGER, data BLOB);
CREATE INDEX chunks_in_order ON chunks (layout, place);
CREATE TABLE bad (name TEXT, step REAL);
CREATE TABLE histograms (id INTEGER PRIMARY KEY, name TEXT, step INTEGER, low REAL, high REAL, counts TEXT);
CREATE TABLE happenings (id INTEGER PRIMARY KEY, step INTEGER, seconds REAL, kind TEXT, text TEXT, place TEXT);
CREATE TABLE findings (code TEXT, key TEXT, value TEXT, PRIMARY KEY (code, key));
"""
Names = tuple[str, ...]
Broken = (OSError, sqlite3.Error, ValueError, OverflowError, MemoryError)


class Layout:
    """Scalars, or the layers of one quantity, that are written together."""

    def __init__(self, identity: int, kind: str, names: Names) -> None:
        self.id, self.kind, self.names = identity, kind, names
        self.waiting = array("d")
        self.known = False  # to the file
        self.raw = self.stretches = 0  # rows in the file
        self.width = FIRST_WIDTH if len(names) <= WIDE else 8 * FIRST_WIDTH
        self.place = 0

    def most(self, squeezed: int) -> int:
        """Rows that are kept."""
        rows = min(MOST_ROWS.get(self.kind, MOST_LAYER_ROWS), MOST_CELLS // max(1, len(self.names)))
        return max(FEWEST_ROWS, rows >> squeezed)


class Writer:
    """The record of one process. ``place`` makes the folder and names the file when there is something to write."""

    def __init__(
        self,
        place: Callable[[], Path],
        *,
        limit: int = LIMIT,
        on_note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place, self._limit, self._note, self._clock = place, limit, on_note, clock
        self.file: Path | None = None
        self.facts: dict[str, object] = {}
        self.due = clock() + EVERY
        self._begin()

    def _begin(self) -> None:
        self.pid = os.getpid()
        self.alive = True
        self.layouts: dict[tuple[str, Names], Layout] = {}
        self._statements: list[tuple[str, Sequence[Any]]] = []
        self._bad: dict[str, int] = {}
        self._happened: dict[str, int] = {}
        self._pictures: dict[str, int] = {}
        self._names: set[str] = set()
        self._cells = self._flushes = self._squeezed = 0
        self._rows = False  # there is something to keep a file for
        self._lock = threading.Lock()

    def forked(self) -> None:
        """In a child after a fork: the parent's file is not ours, and neither is what waits for it."""
        self.file = None
        self._begin()
        for name, value in self.facts.items():
            self.fact(name, value)

    # ------------------------------------------------------------------ what comes in

    def row(self, kind: str, names: Names, step: float, values: Sequence[float]) -> None:
        """Numbers of one step that were measured together."""
        if not self.alive:
            return
        layout = self.layouts.get((kind, names)) or self._layout(kind, names)
        if layout is None:
            return
        row = step, *values
        layout.waiting.extend(array("d", row) if len(row) > WIDE else row)  # in one move, as other threads may write
        self._rows = True
        self._cells += len(names) + 1
        total = sum(values)
        if total - total != 0.0 and kind == "scalars":
            self._not_finite(names, step, values)
        if self._cells > WAITING and self._clock() > self.due:
            self.flush()

    def rows(self, kind: str, names: Names, steps: Sequence[float], columns: Sequence[Sequence[float]]) -> None:
        """Numbers of many steps, one column for each name. Faster than one by one, if all are finite."""
        total = sum(map(sum, columns))
        layout = self.layouts.get((kind, names)) if self.alive and total - total == 0.0 else None
        if layout is None:
            for step, *values in zip(steps, *columns, strict=True):
                self.row(kind, names, step, values)
            return
        stride = stride_of(len(names), 1)
        rows = array("d", bytes(8 * stride * len(steps)))
        for place, column in enumerate((steps, *columns)):
            rows[place::stride] = array("d", column)
        layout.waiting.extend(rows)
        self._rows = True
        self._cells += len(rows)
        if self._cells > WAITING and self._clock() > self.due:
            self.flush()

    def _layout(self, kind: str, names: Names) -> Layout | None:
        if kind == "scalars":
            if len(self._names.union(names)) > MOST_NAMES:
                return None
            self._names.update(names)
        layout = self.layouts[kind, names] = Layout(len(self.layouts) + 1, kind, names)
        return layout

    def scalars(self, step: float, values: Mapping[str, float]) -> None:
        """Scalars of one step."""
        names = tuple(values)
        if len(self.layouts) < MOST_LAYOUTS or ("scalars", names) in self.layouts:
            self.row("scalars", names, step, tuple(values.values()))
        else:
            for name, value in values.items():
                self.row("scalars", (name,), step, (value,))

    def _not_finite(self, names: Names, step: float, values: Sequence[float]) -> None:
        for name, value in zip(names, values, strict=True):
            if value - value != 0.0 and self._bad.get(name, 0) < MOST_BAD:
                self._bad[name] = self._bad.get(name, 0) + 1
                self._later("INSERT INTO bad VALUES (?, ?)", name, step)

    def fact(self, name: str, value: object) -> None:
        """A fact about the run; a later one of the same name takes its place."""
        self.facts[name] = value
        self._later("INSERT OR REPLACE INTO facts VALUES (?, ?)", name, json.dumps(value))

    def finding(self, code: str, key: str, value: Mapping[str, object]) -> None:
        """A finding, the moment it is told."""
        self._later("INSERT OR REPLACE INTO findings VALUES (?, ?, ?)", code, key, json.dumps(value, default=str))
        self._rows = True

    def forget_findings(self) -> None:
        """What stands at the end takes the place of what was told on the way."""
        self._later("DELETE FROM findings")

    def happening(self, step: int, seconds: float, kind: str, text: str, place: object) -> None:
        """Something worth a mark on the curves."""
        self._happened[kind] = self._happened.get(kind, 0) + 1
        if self._happened[kind] <= MOST_HAPPENINGS:
            self._later(
                "INSERT INTO happenings (step, seconds, kind, text, place) VALUES (?, ?, ?, ?, ?)",
                step, seconds, kind, text, json.dumps(place),
            )  # fmt: skip

    def histogram(self, name: str, step: int, low: float, high: float, counts: Sequence[int]) -> None:
        """How the numbers of a tensor lay at one step; of many, every second one is dropped."""
        if not (math.isfinite(low) and math.isfinite(high)):
            return
        self._later(
            "INSERT INTO histograms (name, step, low, high, counts) VALUES (?, ?, ?, ?, ?)",
            name, step, low, high, json.dumps(list(counts)),
        )  # fmt: skip
        self._pictures[name] = self._pictures.get(name, 0) + 1
        if self._pictures[name] > MOST_HISTOGRAMS:
            self._pictures[name] = (self._pictures[name] + 1) // 2
            ordered = "SELECT id, row_number() OVER (ORDER BY id) AS at FROM histograms WHERE name = ?"
            self._later(f"DELETE FROM histograms WHERE id IN (SELECT id FROM ({ordered}) WHERE at % 2 = 0)", name)

    def _later(self, statement: str, *values: object) -> None:
        if self.alive:
            self._statements.append((statement, values))

    # ------------------------------------------------------------------ onto the disk

    def flush(self) -> None:
        """Write what waits. Whatever goes wrong with the disk ends the record with one note."""
        if not self.alive or not self._rows or os.getpid() != self.pid or not self._lock.acquire(blocking=False):
            return
        started = self._clock()
        try:
            self._write()
        except Broken as error:
            self._failed(error)
        finally:
            ended = self._clock()
            self.due = ended + max(EVERY, (ended - started) / SHARE)
            self._lock.release()

    def _failed(self, error: BaseException) -> None:
        for layout, kept in self._kept:
            layout.raw, layout.stretches, layout.width = kept
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error) and self._cells < 4 * WAITING:
            return  # somebody reads; what waits is written next time
        self.end(f"the record of the run could not be written: {error}")

    def end(self, why: str) -> None:
        """No more is written."""
        self.alive = False
        self.layouts, self._statements = {}, []
        self._note(why)

    def _write(self) -> None:
        self._kept = [(layout, (layout.raw, layout.stretches, layout.width)) for layout in self.layouts.values()]
        new = self.file is None
        if self.file is None:
            self.file = self._place()
        with closing(_connected(self.file, new=new)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            statements = len(self._statements)
            written = self._write_all(connection)
            self._flushes += 1
            full = self._flushes % LOOK_AT_SIZE == 0 and self._too_large(connection)
            connection.execute("COMMIT")
        self._written(statements, written)
        if full:
            self._squeeze()

    _kept: Sequence[tuple[Layout, tuple[int, int, int]]] = ()

    def _write_all(self, connection: sqlite3.Connection) -> list[tuple[Layout, int]]:
        """What was written of each layout, in numbers."""
        for statement, values in tuple(self._statements):
            connection.execute(statement, values)
        waiting = [(layout, len(layout.waiting)) for layout in tuple(self.layouts.values()) if layout.waiting]
        for layout, length in waiting:
            self._write_layout(connection, layout, length)
        return waiting

    def _write_layout(self, connection: sqlite3.Connection, layout: Layout, length: int) -> None:
        if not layout.known:
            names = json.dumps(layout.names)
            connection.execute("INSERT INTO layouts VALUES (?, ?, ?)", (layout.id, layout.kind, names))
        stride = stride_of(len(layout.names), 1)
        for start in range(0, length, CHUNK * stride):
            part = layout.waiting[start : min(length, start + CHUNK * stride)]
            layout.place += 1
            _insert(connection, layout, layout.place, 1, len(part) // stride, packed(part))
        layout.raw += length // stride
        kept = layout.most(self._squeezed) // 2
        if layout.raw > kept + max(FIRST_WIDTH, kept // BLOCK):
            self._condense(connection, layout, layout.raw - kept)

    def _written(self, statements: int, written: list[tuple[Layout, int]]) -> None:
        """Only what was committed is forgotten."""
        del self._statements[:statements]
        for layout, length in written:
            del layout.waiting[:length]
            layout.known = True
        self._cells = 0

    # ------------------------------------------------------------------ thinning

    def _condense(self, connection: sqlite3.Connection, layout: Layout, excess: int) -> None:
        """The oldest rows become stretches; when these are too many, the oldest of them become half as many."""
        columns, taken = len(layout.names), array("d")
        places: list[int] = []
        asked = "SELECT place, rows, data FROM chunks WHERE layout = ? AND width = 1 ORDER BY place"
        for place, rows, data in connection.execute(asked, (layout.id,)):
            if places and len(taken) // stride_of(columns, 1) + rows > excess:
                break
            taken.extend(unpacked(data, stride_of(columns, 1)))
            places.append(place)
        gone = len(taken) // stride_of(columns, 1)
        connection.execute("DELETE FROM chunks WHERE layout = ? AND width = 1 AND place <= ?", (layout.id, places[-1]))
        made = condensed(taken, columns, layout.width)
        count = len(made) // stride_of(columns, 2)
        _insert(connection, layout, places[0], layout.width, count, packed(made))
        layout.raw -= gone
        layout.stretches += count
        most = layout.most(self._squeezed)
        most -= most // 2 + most // 2 // BLOCK  # what the rows leave
        while layout.stretches > most:
            self._halve(connection, layout, most)

    def _halve(self, connection: sqlite3.Connection, layout: Layout, most: int) -> None:
        """The oldest of the finest stretches become half as many, not more of them at once than is needed."""
        finest = "SELECT min(width) FROM chunks WHERE layout = ? AND width > 1"
        (width,) = connection.execute(finest, (layout.id,)).fetchone()
        wanted, stride = max(2 * (layout.stretches - most), most // SLICES), stride_of(len(layout.names), 2)
        taken, places, count = array("d"), [], 0
        asked = "SELECT place, rows, data FROM chunks WHERE layout = ? AND width = ? ORDER BY place"
        for place, rows, data in connection.execute(asked, (layout.id, width)):
            if count >= wanted:
                break
            taken.extend(unpacked(data, stride))
            places.append(place)
            count += rows
        else:
            layout.width = 2 * width  # none as fine is left
        gone = "DELETE FROM chunks WHERE layout = ? AND width = ? AND place <= ?"
        connection.execute(gone, (layout.id, width, places[-1]))
        made = halved(taken, len(layout.names))
        left = len(made) // stride
        _insert(connection, layout, places[0], 2 * width, left, packed(made))
        layout.stretches -= count - left

    def _too_large(self, connection: sqlite3.Connection) -> bool:
        pages, free, size = (
            int(connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size > self._limit

    def _squeeze(self) -> None:
        """Keep half as much of everything; when that was done often enough, nothing more."""
        self._squeezed += 1
        self._flushes = LOOK_AT_SIZE - 2  # look again soon
        if self._squeezed > SQUEEZED:
            self.end(
                f"the record of the run reached {self._limit >> 20} MB and was ended; record-limit allows for more"
            )

    def close(self) -> None:
        """The last flush."""
        self.flush()
        self.alive = False


def _connected(file: Path, *, new: bool) -> sqlite3.Connection:
    """A connection that waits for nobody. A file that was deleted is not made anew."""
    mode = "rwc" if new else "rw"
    address = f"file:{quote(str(file))}?mode={mode}"
    connection = sqlite3.connect(address, uri=True, timeout=0.02, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        if new:
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.executescript("BEGIN;" + TABLES + "COMMIT;")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _insert(c: sqlite3.Connection, layout: Layout, place: int, width: int, rows: int, data: bytes) -> None:
    c.execute(
        "INSERT INTO chunks (layout, place, width, rows, data) VALUES (?, ?, ?, ?, ?)",
        (layout.id, place, width, rows, data),
    )
