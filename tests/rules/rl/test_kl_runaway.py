import math
import random

from flatline.events import Curve, CurvesUpdated
from flatline.rules.rl.kl_runaway import KlRunaway
from flatline.testing import play

R = random.Random(3)


def curve(name, values, role=""):
    values = [float(value) for value in values]
    steps = [10 * i for i in range(len(values))]
    fine = [(s, v) for s, v in zip(steps, values, strict=True) if math.isfinite(v)]
    bad = tuple(s for s, v in zip(steps, values, strict=True) if not math.isfinite(v))
    return Curve(
        name=name,
        role=role,
        steps=tuple(s for s, _ in fine),
        values=tuple(v for _, v in fine),
        not_finite=bad,
        count=len(values),
    )


def noisy(values, noise=0.02):
    return [value + R.gauss(0, noise) for value in values]


def found(*curves):
    return [finding.code for finding in play(KlRunaway, CurvesUpdated(curves=curves))]


def lacks(*curves):
    return KlRunaway().lacks(CurvesUpdated(curves=curves))


AWAY = [0.5 * math.exp(i / 18) for i in range(90)]


def reward(values):
    return curve("objective/scores", noisy(values), "reward")


def kl(values, name="objective/kl"):
    return curve(name, [value * (1 + R.gauss(0, 0.03)) for value in values], "kl")


def test_fires():
    assert found(kl(AWAY), reward([0.5] * 90)) == ["R2"]


def test_near_miss_levels_off():
    assert found(kl([40 * (1 - math.exp(-i / 20)) for i in range(90)]), reward([0.5] * 90)) == []


def test_near_miss_grows_along_a_line():
    assert found(kl([i / 3 for i in range(90)]), reward([0.5] * 90)) == []


def test_near_miss_the_reward_follows():
    assert found(kl(AWAY), reward([i / 20 for i in range(90)])) == []


def test_near_miss_between_two_updates():
    assert found(kl(AWAY, "train/approx_kl"), reward([0.5] * 90)) == []


def test_near_miss_small():
    assert found(kl([value / 30 for value in AWAY]), reward([0.5] * 90)) == []


def test_too_short_says_so():
    assert lacks(kl(AWAY[:5]), reward([0.5] * 5)) == "too short: 5 points of the KL divergence, 24 are needed"
