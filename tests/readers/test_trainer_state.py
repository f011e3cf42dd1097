"""trainer_state.json, alone, in checkpoints, and cut off."""

from __future__ import annotations

import json

from flatline.readers import Head
from flatline.readers._log import Log
from flatline.readers.trainer_state import TrainerState


def state(steps, *, planned=100):
    history = []
    for step in range(10, steps + 1, 10):
        history.append({"epoch": step / 50, "grad_norm": 1.5, "learning_rate": 1e-4, "loss": 10 / step, "step": step})
        if step % 50 == 0:
            history.append({"epoch": step / 50, "eval_loss": 11 / step, "eval_runtime": 1.0, "step": step})
    if steps == planned:
        history.append({"epoch": 2.0, "total_flos": 0.0, "train_loss": 0.3, "train_runtime": 9.0, "step": steps})
    return {"best_metric": None, "epoch": 2.0, "global_step": steps, "log_history": history, "max_steps": planned}


def write(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "trainer_state.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
    return path


def read(*paths):
    log = Log()
    TrainerState().read_all(paths, log)
    return log.run().event(), log.notes


def test_history(tmp_path):
    event, notes = read(write(tmp_path, state(100)))
    found = {curve.role: (curve.name, len(curve.values)) for curve in event.curves if curve.role}
    assert found == {
        "train_loss": ("loss", 10),
        "val_loss": ("eval_loss", 2),
        "learning_rate": ("learning_rate", 10),
        "gradient_norm": ("grad_norm", 10),
        "epoch": ("epoch", 12),
    }
    assert (event.step, event.ended, notes) == (100, True, [])


def test_the_last_checkpoint_is_read(tmp_path):
    early, late = write(tmp_path / "checkpoint-50", state(50)), write(tmp_path / "checkpoint-70", state(70))
    reader = TrainerState()
    assert {reader.run_of(early), reader.run_of(late)} == {tmp_path}
    event, _ = read(late, early)
    assert (event.step, event.ended) == (70, False)


def test_cut_off(tmp_path):
    text = json.dumps(state(100), indent=2)
    event, notes = read(write(tmp_path, text[: len(text) // 2]))
    loss = next(curve for curve in event.curves if curve.role == "train_loss")
    assert loss.values[:2] == (1.0, 0.5)
    assert len(notes) == 1


def test_claims(tmp_path):
    def claims(text, name="trainer_state.json"):
        return TrainerState().claims(Head(tmp_path / name, text.encode(), len(text)))

    text = json.dumps(state(100), indent=2)
    assert (claims(text), claims(text, "other.json")) == (2, 2)
    assert claims('{"epoch": 1}') == claims("") == claims("[]") == claims("loss: 1") == 0


def test_a_run_that_was_stopped_in_one_line_of_json(tmp_path):
    for planned, ended in ((100, True), (200, False)):
        event, notes = read(write(tmp_path, json.dumps(state(100, planned=planned))))
        assert (event.ended, notes) == (ended, [])
