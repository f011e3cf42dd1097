"""JSON lines and trainer_state.json."""

from __future__ import annotations

import json

import pytest

from flatline.readers import Head
from flatline.readers._log import Log
from flatline.readers.json_lines import JsonLines


def read(tmp_path, text):
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    log = Log()
    JsonLines().read_all([path], log)
    return log.run().event(), log.notes


def claims(tmp_path, text, *, named=False):
    data = text.encode()
    return JsonLines().claims(Head(tmp_path / "log.jsonl", data, len(data), named))


def test_nested_values_text_and_flags(tmp_path):
    rows = [
        {"step": 10, "train": {"loss": "0.5", "ok": True}, "lr": 1e-3, "note": "hello", "timestamp": 5.0},
        {"step": 20, "train": {"loss": float("nan")}, "lr": None, "grads": [1, 2]},
    ]
    event, notes = read(tmp_path, "\n".join(map(json.dumps, rows)))
    loss, rate = event.curves
    assert (loss.name, loss.role, loss.steps, loss.values, loss.not_finite) == (
        "train/loss",
        "train_loss",
        (10,),
        (0.5,),
        (20,),
    )
    assert (rate.name, rate.values, notes) == ("lr", (1e-3,), [])


def test_what_is_no_object_is_passed_over(tmp_path):
    event, notes = read(tmp_path, '{"loss": 1}\n[1]\n\n{"loss": \nhello\n{"loss": 2}\n')
    assert event.curves[0].values == (1, 2)
    assert event.curves[0].steps == (1, 2)
    assert notes == [f"{tmp_path / 'log.jsonl'}: 3 lines were not understood"]


@pytest.mark.parametrize("number", ["1e999", "9" * 4000, "9" * 5000, "-" + "9" * 400, "[" * 5000])
def test_absurd_values(tmp_path, number):
    event, _ = read(tmp_path, f'{{"step": {number}, "loss": 1}}\n{{"loss": {number}}}\n{{"loss": 3}}\n')
    assert event.curves[0].values[-1] == 3


def test_claims(tmp_path):
    two = '{"step": 1, "loss": 2}\n{"step": 2, "loss": 2}\n'
    assert claims(tmp_path, two) == 2
    assert claims(tmp_path, '{"a": 1}\n') == 0
    assert claims(tmp_path, '{"a": 1}\n', named=True) == 2


@pytest.mark.parametrize(
    "text", ["", "{}\n{}\n", '{"text": "a"}\n{"text": "b"}\n', "loss: 1\nloss: 2\n", "[1, 2]\n[3]\n"]
)
def test_near_miss_foreign_lines(tmp_path, text):
    assert claims(tmp_path, text, named=True) == 0
