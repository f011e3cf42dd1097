"""Curves of any length in bounded memory."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatline.readers._log import RunLog
from flatline.readers._thinning import LISTED, MOST, RESTARTS, Thinner


def filled(steps, values, *, most=MOST, batch=1):
    thinner = Thinner(most)
    rows = list(range(1, len(steps) + 1))
    for start in range(0, len(steps), batch):
        stop = start + batch
        thinner.extend(steps[start:stop], rows[start:stop], values[start:stop])
    return thinner


def curve_of(steps, values, name="loss"):
    run = RunLog()
    run.extend(name, steps, list(range(1, len(steps) + 1)), values)
    return run.event().curves[0]


def test_short_curves_are_kept_as_they_are():
    values = [random.Random(1).random() for _ in range(MOST)]
    curve = curve_of(list(range(MOST)), values)
    assert (curve.values, curve.lows, curve.highs, curve.count) == (tuple(values), (), (), MOST)


@pytest.mark.parametrize("batch", [1, 7, 1000, 100_000])
def test_long_curves_become_stretches(batch):
    draw = random.Random(2)
    values = [draw.gauss(5, 1) for _ in range(70_000)]
    values[33_333] = 100.0
    (part,) = filled(list(range(70_000)), values, batch=batch).finished()
    assert len(part) <= MOST
    assert sum(stretch.count for stretch in part) == 70_000
    assert min(stretch.low for stretch in part) == min(values)
    assert max(stretch.high for stretch in part) == 100.0
    assert abs(median(stretch.median for stretch in part) - 5) < 0.1
    assert max(stretch.median for stretch in part) < 8, "one spike moves no median"
    assert [stretch.step for stretch in part] == sorted(stretch.step for stretch in part)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(allow_nan=True, allow_infinity=True)), max_size=200),
    st.integers(2, 40),
    st.integers(1, 30),
)
def test_nothing_is_lost_and_the_limit_holds(points, most, batch):
    steps, values = [float(step) for step, _ in points], [value for _, value in points]
    thinner = filled(steps, values, most=most, batch=batch)
    stretches = [stretch for part in thinner.finished() for stretch in part]
    finite = [value for value in values if math.isfinite(value)]
    assert sum(stretch.count for stretch in stretches) == len(finite)
    assert len(stretches) <= max(most, RESTARTS + 2)
    assert len(finite) + thinner.nans + thinner.infinities == len(values)
    if finite:
        assert (min(s.low for s in stretches), max(s.high for s in stretches)) == (min(finite), max(finite))
    assert all(stretch.low <= stretch.median <= stretch.high for stretch in stretches)


def test_few_of_many_nans_are_listed():
    curve = curve_of(list(range(5000)), [1.0] * 1000 + [math.nan] * 4000)
    assert (len(curve.not_finite), curve.not_finite[0]) == (LISTED, 1000)


# --------------------------------------------------------------------------- steps that go back


def test_a_resumed_run_overrules_what_it_had_logged():
    steps = [0, 10, 20, 30, 40, 20, 30, 40, 50]
    curve = curve_of(steps, [9, 8, 7, 60, math.nan, 7.5, 6, 5, 4])
    assert (curve.steps, curve.values, curve.not_finite) == ((0, 10, 20, 30, 40, 50), (9, 8, 7.5, 6, 5, 4), ())


def test_a_run_that_began_again_overrules_all():
    curve = curve_of([0, 1, 2, 3, 0, 1, 2], [9, 7, 5, 3, 9.5, 6.5, 5.5])
    assert (curve.steps, curve.values) == ((0, 1, 2), (9.5, 6.5, 5.5))


@pytest.mark.parametrize("epochs", [2, 5, 100])
def test_a_counter_within_epochs_is_no_step(epochs):
    steps = [batch for _ in range(epochs) for batch in range(20)]
    values = [10 / (1 + at / 20) for at in range(20 * epochs)]
    curve = curve_of(steps, values)
    assert curve.steps == tuple(range(1, 20 * epochs + 1))
    assert curve.values == tuple(values)


def test_steps_that_repeat_are_kept():
    assert curve_of([1, 1, 2, 2], [4, 3, 2, 1]).steps == (1, 1, 2, 2)
