"""flatline's own records as logs."""

from __future__ import annotations

import math
import shutil
import sqlite3

import pytest

from flatline.readers import Head, all_readers
from flatline.readers._finding import find
from flatline.readers._log import Log
from flatline.record import writing
from flatline.record.writing import Writer

(OWN,) = (reader for reader in all_readers() if reader.name == "flatline")


def write(folder, values, *, name="record.sqlite", ended=True, **more):
    folder.mkdir(exist_ok=True, parents=True)
    writer = Writer(lambda: folder / name, on_note=print)
    for step, value in enumerate(values, 1):
        writer.scalars(step, {"loss/#1": value, "lr/#1": 0.1, **more})
        if step % 20 == 0:
            writer.flush()
    writer.fact("optimizers", {"1": ["SGD", "model"]})
    if ended:
        writer.fact("ended", "now")
    writer.close()
    return folder / name


def read(path):
    log = Log()
    OWN.read_all([path], log)
    return log


def curves(log):
    return {curve.name: curve for curve in log.run().event().curves}


def test_claims_its_own_and_nothing_else(tmp_path):
    path = write(tmp_path / "run", [1.0])
    assert OWN.claims(Head(path, path.read_bytes()[:65536])) == 2
    other = tmp_path / "other.sqlite"
    sqlite3.connect(other).execute("CREATE TABLE loss (step, value)").connection.commit()
    assert OWN.claims(Head(other, other.read_bytes())) == 0


def test_curves_have_their_roles(tmp_path):
    path = write(
        tmp_path, [3.0, 2.0, math.nan, 1.0], **{"gradient_norm/#1": 1.0, "loss_scale": 8.0, "logged/val/loss": 4.0}
    )
    found = curves(read(path))
    assert {curve.role: name for name, curve in found.items() if curve.role} == {
        "train_loss": "train_loss",
        "learning_rate": "lr",
        "gradient_norm": "gradient_norm",
        "loss_scale": "loss_scale",
        "val_loss": "val/loss",
    }
    loss = found["train_loss"]
    assert (loss.steps, loss.values, loss.not_finite) == ((1, 2, 4), (3.0, 2.0, 1.0), (3,))


def test_a_thinned_curve_keeps_its_spikes_and_its_steps(tmp_path, monkeypatch):
    monkeypatch.setitem(writing.MOST_ROWS, "scalars", 128)
    path = write(tmp_path, [50.0 if step == 7 else 1.0 for step in range(2000)])
    loss = curves(read(path))["train_loss"]
    assert max(loss.highs or loss.values) == 50.0
    assert loss.steps[-1] == 2000
    assert list(loss.steps) == sorted(loss.steps)


@pytest.mark.parametrize("ended", [True, False])
def test_says_whether_the_run_has_ended(tmp_path, ended):
    assert read(write(tmp_path, [1.0, 2.0], ended=ended)).run().ended is ended


def test_ranks_are_one_run(tmp_path):
    for name in ("record.sqlite", "record-rank1.sqlite"):
        write(tmp_path / "run", [1.0, 2.0], name=name)
    (source,) = find([str(tmp_path)]).sources
    assert (source.run, len(source.files)) == (tmp_path / "run", 2)
    log = Log()
    OWN.read_all(source.files, log)
    assert curves(log)["train_loss"].steps == (1, 2)


def test_a_damaged_record_is_one_line(tmp_path):
    path = write(tmp_path / "run", [1.0] * 2000)
    damaged = shutil.copy(path, tmp_path / "record.sqlite")
    with open(damaged, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
    log = read(damaged)
    assert len(log.notes) == 1
    assert "\n" not in log.notes[0]
    assert log.notes[0].count(str(damaged)) == 1
