"""``flatline export``: the curves of a record, for other programs."""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from flatline.cli import fail, writable
from flatline.record import Grid, RecordError, Recording, open_record

HEADER = ("step", "name", "value", "low", "high")
Row = tuple[float | int, str, float, float | None, float | None]


def export(options: argparse.Namespace) -> int:
    """A row for each point of each curve. Exit status 2 when that cannot be done."""
    wanted = options.format or ("parquet" if str(options.output or "").endswith(".parquet") else "csv")
    if wanted == "parquet" and not options.output:
        return fail("export --format parquet needs -o FILE")
    if options.output and (why := writable(options.output)):
        return fail(why)
    try:
        with open_record(options.run) as record:
            return _write(_rows(record, layers=options.layers), wanted, options.output)
    except BrokenPipeError:
        raise
    except (RecordError, OSError) as error:
        return fail(str(error))


def _write(rows: Iterator[Row], wanted: str, output: str | None) -> int:
    if wanted == "parquet":
        return _parquet(rows, str(output))
    if not output:
        _csv(rows, sys.stdout)
        return 0
    with Path(output).open("w", encoding="utf-8", newline="") as file:
        _csv(rows, file)
    return 0


def _rows(record: Recording, *, layers: bool) -> Iterator[Row]:
    for series in record.series():
        for at, step in enumerate(series.steps):
            low, high = (series.lows[at], series.highs[at]) if series.lows else (None, None)
            yield _whole(step), series.name, series.values[at], low, high
    for quantity in record.quantities() if layers else ():
        grid = record.grid(quantity)
        yield from _cells(grid) if grid is not None else ()


def _cells(grid: Grid) -> Iterator[Row]:
    """All but those that were not measured."""
    for step, row in zip(grid.steps, grid.values, strict=True):
        known = [(name, value) for name, value in zip(grid.names, row, strict=True) if not math.isnan(value)]
        yield from ((step, f"{grid.quantity}/{name}", value, None, None) for name, value in known)


def _whole(step: float) -> float | int:
    return int(step) if step.is_integer() else step


def _csv(rows: Iterator[Row], file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(("" if value is None else value for value in row) for row in rows)


def _parquet(rows: Iterator[Row], output: str) -> int:
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        return fail("export --format parquet needs pyarrow: pip install pyarrow")
    columns: list[list[Any]] = [[], [], [], [], []]
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    kinds = [arrow.float64(), arrow.string(), arrow.float64(), arrow.float64(), arrow.float64()]
    arrays = [arrow.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    parquet.write_table(arrow.Table.from_arrays(arrays, names=list(HEADER)), output)
    return 0
