"""SQLite stores of MLflow and trackio, in the form in which MLflow 3.17 and trackio 0.43 make them."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing

import pytest

from flatline.readers import Head
from flatline.readers._log import Log
from flatline.readers.mlflow_database import MlflowDatabase
from flatline.readers.trackio import Trackio

MLFLOW = """
CREATE TABLE runs (run_uuid VARCHAR(32) NOT NULL, name VARCHAR(250), status VARCHAR(9), lifecycle_stage VARCHAR(20));
CREATE TABLE metrics (
    "key" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL, run_uuid VARCHAR(32) NOT NULL,
    step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN DEFAULT '0' NOT NULL,
    CONSTRAINT metric_pk PRIMARY KEY ("key", timestamp, step, run_uuid, value, is_nan)
);
"""
TRACKIO = """
CREATE TABLE metrics (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL, run_name TEXT NOT NULL,
    step INTEGER NOT NULL, metrics TEXT NOT NULL, log_id TEXT, space_id TEXT
);
"""


def mlflow(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(MLFLOW)
        runs = [
            ("aaaa", "one", "FINISHED", "active"),
            ("bbbb", None, "RUNNING", "active"),
            ("cccc", "x", "FINISHED", "deleted"),
        ]
        connection.executemany("INSERT INTO runs VALUES (?, ?, ?, ?)", runs)
        points = [
            ("train_loss", 3.0 / (step + 1), 1_700_000_000_000 + step, run, step, 0)
            for step in range(8)
            for run, *_ in runs
        ]
        points += [
            ("val_loss", 0.0, 1_700_000_000_009, "aaaa", 8, 1),
            ("val_loss", 1.7976931348623157e308, 1, "bbbb", 8, 0),
        ]
        connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", points)
        connection.commit()
    return path


def trackio(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(TRACKIO)
        for step in range(8):
            values = json.dumps(
                {"train": {"loss": 3 / (step + 1)}, "lr": 0.1, "grad_norm": "NaN" if step > 5 else 1.0}
            ).encode()
            row = ("id", "2026-01-01", "r1" if step % 2 else "r2", step, values)
            connection.execute(
                "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)", row
            )
        connection.commit()
    return path


def read(reader, path):
    log = Log()
    reader.read_all([path], log)
    assert log.notes == []
    return {name: run.event() for name, run in log.runs.items()}


def claims(reader, path):
    return reader.claims(Head(path, path.read_bytes()[: 1 << 16]))


def test_mlflow(tmp_path):
    path = mlflow(tmp_path / "mlflow.db")
    runs = read(MlflowDatabase(), path)
    assert {name: event.ended for name, event in runs.items()} == {"one aaaa": True, "bbbb": False}
    train, val = runs["one aaaa"].curves
    assert (train.role, train.steps, train.values[:2]) == ("train_loss", tuple(range(8)), (3.0, 1.5))
    assert (val.role, val.not_finite) == ("val_loss", (8,))
    assert runs["bbbb"].curves[1].not_finite == (8,)
    assert list(tmp_path.iterdir()) == [path], "nothing is written beside it"


def test_trackio(tmp_path):
    runs = read(Trackio(), trackio(tmp_path / "project.db"))
    assert set(runs) == {"r1", "r2"}
    curves = {curve.role: curve for curve in runs["r1"].curves}
    assert (curves["train_loss"].steps, curves["gradient_norm"].not_finite) == ((1, 3, 5, 7), (7,))


def test_what_is_not_yet_in_the_file_is_read(tmp_path):
    path = trackio(tmp_path / "project.db")
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute(
            "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES ('', '', 'r1', 9, '{\"loss\": 1}')"
        )
        writer.commit()
        assert read(Trackio(), path)["r1"].step == 9


@pytest.mark.parametrize("reader", [MlflowDatabase(), Trackio()], ids=lambda reader: reader.name)
def test_near_miss_foreign_databases(tmp_path, reader):
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.executescript("CREATE TABLE metrics (a, b); CREATE TABLE runs (c);")
    with closing(sqlite3.connect(tmp_path / "b.db")) as connection:
        connection.executescript(
            "CREATE VIEW metrics AS SELECT 1 AS key, 2 AS value, 3 AS run_uuid, 4 AS step, 5 AS is_nan;"
        )
    (tmp_path / "c.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    assert [claims(reader, tmp_path / name) for name in ("a.db", "b.db", "c.db")] == [0, 0, 0]


def test_each_claims_its_own(tmp_path):
    first, second = mlflow(tmp_path / "a.db"), trackio(tmp_path / "b.db")
    assert [claims(reader, path) for reader in (MlflowDatabase(), Trackio()) for path in (first, second)] == [
        2,
        0,
        0,
        2,
    ]


def test_finite_values_stay_so(tmp_path):
    assert all(
        math.isfinite(v) for c in read(MlflowDatabase(), mlflow(tmp_path / "m.db"))["bbbb"].curves for v in c.values
    )
