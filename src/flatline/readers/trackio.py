"""Trackio's SQLite databases, one for each project."""

from __future__ import annotations

from pathlib import Path

from flatline.readers import Head, Reader
from flatline.readers._log import Log
from flatline.readers._numbers import number
from flatline.readers._sqlite import columns, opened
from flatline.readers.json_lines import parsed, take


class Trackio(Reader):
    """A row is a step of a run, with its values as JSON."""

    name = "trackio"

    def claims(self, head: Head) -> int:
        """By the columns of its table of metrics."""
        return 2 if {"run_name", "step", "metrics"} <= columns(head, "metrics") else 0

    def read(self, path: Path, log: Log) -> None:
        """Row by row."""
        with opened(path) as connection:
            for run, step, values in connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY rowid"):
                text = values.decode("utf-8", "replace") if isinstance(values, bytes) else str(values)
                entry, counted = parsed(text), number(step)
                if entry is not None:
                    take(log.run(str(run)), entry if counted is None else {**entry, "global_step": counted})
