"""``flatline export``: the curves of a record as CSV and Parquet."""

from __future__ import annotations

import csv
import math
import sys

import pytest

from flatline.cli import main
from flatline.record import writing
from flatline.record.writing import Writer


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setitem(writing.MOST_ROWS, "scalars", 128)
    writer = Writer(lambda: tmp_path / "record.sqlite", on_note=print)
    for step in range(1, 401):
        writer.scalars(step, {"loss": 1 / step, "logged/a, b": math.nan if step == 3 else 2.0})
        if step % 50 == 0:
            writer.row("weight_rms", ("x", "y"), step, (1.5, math.nan))
            writer.flush()
    writer.close()
    return tmp_path


def rows(text):
    return list(csv.DictReader(text.splitlines()))


def test_csv_onto_stdout(run, capsys):
    assert main(["export", str(run)]) == 0
    found = rows(capsys.readouterr().out)
    assert list(found[0]) == ["step", "name", "value", "low", "high"]
    assert {row["name"] for row in found} == {"loss", "logged/a, b"}
    first, last = (row for row in (found[0], [row for row in found if row["name"] == "loss"][-1]))
    assert (first["step"], first["high"]) == ("1", "1.0")
    assert (last["step"], float(last["value"])) == ("400", 1 / 400)


def test_layers_on_request(run, tmp_path, capsys):
    assert main(["export", str(run), "--layers", "-o", str(tmp_path / "curves.csv")]) == 0
    found = [row for row in rows((tmp_path / "curves.csv").read_text()) if row["name"].startswith("weight_rms/")]
    assert [(row["step"], row["name"], row["value"], row["low"]) for row in found][:1] == [
        ("50", "weight_rms/x", "1.5", "")
    ]
    assert len(found) == 8
    assert capsys.readouterr().out == ""


def test_parquet(run, tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main(["export", str(run), "-o", str(tmp_path / "curves.parquet")]) == 0
    found = parquet.read_table(tmp_path / "curves.parquet").to_pylist()
    main(["export", str(run)])
    printed = rows(capsys.readouterr().out)
    assert [(row["step"], row["name"]) for row in found] == [(float(row["step"]), row["name"]) for row in printed]


def test_without_pyarrow_one_line(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["export", str(run), "--format", "parquet", "-o", str(tmp_path / "curves")]) == 2
    assert capsys.readouterr().err == "flatline: export --format parquet needs pyarrow: pip install pyarrow\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["nowhere"], "is not there"), (["."], "no record"), ([".", "-o", "no/such/x.csv"], "no directory"),
     ([".", "--format", "parquet"], "needs -o")],
)  # fmt: skip
def test_refuses_in_one_line(tmp_path, monkeypatch, capsys, arguments, why):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *arguments]) == 2
    err = capsys.readouterr().err
    assert why in err
    assert err.count("\n") == 1
