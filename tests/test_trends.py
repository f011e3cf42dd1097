"""A curve as levels and noise: what is found in noise alone, and what a scale or a stretch of the axis changes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from flatline.events import Curve, CurvesUpdated
from flatline.trends import (
    classes_of,
    drift,
    falling_is_due,
    kendall,
    range_test,
    slope,
    steps_of,
    trend,
    until,
    warming,
)


def curve(values, role="train_loss", name="loss", every=1.0):
    steps = tuple(every * (i + 1) for i in range(len(values)))
    return Curve(name=name, role=role, steps=steps, values=tuple(values), count=len(values))


def gauss(seed, n, noise=1.0):
    r = random.Random(seed)
    return [r.gauss(0, noise) for _ in range(n)]


def averaged(values):
    level, found = 0.0, []
    for value in values:
        level = 0.9 * level + 0.1 * value
        found.append(level)
    return found[50:]


def test_kendall_and_slope():
    assert kendall([1, 2, 3, 4, 5]) == pytest.approx(9 / (5 * 4 * 15 / 18) ** 0.5)
    assert kendall([5, 4, 3, 2, 1]) == -kendall([1, 2, 3, 4, 5])
    assert kendall([1, 1, 1]) == kendall([1, 2]) == 0
    assert slope([0, 2, 4, 90, 8]) == 2
    assert drift([0, 2, 4, 90, 8]) == 8


def test_too_short_says_nothing():
    assert trend(curve([1.0] * 7)) is None
    assert trend(None) is None
    assert trend(curve([1.0] * 8)) is not None


@pytest.mark.parametrize("points", [40, 300, 2000])
def test_noise_alone_rarely_has_a_trend(points):
    found = [trend(curve(gauss(seed, points))) for seed in range(200)]
    assert sum(t.rises() or t.falls() for t in found) <= 10


def test_noise_of_a_smoothed_logger_is_not_taken_for_small():
    for seed in range(50):
        values = averaged(gauss(seed, 1000))
        found = trend(curve(values))
        wander = (max(found.levels) - min(found.levels)) / 2
        assert found.noise > 0.2 * wander


def test_noise_is_about_right():
    ratios = sorted(trend(curve(gauss(seed, 1024))).noise / (1.2533 / 32**0.5) for seed in range(100))
    assert 0.7 < ratios[10] < ratios[90] < 1.6


def test_scale_shift_and_axis_change_nothing():
    values = [3.0 - 0.005 * i + noise for i, noise in enumerate(gauss(3, 400, 0.1))]
    plain = trend(curve(values))
    other = trend(curve([1000 * value - 5000 for value in values], every=0.01))
    assert plain.falls()
    assert other.falls()
    assert other.noise == pytest.approx(1000 * plain.noise)
    assert other.best == plain.best
    assert other.steps[-1] == pytest.approx(plain.steps[-1] * 0.01)


def test_one_outlier_moves_no_level():
    values = gauss(5, 300, 0.1)
    spiked = [*values[:150], 1e6, *values[151:]]
    assert max(trend(curve(spiked)).levels) < 1


def test_until_and_at():
    whole = curve(list(range(100)))
    assert until(whole, 10).values == tuple(range(10))
    found = trend(whole)
    assert found.at(-1) == 0
    assert found.at(1e9) == len(found.levels) - 1


def test_epochs_are_found_on_the_axis_of_steps():
    train, epochs = trend(curve(list(range(1000)))), [1.0, 2.0, 3.0, 4.0, 5.0]
    assert steps_of(train, epochs, 2.0) == 400
    assert steps_of(train, [200.0, 400.0, 900.0], 400.0) == 400


@pytest.mark.parametrize(
    "names",
    [
        ["loss_G", "loss_D"],
        ["lossG"],
        ["d_loss"],
        ["train/critic_loss"],
        ["policy_loss"],
        ["gan/loss"],
        ["loss", "ep_rew_mean"],
    ],
)
def test_where_a_loss_need_not_fall(names):
    assert not falling_is_due(CurvesUpdated(curves=tuple(curve([1.0] * 9, name=name) for name in names)))


@pytest.mark.parametrize(
    "names",
    [
        ["loss"],
        ["train/loss", "val/loss"],
        ["train_loss_step"],
        ["box_loss", "cls_loss"],
        ["loss", "rewards/margins"],
        ["organ_loss"],
    ],
)
def test_where_it_should(names):
    assert falling_is_due(CurvesUpdated(curves=tuple(curve([1.0] * 9, name=name) for name in names)))


def test_a_rate_that_still_rises():
    rising = curve([1e-5 * i for i in range(50)], "learning_rate", "lr")
    assert warming(CurvesUpdated(curves=(rising,)))
    assert not warming(CurvesUpdated(curves=(replace(rising, values=(1e-3,) * 50),)))
    assert not warming(CurvesUpdated())


def test_classes_are_known_or_shown_by_loss_and_accuracy_together():
    right = curve([0.1 + 0.005 * i for i in range(60)], "train_accuracy", "acc")
    begins = curve([2.33, 2.31, 2.3, 2.29, *[2.0] * 56])
    assert classes_of(CurvesUpdated(curves=(begins, right))) == 10
    percent = replace(right, values=tuple(100 * value for value in right.values))
    assert classes_of(CurvesUpdated(curves=(begins, percent))) == 10
    assert classes_of(CurvesUpdated(curves=(begins,), classes=7)) == 7
    assert classes_of(CurvesUpdated(curves=(begins,))) is None
    knows = curve([0.5] * 60, "train_accuracy", "acc")
    assert classes_of(CurvesUpdated(curves=(begins, knows))) is None
    assert classes_of(CurvesUpdated(curves=(curve([0.4] * 60), right))) is None


def test_a_range_test_raises_the_rate_all_along():
    raised = curve([1e-6 * 10 ** (i / 20) for i in range(100)], "learning_rate", "lr")
    assert range_test(CurvesUpdated(curves=(raised,)))
    warm_up = curve([min(1.0, (i + 1) / 50) for i in range(100)], "learning_rate", "lr")
    line = curve([(i + 1) / 200 for i in range(200)], "learning_rate", "lr")
    late = curve([0.01 if i < 50 else 0.01 * 1.3 ** (i - 50) for i in range(100)], "learning_rate", "lr")
    assert not any(range_test(CurvesUpdated(curves=(rate,))) for rate in (warm_up, line, late))
