"""MLflow's file store."""

from __future__ import annotations

from flatline.readers import Head
from flatline.readers._finding import find
from flatline.readers._log import Log
from flatline.readers.mlflow_files import MlflowFiles

LINES = "1795275830066 3.0 0\n1795275830067 1.5 1\n1795275830068 nan 2\n"


def write(path, text=LINES):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def claims(path, text=LINES):
    return MlflowFiles().claims(Head(path, text.encode(), len(text)))


def test_runs_and_names(tmp_path):
    write(tmp_path / "mlruns/0/abc/metrics/val/loss")
    write(tmp_path / "mlruns/0/abc/metrics/train_loss")
    write(tmp_path / "mlruns/0/def/metrics/train_loss", "1795275830066 3.0\n1795275830067 2.0\n1795275830067 1.0\n")
    write(tmp_path / "mlruns/0/abc/meta.yaml", "status: 1\n")
    found = find([str(tmp_path)])
    assert [source.run.name for source in found.sources] == ["abc", "def"]
    events = []
    for source in found.sources:
        log = Log()
        source.reader.read_all(source.files, log)
        events.append(log.run().event())
    assert {curve.name: (curve.role, curve.values, curve.not_finite) for curve in events[0].curves} == {
        "train_loss": ("train_loss", (3.0, 1.5), (2,)),
        "val/loss": ("val_loss", (3.0, 1.5), (2,)),
    }


def test_near_miss_numbers_elsewhere(tmp_path):
    assert claims(tmp_path / "metrics/loss") == 2
    assert claims(tmp_path / "other/loss") == 0
    assert claims(tmp_path / "metrics/loss", "1 2 3\n4 5 6\n") == 0
    assert claims(tmp_path / "metrics/loss", "") == claims(tmp_path / "metrics/loss", "loss 1 2\n") == 0
