"""Damaged files: what can be read is read, and nothing but a note comes of the rest."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatline.afterwards import diagnose, report
from flatline.config import Config
from flatline.events import Curve
from flatline.readers import all_readers
from flatline.readers._finding import find
from flatline.readers._lines import lines
from flatline.readers._log import Log

INPUTS = int(os.environ.get("FLATLINE_FUZZ", "10000"))  # take 15 seconds
SECONDS = 5.0  # computed for one of them
SAMPLES = Path(__file__).parent / "samples"
samples = sorted(path for path in SAMPLES.rglob("*") if path.is_file())
each_sample = pytest.mark.parametrize("sample", samples, ids=lambda path: path.relative_to(SAMPLES).as_posix())


def judged(data: bytes, sample: Path):
    """What comes of a file with this content."""
    with TemporaryDirectory() as folder:
        path = Path(folder, sample.relative_to(SAMPLES))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        result = diagnose([str(path)], Config())
        report(result)
        for run in result.runs:
            for curve in run.event.curves:
                sound(curve)
        return result


def sound(curve: Curve):
    """Rules may rely on this."""
    assert len(curve.steps) == len(curve.values)
    assert all(value - value == 0 for value in (*curve.values, *curve.lows, *curve.highs, *curve.steps))
    assert {len(curve.lows), len(curve.highs)} <= {0, len(curve.values)}
    assert list(curve.steps) == sorted(curve.steps)


def test_there_is_a_sample_of_every_format():
    read = {run.format for sample in samples for run in judged(sample.read_bytes(), sample).runs}
    assert read == {reader.name for reader in all_readers()}


@each_sample
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damaged(sample, data):
    content = bytearray(sample.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(content) * 8 - 1), max_size=8)):
        content[at // 8] ^= 1 << at % 8
    start, stop = data.draw(st.tuples(st.integers(0, len(content)), st.integers(0, len(content))))
    judged(bytes(content[:start] + content[stop:]) if data.draw(st.booleans()) else bytes(content), sample)


@each_sample
def test_cut_off(sample):
    content = sample.read_bytes()
    for stop in range(0, len(content), max(1, len(content) // 25)):
        judged(content[:stop], sample)


DAMAGES = ("flip", "cut", "remove", "repeat", "zero", "noise", "insert", "swap")
WORDS = (
    b"nan",
    b"-inf",
    b"1e999",
    b"\0",
    b"\xff\xfe",
    b"\n",
    b"\r",
    b'"',
    b"{",
    b"[" * 40,
    b",",
    b"9" * 400,
    b"-",
    b"\x80" * 11,
)


def damaged(content: bytes, draw: random.Random) -> bytes:
    """As disks, networks, editors and other programs leave files."""
    made = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5))):
        start, length = draw.randrange(len(made) + 1), draw.choice((1, 8, 100, 5000))
        part = made[start : start + length]
        match draw.choice(DAMAGES):
            case "flip":
                for at in draw.sample(range(len(made)), min(len(made), draw.choice((1, 4, 64)))):
                    made[at] ^= 1 << draw.randrange(8)
            case "cut":
                del made[start:]
            case "remove":
                del made[start : start + length]
            case "repeat":
                made[start:start] = part * draw.choice((1, 3, 50))
            case "zero":
                made[start : start + length] = bytes(len(part))
            case "noise":
                made[start : start + length] = draw.randbytes(len(part))
            case "insert":
                made[start:start] = draw.choice(WORDS)
            case _:
                made[start : start + length] = part[::-1]
    return bytes(made)


@each_sample
def test_many_damages(sample, tmp_path):
    content, draw = sample.read_bytes(), random.Random(sample.name)
    path = tmp_path / sample.relative_to(SAMPLES)
    path.parent.mkdir(exist_ok=True)
    for _ in range(INPUTS // len(samples) + 1):
        path.write_bytes(damaged(content, draw))
        started = time.process_time()
        for source in find([str(path)]).sources:
            log = Log()
            source.reader.read_all(source.files, log)
            for run in log.runs.values():
                for curve in run.event().curves:
                    sound(curve)
        assert time.process_time() - started < SECONDS


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl", "train.log"])
def test_zeros_that_a_crash_left_in_a_text(tmp_path, name):
    lines = {"log.csv": "{0},{1}\n", "log.jsonl": '{{"step": {0}, "loss": {1}}}\n', "train.log": "step {0}: loss {1}\n"}
    text = ("step,loss\n" if name == "log.csv" else "") + "".join(lines[name].format(i, 1 / i) for i in range(1, 51))
    path = tmp_path / name
    path.write_bytes(text.encode() + bytes(100))
    with path.open("r+b") as file:
        file.truncate(1 << 36)  # a hole
    (run,) = diagnose([str(path)], Config()).runs
    assert run.curve("train_loss").count == 50


def test_files_that_are_no_logs_cost_little(tmp_path):
    for number in range(1000):
        (tmp_path / f"{number}.txt").write_text("nothing to see\n")
    (tmp_path / "log.csv").write_text("step,loss\n1,2\n2,1\n")
    (tmp_path / "loop").symlink_to(tmp_path)
    started = time.process_time()
    assert len(diagnose([str(tmp_path)], Config()).runs) == 1
    assert time.process_time() - started < SECONDS


def test_a_file_that_grows_while_it_is_read_has_an_end(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 2}\n' * 9)
    count = 0
    for _ in lines(path):
        count += 1
        with path.open("a") as file:
            file.write('{"step": 1, "loss": 2}\n' * 2)
    assert count == 9
