"""Damaged files: what can be read is read, and nothing but a note comes of the rest."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatline.afterwards import diagnose, report
from flatline.config import Config
from flatline.events import Curve
from flatline.readers import all_readers

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
