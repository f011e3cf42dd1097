"""The record's scalars for TensorBoard, read by flatline's reader, and by TensorBoard's own where it is installed."""

from __future__ import annotations

import math

import pytest

from flatline.events import GroupFacts, LossesRead, OptimizerFacts, ScalarsLogged
from flatline.readers._log import Log
from flatline.readers.tensorboard import TensorBoard
from flatline.record import event_file
from flatline.record.event_file import ALL, EventFile, stride
from flatline.record.place import Place
from flatline.record.recorder import Recorder


def curves(folder):
    log = Log()
    TensorBoard().read_all(sorted(folder.iterdir()), log)
    assert log.notes == []
    return {curve.name.removeprefix("flatline/"): curve for curve in log.run().event().curves}


def written(folder, rows):
    notes = []
    file = EventFile(lambda: folder, on_note=notes.append)
    for step, values in rows:
        file.scalars(step, values)
    file.flush()
    return file, notes


def test_scalars_come_back(tmp_path):
    written(tmp_path / "new", [(step, {"loss": 1 / step, "lr": 0.5}) for step in range(1, 300)])
    found = curves(tmp_path / "new")
    assert found["loss"].steps == tuple(range(1, 300))
    assert found["loss"].values == pytest.approx([1 / step for step in range(1, 300)])
    assert set(found["lr"].values) == {0.5}


def test_numbers_that_are_not_finite_or_too_large(tmp_path):
    values = (1.0, 2.0, math.nan, math.inf, -1e300, 3.0)
    written(tmp_path, [(step, {"loss": value}) for step, value in enumerate(values)])
    loss = curves(tmp_path)["loss"]
    assert (loss.values, loss.not_finite) == ((1.0, 2.0, 3.0), (2, 3, 4))


def test_the_points_of_a_long_run_get_rarer(tmp_path, monkeypatch):
    assert [stride(count) for count in (0, ALL - 1, ALL, 10 * ALL - 1, 10 * ALL)] == [1, 1, 10, 10, 100]
    monkeypatch.setattr(event_file, "ALL", 100)
    written(tmp_path, [(step, {"loss": 0.5}) for step in range(2000)])
    assert curves(tmp_path)["loss"].count == 100 + 90 + 10


def test_nothing_is_made_without_a_point_or_a_place(tmp_path):
    written(tmp_path / "empty", [])
    file = EventFile(lambda: None, on_note=print)
    file.scalars(1, {"loss": 1.0})
    file.flush()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_ends_it_with_one_note(tmp_path):
    (tmp_path / "file").write_text("")
    file, notes = written(tmp_path / "file" / "folder", [(1, {"loss": 1.0})])
    file.scalars(2, {"loss": 1.0})
    file.flush()
    assert len(notes) == 1
    assert not file.alive


def test_a_forked_child_has_a_file_of_its_own(tmp_path):
    file, _ = written(tmp_path, [(1, {"loss": 1.0})])
    file.scalars(2, {"loss": 2.0})
    file.forked()
    file.flush()
    assert curves(tmp_path)["loss"].values == (1.0,)
    assert file.file is None


def recorder_of(folder):
    return Recorder(Place(str(folder / "record"), "t", shelf=False), on_note=print, tensorboard=str(folder / "tb"))


def losses(key, *values):
    facts = OptimizerFacts(key=key, name="Adam", groups=(GroupFacts(lr=0.1),))
    steps = tuple(range(1, len(values) + 1))
    return LossesRead(optimizer=facts, step=steps[-1], steps=steps, losses=values, rates=(0.1,) * len(values))


def test_beside_a_record_under_its_name(tmp_path):
    recorder = recorder_of(tmp_path)
    recorder.take(losses(1, 3.0, 2.0))
    recorder.take(ScalarsLogged(step=2, values=(("val/acc", 0.5),)))
    recorder.tick(2)
    found = curves(tmp_path / "tb" / "record")
    assert {name: curve.values for name, curve in found.items()} == {
        "loss": (3.0, 2.0),
        "lr": (pytest.approx(0.1), pytest.approx(0.1)),
        "logged/val/acc": (0.5,),
    }
    assert (found["loss"].role, found["logged/val/acc"].role) == ("train_loss", "val_accuracy")


def test_a_name_stays_when_another_optimizer_comes(tmp_path):
    recorder = recorder_of(tmp_path)
    recorder.take(losses(1, 3.0))
    recorder.take(losses(2, 4.0))
    recorder.take(losses(1, 2.0))
    recorder.tick(2)
    found = curves(tmp_path / "tb" / "record")
    assert {name: curve.count for name, curve in found.items()} == {
        "loss": 2,
        "lr": 2,
        "loss/Adam 2": 1,
        "lr/Adam 2": 1,
    }


def test_tensorboard_reads_it(tmp_path):
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    written(tmp_path, [(step, {"loss": 1 / step, "né": -step}) for step in (1, 127, 128, 1 << 40)])
    accumulator = accumulators.EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    accumulator.Reload()
    told = {tag: [(p.step, p.value) for p in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
    assert [step for step, _ in told["flatline/loss"]] == [1, 127, 128, 1 << 40]
    assert [value for _, value in told["flatline/né"]] == [-1.0, -127.0, -128.0, -float(1 << 40)]
