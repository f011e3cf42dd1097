"""CSV as Lightning, Stable-Baselines3, Keras and people write it."""

from __future__ import annotations

import math

import pytest

from flatline.readers import Head
from flatline.readers._log import Log
from flatline.readers.comma_separated import CommaSeparated

LIGHTNING = """epoch,lr-AdamW,step,train_loss_epoch,train_loss_step,val_acc,val_loss
,0.001,9,,,,
0,,9,,2.5,,
0,,99,,,0.25,2.25
0,,99,2.75,,,
,0.0005,109,,,,
1,,109,,1.5,,
1,,199,,,0.5,1.75
"""
PROGRESS = """rollout/ep_len_mean,rollout/ep_rew_mean,time/fps,time/total_timesteps,train/approx_kl,train/learning_rate,train/loss
22.5,22.5,900,2048,,,
25.5,25.0,800,4096,0.0086,0.0003,6.5
30.5,30.0,800,6144,0.0090,0.0003,14.5
"""
MONITOR = """#{"t_start": 1700000000.5, "env_id": "CartPole-v1"}
r,l,t
17.0,17,0.5
23.0,23,0.75
"""


def read(tmp_path, text, name="metrics.csv", *, encoding="utf-8", chosen=None):
    path = tmp_path / name
    path.write_text(text, encoding=encoding)
    log = Log()
    CommaSeparated().read_all([path], log)
    return log.run().event(chosen=chosen), log.notes


def curve(event, name):
    return next(curve for curve in event.curves if curve.name == name)


def claims(text, *, named=False):
    from pathlib import Path

    data = text.encode()
    return CommaSeparated().claims(Head(Path("some.csv"), data, len(data), named))


def test_sparse_rows_of_lightning(tmp_path):
    event, notes = read(tmp_path, LIGHTNING)
    roles = {curve.role: curve.name for curve in event.curves if curve.role}
    assert roles == {
        "train_loss": "train_loss_step",
        "val_loss": "val_loss",
        "learning_rate": "lr-AdamW",
        "val_accuracy": "val_acc",
        "epoch": "epoch",
    }
    loss = curve(event, "train_loss_step")
    assert (loss.steps, loss.values, loss.count) == ((9, 109), (2.5, 1.5), 2)
    assert (curve(event, "val_loss").steps, event.step, notes) == ((99, 199), 199, [])


def test_progress_of_stable_baselines(tmp_path):
    event, _ = read(tmp_path, PROGRESS, "progress.csv")
    reward = next(curve for curve in event.curves if curve.role == "reward")
    assert (reward.name, reward.steps) == ("rollout/ep_rew_mean", (2048, 4096, 6144))
    roles = {curve.name: curve.role for curve in event.curves}
    assert roles["train/approx_kl"] == "kl"
    assert roles["train/loss"] == "", "a policy's loss says nothing of how well it does"


def test_monitor_of_stable_baselines(tmp_path):
    event, _ = read(tmp_path, MONITOR, "0.monitor.csv")
    assert next((c.steps, c.values) for c in event.curves if c.role == "reward") == ((1, 2), (17, 23))
    assert claims(MONITOR) == 2


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters(tmp_path, delimiter):
    event, _ = read(tmp_path, f"step{delimiter}loss\n1{delimiter}0.5\n2{delimiter}0.25\n".replace(",", delimiter))
    assert curve(event, "loss").values == (0.5, 0.25)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(tmp_path, encoding):
    event, _ = read(tmp_path, "step,loss\r\n1,0.5\r\n2,0.25\r\n", encoding=encoding)
    assert curve(event, "loss").steps == (1, 2)


def test_values_that_are_no_plain_numbers(tmp_path):
    text = 'step,loss\n1,"tensor(0.5, device=\'cuda:0\')"\n2,None\n3,nan\n4,inf\n5,-\n6,oops\n7,"1,250.5"\n8,12%\n'
    event, _ = read(tmp_path, text)
    loss = curve(event, "loss")
    assert (loss.steps, loss.values, loss.not_finite) == ((1, 7, 8), (0.5, 1250.5, 12), (3, 4))


def test_rows_are_counted_without_a_step(tmp_path):
    event, _ = read(tmp_path, "train_loss,val_loss\n3,4\n2,3\n1,2\n")
    assert curve(event, "train_loss").steps == (1, 2, 3)


def test_short_long_and_repeated_rows(tmp_path):
    event, notes = read(tmp_path, "step,loss,lr\n1,0.5,0.1\n2,0.25\nstep,loss,lr\n3,0.125,0.1,7,7\n4,0.5,0.1\n")
    assert curve(event, "loss").steps == (1, 2, 4)
    assert notes == [f"{tmp_path / 'metrics.csv'}: 1 rows were not understood"]


def test_nan_where_nothing_was_measured_is_no_value(tmp_path):
    rows = "".join(f"{i},{1 / (i + 1)},{0.5 if i % 4 == 3 else math.nan}\n" for i in range(20))
    event, _ = read(tmp_path, f"step,loss,val_loss\n{rows}")
    assert curve(event, "val_loss").not_finite == ()


def test_nan_at_the_end_is_a_value(tmp_path):
    rows = "".join(f"{i},{1 / (i + 1) if i < 12 else math.nan}\n" for i in range(20))
    event, _ = read(tmp_path, f"step,loss\n{rows}")
    assert curve(event, "loss").not_finite == tuple(range(12, 20))


def test_the_users_choice_wins(tmp_path):
    event, _ = read(tmp_path, "step,loss,aux\n1,2,3\n2,3,4\n", chosen={"train_loss": "aux"})
    assert {curve.name: curve.role for curve in event.curves} == {"loss": "", "aux": "train_loss"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just words\n",
        "name,age\nann,3\nbob,4\n",
        "sepal_length,sepal_width,species\n5.1,3.5,0\n",
        "1,2,3\n4,5,6\n",
        '{"step": 1, "loss": 2}\n{"step": 2, "loss": 2}\n',
        "step,loss\n",
        "\0\1\2,loss\n1,2\n",
    ],
)
def test_near_miss_foreign_tables(text):
    assert claims(text) == 0


def test_losses_that_are_not_understood_are_still_a_log():
    assert claims("step,d_loss,g_loss\n1,0.5,0.25\n") == 1
    assert claims("year,profit,loss_in_eur\n2001,3,4\n") == 0


def test_a_table_that_the_user_named_is_read():
    table = "step,fitness\n1,0.5\n"
    assert (claims(table), claims(table, named=True)) == (0, 1)
