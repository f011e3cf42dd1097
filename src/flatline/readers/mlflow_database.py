"""MLflow's SQLite store."""

from __future__ import annotations

from math import inf, isnan, nan
from pathlib import Path

from flatline.readers import Head, Reader
from flatline.readers._log import Log
from flatline.readers._numbers import number
from flatline.readers._sqlite import columns, opened

LARGEST = 1.7976931348623157e308  # what MLflow writes for an infinity


class MlflowDatabase(Reader):
    """Every run of every experiment that was not deleted."""

    name = "MLflow database"
    known_as = r"^mlflow\.db$"

    def claims(self, head: Head) -> int:
        """By the columns of its table of metrics."""
        return 2 if {"key", "value", "run_uuid", "step", "is_nan"} <= columns(head, "metrics") else 0

    def read(self, path: Path, log: Log) -> None:
        """The points in the order in which they came."""
        with opened(path) as connection:
            names: dict[object, str] = {}
            told = connection.execute("SELECT run_uuid, name, status, lifecycle_stage FROM runs")
            for run, name, status, stage in told.fetchall():
                if stage != "deleted":
                    names[run] = f"{name} {str(run)[:8]}" if name else str(run)
                    log.run(names[run]).ended = status != "RUNNING"
            points = connection.execute("SELECT run_uuid, key, value, step, is_nan FROM metrics ORDER BY rowid")
            for run, key, value, step, is_nan in points:
                if run in names:
                    _add(log, names[run], str(key), nan if is_nan else number(value), number(step))


def _add(log: Log, run: str, key: str, value: float | None, step: float | None) -> None:
    if value is not None and step is not None and abs(step) < 1e15:
        log.run(run).row += 1
        log.run(run).add(key, step, value if abs(value) < LARGEST or isnan(value) else inf)
