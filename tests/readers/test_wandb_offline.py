"""W&B's offline files. The records of the sample were made by wandb 0.31."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest
from test_tensorboard import field

from flatline.readers import Head
from flatline.readers._log import Log
from flatline.readers.wandb_offline import BLOCK, WandbOffline

SAMPLE = Path(__file__).parent / "samples" / "run-sample.wandb"
EXIT = field(18, b"")


def history(step, **values):
    items = [(("_step",), step), *((tuple(name.split("__")), value) for name, value in values.items())]
    return field(
        2,
        b"".join(
            field(1, b"".join(field(2, k.encode()) for k in ks) + field(16, json.dumps(v).encode())) for ks, v in items
        ),
    )


def written(*records):
    """The blocks of a file with these records."""
    data = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        rest, first = record, True
        while first or rest:
            left = BLOCK - len(data) % BLOCK
            if left < 7:
                data += bytes(left)
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = bytes([(2 if rest else 1) if first else (3 if rest else 4)])
            data += struct.pack("<IH", zlib.crc32(kind + part), len(part)) + kind + part
            first = False
    return bytes(data)


def read(path):
    log = Log()
    WandbOffline().read_all([path], log)
    return log.run().event(), log.notes


def test_sample_of_wandb():
    event, notes = read(SAMPLE)
    curves = {curve.name: curve for curve in event.curves}
    assert (event.step, event.ended, notes) == (390, True, [])
    assert curves["val/loss"].values == pytest.approx([3.5 / (step + 1) for step in range(40)])
    assert (curves["val/loss"].role, curves["train/loss"].role, curves["lr"].role) == (
        "val_loss",
        "train_loss",
        "learning_rate",
    )
    assert curves["grad_norm"].not_finite == (380, 390)


def test_records_across_blocks(tmp_path):
    path = tmp_path / "run.wandb"
    path.write_bytes(written(*(history(step, loss=1.5, note="x" * 9000 * (step % 7)) for step in range(60)), EXIT))
    event, notes = read(path)
    assert (event.curves[0].steps, event.ended, notes) == (tuple(range(60)), True, [])


def test_cut_off(tmp_path):
    path = tmp_path / "run.wandb"
    path.write_bytes(written(*(history(step, train__loss=1.5) for step in range(60)))[:-3])
    event, notes = read(path)
    assert (len(event.curves[0].values), event.ended, len(notes)) == (59, False, 1)


def test_claims():
    start = SAMPLE.read_bytes()[:100]
    assert WandbOffline().claims(Head(SAMPLE, start, len(start))) == 2
    assert WandbOffline().claims(Head(SAMPLE, b"W&B", 3)) == 0
