import math

from families import SAME, alarms, curve, decay, length, missed, noisy, run, validation

from flatline.events import CurvesUpdated
from flatline.rules.curves.double_descent import DoubleDescent
from flatline.testing import play


def hump(r):
    n, at, height = max(length(r), 120), r.uniform(0.4, 0.6), r.uniform(0.6, 1.2)
    val = [v + height * math.exp(-(((i / n - at) / 0.12) ** 2)) for i, v in enumerate(decay(n, 2.3, 0.6, 9))]
    train = decay(n, 2.3, 0.01, 6)
    return run(
        curve(noisy(r, train, relative=0.1)), validation(r, val, 0.01, r.choice([20, 40, 100]), gap=0.0), classes=10
    )


def test_finds_the_sick():
    assert missed(DoubleDescent, hump, SAME) == []


def test_says_where():
    low = [2.0, 1.4, 1.0, 0.8, 0.9, 1.1, 1.3, 1.5, 1.6, 1.5, 1.3, 1.1, 0.9, 0.7, 0.6, 0.6]
    (finding,) = play(DoubleDescent, run(curve(decay(320, 2.3, 0.01)), curve(low, "val_loss", every=20, start=20)))
    assert finding.severity == "hint"
    assert finding.message == (
        "validation loss fell to 0.9 (step 80), rose to 1.5 (step 200) and fell again to 0.6, while training loss only fell"
    )


def test_near_miss_the_healthy():
    assert alarms(DoubleDescent) == []
    assert play(DoubleDescent, CurvesUpdated()) == []


def test_near_miss_a_hump_in_both_or_one_that_stays():
    low = [2.0, 1.4, 1.0, 0.8, 0.9, 1.1, 1.3, 1.5, 1.6, 1.5, 1.3, 1.1, 0.9, 0.7, 0.6, 0.6]
    both = [value for value in low for _ in range(20)]
    stays = [*low[:9], 1.6, 1.65, 1.6, 1.7, 1.65, 1.7, 1.7]
    assert play(DoubleDescent, run(curve(both), curve(low, "val_loss", every=20, start=20))) == []
    assert play(DoubleDescent, run(curve(decay(320, 2.3, 0.01)), curve(stays, "val_loss", every=20, start=20))) == []
