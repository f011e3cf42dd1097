from families import VARIANTS, alarms, curve, decay, missed, noisy, power, run, smoothed

from flatline.events import CurvesUpdated
from flatline.rules.curves.loss_spike import LossSpike
from flatline.testing import play


def lost(r):
    """Jumps up at once and stays near where it began, with or without an overshoot."""
    n, at = r.choice([250, 300, 1000, 2500]), r.uniform(0.4, 0.7)
    over, level = r.uniform(0, 3), r.uniform(1.9, 2.6)
    shape = [v if i < at * n else level + over * 0.6 ** (i - at * n) for i, v in enumerate(decay(n, 2.3, 0.4))]
    return run(curve(noisy(r, shape, relative=r.choice([0.02, 0.08]))), classes=10)


def needle(r):
    """One step far above, forgotten within some."""
    n = r.choice([1000, 2500])
    at, half = r.randrange(n // 3, n - 40), r.uniform(0.2, 0.7)
    height = r.uniform(4, 12)
    shape = [v + (height * half ** (i - at) if i >= at else 0.0) for i, v in enumerate(power(n, 6.9, 1.5))]
    return run(curve(noisy(r, shape, r.choice([0.02, 0.1]))))


def test_finds_the_sick():
    assert missed(LossSpike, lost, VARIANTS) == []
    assert (
        missed(LossSpike, needle, {name: change for name, change in VARIANTS.items() if change is not smoothed}) == []
    )


def test_says_what_is_lost():
    (finding,) = play(LossSpike, run(curve([*decay(200, 2.3, 0.5), 7.0, *[2.25] * 120])))
    assert finding.severity == "warning"
    assert finding.message == (
        "train_loss jumped from 0.5058 to 7 at step 201 and stayed near 2.25 for the remaining 121 points: "
        "103% of what it had learned is lost"
    )


def test_a_spike_that_is_over_is_a_hint():
    (finding,) = play(LossSpike, run(curve([*decay(200, 2.3, 0.5), 7.0, 3.0, *[0.5] * 120])))
    assert finding.severity == "hint"
    assert finding.message == "train_loss jumped from 0.5058 to 7 at step 201, and was back at 0.5 soon after"


def test_a_spike_of_a_loss_below_0_is_a_hint():
    values = [value - 40 for value in [*decay(300, 2.3, 0.5), 27.0, 3.0, *[0.5] * 120]]
    assert [finding.severity for finding in play(LossSpike, run(curve(values)))] == ["hint"]


def test_near_miss_a_term_that_is_switched_on_slowly():
    ramp = [0.5 + 1.8 * i / 40 for i in range(40)]
    assert play(LossSpike, run(curve([*decay(200, 2.3, 0.5), *ramp, *[2.3] * 120]))) == []


def test_near_miss_a_few_long_tailed_samples():
    import math
    import random

    r = random.Random(3)
    values = [math.exp(r.gauss(0, 1.5)) * value for value in decay(2000, 2.3, 0.5)]
    assert play(LossSpike, run(curve(values))) == []


def test_near_miss_the_healthy():
    assert alarms(LossSpike) == []
    assert play(LossSpike, CurvesUpdated()) == []


def test_near_miss_falls_again_or_loses_little():
    again = [*decay(200, 2.3, 0.5), *decay(200, 2.3, 0.6)]
    little = [*decay(200, 2.3, 0.5), *[0.9] * 200]
    for values in (again, little, again[:60]):
        assert play(LossSpike, run(curve(values))) == []


def test_near_miss_an_agent():
    values = [*decay(200, 2.3, 0.5), *[2.3] * 200]
    reward = curve([float(i) for i in range(400)], "reward", "ep_rew_mean")
    assert play(LossSpike, run(curve(values), reward)) == []
