import math
import random

from flatline.events import Curve, CurvesUpdated
from flatline.rules.rl.moving_target import MovingTarget
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
    return [finding.code for finding in play(MovingTarget, CurvesUpdated(curves=curves))]


def lacks(*curves):
    return MovingTarget().lacks(CurvesUpdated(curves=curves))


RISES = [i / 90 for i in range(90)]


def reward(values):
    return curve("rollout/ep_rew_mean", noisy(values), "reward")


def test_fires():
    assert found(curve("train/value_loss", noisy([0.5 + i / 90 for i in range(90)])), reward(RISES)) == ["R5"]


def test_near_miss_the_critic_learns():
    assert found(curve("train/value_loss", noisy([1 - i / 100 for i in range(90)])), reward(RISES)) == []


def test_near_miss_the_return_does_not_rise():
    assert found(curve("losses/qf_loss", noisy([0.5] * 90)), reward([0.2] * 90)) == []


def test_too_short_says_so():
    assert lacks(curve("train/value_loss", [1] * 3), reward(RISES)).startswith("too short: 3 points of the critic")
