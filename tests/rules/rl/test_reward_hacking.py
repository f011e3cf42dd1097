import math
import random

from flatline.events import Curve, CurvesUpdated
from flatline.rules.rl.reward_hacking import RewardHacking
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
    return [finding.code for finding in play(RewardHacking, CurvesUpdated(curves=curves))]


def lacks(*curves):
    return RewardHacking().lacks(CurvesUpdated(curves=curves))


UP_AND_DOWN = [min(i / 30, 1.0) - max(0.0, (i - 60) / 30) for i in range(90)]
SPIKE = [0.5 if i < 60 else 0.5 + (i - 60) / 3 for i in range(90)]


def reward(values):
    return curve("rollout/ep_rew_mean", noisy(values), "reward")


def kl(values):
    return curve("train/approx_kl", noisy(values, 0.01), "kl")


def test_fires_with_a_spike_of_the_divergence():
    assert found(reward(UP_AND_DOWN), kl(SPIKE)) == ["R1"]


def test_fires_with_shrinking_answers():
    lengths = curve("completions/mean_length", noisy([200 if i < 60 else 30 for i in range(90)], 2))
    assert found(reward(UP_AND_DOWN), lengths) == ["R1"]


def test_near_miss_a_task_that_gets_harder():
    assert found(reward(UP_AND_DOWN), kl([0.5] * 90)) == []


def test_near_miss_a_dip_that_recovers():
    dip = [min(i / 30, 1.0) - (0.8 if 50 < i < 70 else 0) for i in range(90)]
    assert found(reward(dip), kl(SPIKE)) == []


def test_near_miss_divergence_grows_with_the_reward():
    assert found(reward([i / 90 for i in range(90)]), kl([i / 10 for i in range(90)])) == []


def test_near_miss_noise_of_few_episodes():
    for seed in range(30):
        r = random.Random(seed)
        values = [r.expovariate(1) for _ in range(90)]
        assert found(curve("reward", values, "reward"), kl(SPIKE)) == []


def test_too_short_says_so():
    assert lacks(reward(UP_AND_DOWN[:9]), kl(SPIKE)) == "too short: 9 points of the reward, 24 are needed"
    assert lacks(reward(UP_AND_DOWN)) == "neither a KL divergence nor a length was logged"
