import math

from families import SAME, alarms, curve, decay, length, missed, noisy, run

from flatline.events import CurvesUpdated
from flatline.rules.curves.plateau_too_high import PlateauTooHigh
from flatline.testing import play


def plateau(r):
    n, classes = max(length(r), 300), r.choice([10, 100, 1000])
    chance = math.log(classes)
    shape = decay(n, chance, chance * r.uniform(0.65, 0.85), 20)
    return run(curve(noisy(r, shape, relative=r.choice([0.01, 0.05]))), classes=classes)


def test_finds_the_sick():
    assert len(missed(PlateauTooHigh, plateau, SAME)) <= 20  # of 200


def test_says_the_share_of_chance():
    (finding,) = play(PlateauTooHigh, run(curve(decay(400, 2.3026, 1.84, 20)), classes=10))
    assert finding.severity == "hint"
    assert (
        finding.message
        == "train_loss stands at 1.84 since step 212, 80% of the 2.303 that guessing among 10 classes costs"
    )


def test_near_miss_the_healthy():
    assert alarms(PlateauTooHigh) == []
    assert play(PlateauTooHigh, CurvesUpdated()) == []


def test_near_miss_classes_unknown_still_falling_or_lower():
    assert play(PlateauTooHigh, run(curve(decay(400, 2.3026, 1.84, 20)))) == []
    assert play(PlateauTooHigh, run(curve(decay(400, 2.3026, 1.5, 1.5)), classes=10)) == []
    assert play(PlateauTooHigh, run(curve(decay(400, 2.3026, 0.9, 20)), classes=10)) == []


def test_classes_are_shown_by_where_loss_and_accuracy_begin():
    shape = curve(decay(400, 2.3026, 1.84, 20))
    guesses = curve([min(0.35, 0.1 + 0.002 * i) for i in range(400)], "train_accuracy")
    (finding,) = play(PlateauTooHigh, run(shape, guesses))
    assert "that guessing among about 10 classes costs" in finding.message


def test_near_miss_an_accuracy_that_begins_elsewhere():
    shape = curve(decay(400, 2.3026, 1.84, 20))
    assert play(PlateauTooHigh, run(shape, curve([0.4] * 400, "train_accuracy"))) == []
    assert play(PlateauTooHigh, run(shape)) == []
