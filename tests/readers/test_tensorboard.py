"""Event files, beside TensorBoard's own reader where it is installed."""

from __future__ import annotations

import math
import random
import struct

import pytest

from flatline.readers import Head
from flatline.readers._log import Log
from flatline.readers.tensorboard import TensorBoard
from flatline.record.checksum import crc32c, masked

NAME = "events.out.tfevents.1700000000.host.1.0"


def varint(number):
    number &= (1 << 64) - 1
    parts = []
    while True:
        parts.append(number & 0x7F | (0x80 if number > 0x7F else 0))
        number >>= 7
        if not number:
            return bytes(parts)


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def record(content):
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked(length)) + content + struct.pack("<I", masked(content))


def event(step, *values):
    return record(b"\x09" + struct.pack("<d", 1.7e9) + b"\x10" + varint(step) + field(5, b"".join(values)))


def simple(tag, value):
    return field(1, field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))


def tensor(tag, value):
    plugin = field(9, field(1, field(1, b"scalars")))
    return field(
        1, field(1, tag.encode()) + field(8, b"\x08\x01\x12\x00" + field(5, struct.pack("<f", value))) + plugin
    )


VERSION = record(b"\x09" + struct.pack("<d", 1.7e9) + field(3, b"brain.Event:2"))


def write(folder, *records, name=NAME):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(VERSION + b"".join(records))
    return folder / name


def read(*paths):
    log = Log()
    TensorBoard().read_all(paths, log)
    return {curve.name: curve for curve in log.run().event().curves}, log.notes


def test_checksum():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C


def test_both_forms_of_scalars(tmp_path):
    rows = [event(step, simple("loss", 8 / 2**step), tensor("lr", 0.5)) for step in range(4)]
    curves, notes = read(write(tmp_path, *rows))
    assert (curves["loss"].steps, curves["loss"].values) == ((0, 1, 2, 3), (8, 4, 2, 1))
    assert (curves["lr"].values, notes) == ((0.5, 0.5, 0.5, 0.5), [])


def test_values_that_are_no_numbers(tmp_path):
    curves, _ = read(
        write(tmp_path, *(event(i, simple("loss", value)) for i, value in enumerate((1, math.nan, math.inf, 0.5))))
    )
    assert (curves["loss"].values, curves["loss"].not_finite) == ((1, 0.5), (1, 2))


def test_a_changed_value_is_left_out(tmp_path):
    path = write(tmp_path, *(event(step, simple("loss", 1 + step / 100)) for step in range(50)))
    content = bytearray(path.read_bytes())
    size = len(event(20, simple("loss", 1)))
    content[len(VERSION) + 20 * size + size - 5] ^= 0x40  # the exponent of a value in the middle
    path.write_bytes(content)
    curves, notes = read(path)
    assert len(curves["loss"].values) == 49
    assert notes == [f"{path}: 1 damaged records were left out"]


def test_cut_off(tmp_path):
    path = write(tmp_path, *(event(step, simple("loss", 1)) for step in range(50)))
    path.write_bytes(path.read_bytes()[:-7])
    curves, notes = read(path)
    assert len(curves["loss"].values) == 49
    assert notes == [f"{path}: the last record is cut off"]


def test_files_of_a_resumed_run(tmp_path):
    first = write(tmp_path, *(event(step, simple("loss", 9 - step)) for step in range(6)))
    second = write(
        tmp_path, *(event(step, simple("loss", 5 - step / 10)) for step in range(4, 8)), name=NAME.replace("17", "18")
    )
    curves, _ = read(first, second)
    assert curves["loss"].steps == (0, 1, 2, 3, 4, 5, 6, 7)
    assert curves["loss"].values[3:5] == pytest.approx((6, 4.6))


def test_folders_for_train_and_validation_are_one_run(tmp_path):
    reader = TensorBoard()
    train = write(tmp_path / "run/train", event(0, simple("epoch_loss", 2)))
    val = write(tmp_path / "run/validation", event(0, simple("epoch_loss", 3)))
    assert reader.run_of(train) == reader.run_of(val) == tmp_path / "run"
    curves, _ = read(train, val)
    assert {name: curve.role for name, curve in curves.items()} == {
        "train/epoch_loss": "train_loss",
        "validation/epoch_loss": "val_loss",
    }


@pytest.mark.parametrize("start", [b"", b"brain", b"x" * 100 + b"brain.Event:2", record(b"hello")])
def test_near_miss_foreign_records(tmp_path, start):
    assert TensorBoard().claims(Head(tmp_path, start, len(start))) == 0


def oracle(path):
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    accumulator = accumulators.EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(point.step, point.value) for point in accumulator.Scalars(tag)] for tag in tags}


def test_agrees_with_tensorboard_on_our_files(tmp_path):
    draw = random.Random(3)
    path = write(
        tmp_path, *(event(step, simple("loss", draw.gauss(0, 1e3)), tensor("a/lr", 0.1)) for step in range(3000))
    )
    curves, _ = read(path)
    found = list(zip(curves["loss"].steps, curves["loss"].values, strict=True))
    assert found == oracle(path)["loss"]


@pytest.mark.parametrize("new_style", [False, True])
def test_agrees_with_tensorboard_on_torchs_files(tmp_path, new_style):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(200):
            writer.add_scalar("Loss/train", 3 / (step + 1), step, new_style=new_style)
            writer.add_scalar("lr", 1e-3, step * 1000, new_style=new_style)
            writer.add_text("note", "hello", step)
    (path,) = tmp_path.iterdir()
    curves, notes = read(path)
    expected = oracle(path) if not new_style else None
    assert notes == []
    assert curves["Loss/train"].values == pytest.approx([3 / (step + 1) for step in range(200)])
    if expected is not None:
        found = {name: list(zip(curve.steps, curve.values, strict=True)) for name, curve in curves.items()}
        assert found == expected
