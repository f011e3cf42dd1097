"""Logs as programs print them."""

from __future__ import annotations

import pytest

from flatline.readers import Head
from flatline.readers._log import Log
from flatline.readers.text_log import TextLog

NANO = "tokens per iteration will be: 491,520\nnumber of parameters: 0.80M\n" + "".join(
    (f"step {i}: train loss {4 / (i + 1):.4f}, val loss {4.2 / (i + 1):.4f}\n" if i % 4 == 0 else "")
    + f"iter {i}: loss {4 / (i + 1):.4f}, time 3245.23ms, mfu -100.00%\n"
    for i in range(12)
)
DICTS = (
    "{'loss': '0.5', 'grad_norm': '1.25', 'learning_rate': '1e-05', 'epoch': '0.5'}\n"
    "{'eval_loss': 0.75, 'eval_runtime': 1.1, 'epoch': 1.0}\n"
    "  5%|▌         | 1/20 [00:00<00:01,  9.5it/s]\r"
    "{'loss': 0.25, 'grad_norm': nan, 'learning_rate': 5e-06, 'epoch': 1.5}\n"
    "{'train_runtime': '2.5', 'train_samples_per_second': '9', 'train_loss': '0.4', 'epoch': '2'}\n"
)
BARS = "\r".join(
    f"Epoch 0:  {i}%|██   | {i}/100 [00:10<00:12, 4.53it/s, loss={1 / (i + 1):.4f}, v_num=1]" for i in range(9)
)
TABLE = "".join(
    f"2024-05-01 12:00:0{i},123 - INFO - Epoch {i} | train loss {1 / (i + 1):.3f} | val loss 0.5\n" for i in range(4)
)
KERAS = "".join(
    f"Epoch {i}/3\n 1/9 [>....] - ETA: 5s - loss: 9.0 - accuracy: 0.1\n"
    f"9/9 [====] - 5s 3ms/step - loss: {3 / i:.2f} - accuracy: 0.5000 - val_loss: 1.25 - val_accuracy: 0.25\n"
    for i in (1, 2, 3)
)
MNIST = "".join(
    "".join(f"Train Epoch: {e} [{b * 640}/60000 ({b}%)]\tLoss: {3 - e - b / 10:.6f}\n" for b in range(4))
    + f"\nTest set: Average loss: 0.04{e}, Accuracy: 9800/10000 (98%)\n"
    for e in (1, 2)
)
IMAGENET = "".join(
    f"Epoch: [{e}][  10/5005]\tTime  0.5 ( 0.6)\tLoss 7.0e+00 (7.1e+00)\tAcc@1   0.00 (  0.10)\n" for e in range(3)
)
PHASES = "".join(f"[Train] Epoch {e} loss=0.{9 - e}\n[Val] Epoch {e} loss=1.{9 - e}, acc=45.5%\n" for e in range(4))


def read(tmp_path, text):
    path = tmp_path / "train.log"
    path.write_bytes(text.encode())
    log = Log()
    TextLog().read_all([path], log)
    assert log.notes == []
    return {curve.role: curve for curve in log.run().event().curves if curve.role}


def claims(text, name="train.log", *, named=False):
    from pathlib import Path

    data = text.encode()
    return TextLog().claims(Head(Path(name), data, len(data), named))


def test_nanogpt(tmp_path):
    found = read(tmp_path, NANO)
    assert (found["train_loss"].name, found["val_loss"].name) == ("train loss", "val loss")
    assert found["val_loss"].steps == (0, 4, 8)


def test_dicts_of_transformers(tmp_path):
    found = read(tmp_path, DICTS)
    assert (found["train_loss"].steps, found["train_loss"].values) == ((0.5, 1.5), (0.5, 0.25))
    assert (found["val_loss"].values, found["learning_rate"].values) == ((0.75,), (1e-5, 5e-6))
    assert (found["gradient_norm"].values, found["gradient_norm"].not_finite) == ((1.25,), (1.5,))


def test_progress_bars(tmp_path):
    found = read(tmp_path, BARS)
    assert found["train_loss"].steps == (1, 2, 3, 4, 5, 6, 7, 8, 9), "rows, as the epoch stands still"


def test_table_with_the_time_in_front(tmp_path):
    found = read(tmp_path, TABLE)
    assert set(found) == {"train_loss", "val_loss", "epoch"}
    assert found["train_loss"].steps == (0, 1, 2, 3)


def test_keras(tmp_path):
    found = read(tmp_path, KERAS)
    assert {role: curve.name for role, curve in found.items()} == {
        "train_loss": "loss",
        "train_accuracy": "accuracy",
        "val_loss": "val_loss",
        "val_accuracy": "val_accuracy",
    }
    assert found["val_loss"].count == 3


def test_test_set_of_the_mnist_example(tmp_path):
    found = read(tmp_path, MNIST)
    assert (found["train_loss"].count, found["val_loss"].values) == (8, (0.041, 0.042))
    assert found["val_accuracy"].values == (0.98, 0.98)


def test_imagenet_example(tmp_path):
    assert (read(tmp_path, IMAGENET)["train_loss"].steps) == (0, 1, 2)


def test_phases(tmp_path):
    found = read(tmp_path, PHASES)
    assert (found["train_loss"].values, found["val_loss"].values) == ((0.9, 0.8, 0.7, 0.6), (1.9, 1.8, 1.7, 1.6))
    assert found["val_accuracy"].values == (45.5,) * 4


@pytest.mark.parametrize("text", [NANO, BARS, TABLE, KERAS, MNIST, PHASES])
def test_claims(text):
    assert claims(text) == 1


def test_near_miss_losses_of_parts(tmp_path):
    assert read(tmp_path, "step 1 generator loss 0.5 discriminator loss 0.7 kl_loss: 0.1\n" * 4) == {}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "a.log"),
        ("We had a loss of 3 points\nand won 2 games\n", "a.txt"),
        ("numpy==1.2\ntorch==2.3\n", "requirements.txt"),
        (NANO, "README.xyz"),
        ("\0loss: 1\n" * 9, "a.log"),
        ('{"loss": 1}\n' * 9, "a.log"),
    ],
)
def test_near_miss_foreign_text(text, name):
    assert claims(text, name) == 0
