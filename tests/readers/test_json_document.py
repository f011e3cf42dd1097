"""One JSON document that holds a whole history."""

from __future__ import annotations

import json

import pytest

from flatline.readers import Head
from flatline.readers._log import Log
from flatline.readers.json_document import JsonDocument


def read(tmp_path, document):
    path = tmp_path / "history.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document, indent=1))
    log = Log()
    JsonDocument().read_all([path], log)
    return {curve.name: curve for curve in log.run().event().curves}, log.notes


def claims(tmp_path, document):
    data = document.encode() if isinstance(document, str) else json.dumps(document, indent=1).encode()
    return JsonDocument().claims(Head(tmp_path / "a.json", data, len(data)))


def test_lists_by_name(tmp_path):
    history = {
        "loss": [3, 2, float("nan")],
        "val": {"loss": [3.5, 2.5, 2]},
        "lr": ["0.1", None, 0.01],
        "name": ["a"],
        "n": 3,
    }
    curves, notes = read(tmp_path, history)
    assert claims(tmp_path, history) == 1
    assert (curves["loss"].values, curves["loss"].not_finite, notes) == ((3, 2), (3,), [])
    assert {name: curve.role for name, curve in curves.items()} == {
        "loss": "train_loss",
        "val/loss": "val_loss",
        "lr": "learning_rate",
    }
    assert curves["lr"].steps == (1, 3)


def test_steps_of_their_own(tmp_path):
    curves, _ = read(tmp_path, {"step": [10, 20, 30], "train_loss": [3, 2, 1], "val_loss": [5, 4]})
    assert (curves["train_loss"].steps, curves["val_loss"].steps) == ((10, 20, 30), (1, 2))


def test_a_list_of_objects(tmp_path):
    document = [{"step": step, "train": {"loss": 3 - step}} for step in range(3)]
    curves, _ = read(tmp_path, document)
    assert claims(tmp_path, document) == 1
    assert (curves["train/loss"].steps, curves["train/loss"].values) == ((0, 1, 2), (3, 2, 1))


@pytest.mark.parametrize("text", ['{"loss": [1, 2', "[" * 100_000, '{"loss": 1}', "{}", '[1, {"loss": []}]'])
def test_damaged(tmp_path, text):
    assert read(tmp_path, text)[0] == {}


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"a": [1, 2]},
        {"loss": "none", "b": [1]},
        [{"id": 1}],
        {"lr": 0.1},
        {"log_history": [], "loss": [1]},
        "loss: 1",
    ],
)
def test_near_miss_foreign_documents(tmp_path, document):
    assert claims(tmp_path, document) == 0
