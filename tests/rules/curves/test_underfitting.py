import math

from families import SAME, alarms, curve, decay, length, missed, noisy, run, validation

from flatline.events import CurvesUpdated
from flatline.rules.curves.underfitting import Underfitting
from flatline.testing import play


def underfit(r):
    n, classes = max(length(r), 300), r.choice([10, 100, 1000])
    chance = math.log(classes)
    shape = decay(n, chance, chance * r.uniform(0.65, 0.85), 20)
    points = r.choice([12, 20, 40])
    return run(
        curve(noisy(r, shape, relative=r.choice([0.01, 0.05]))),
        validation(r, shape, 0.002 * chance, points, gap=0.03),
        classes=classes,
    )


def test_finds_the_sick():
    assert len(missed(Underfitting, underfit, SAME)) <= 30  # of 200


def test_says_both_levels():
    shape = decay(400, 2.3026, 1.84, 20)
    val = curve([*decay(20, 2.1, 1.9, 20)], "val_loss", every=20, start=20)
    (finding,) = play(Underfitting, run(curve(shape), val, classes=10))
    assert finding.severity == "hint"
    assert finding.message == (
        "training and validation loss both stand still, at 1.84 and 1.9, since step 212: 80% of the 2.303 that guessing costs"
    )


def test_near_miss_the_healthy():
    assert alarms(Underfitting) == []
    assert play(Underfitting, CurvesUpdated()) == []


def test_near_miss_a_gap_or_a_fall():
    shape = curve(decay(400, 2.3026, 1.84, 20))
    gap = curve(decay(20, 2.6, 2.5, 20), "val_loss", every=20, start=20)
    falls = curve(decay(20, 2.3, 1.6, 1), "val_loss", every=20, start=20)
    assert play(Underfitting, run(shape, gap, classes=10)) == []
    assert play(Underfitting, run(shape, falls, classes=10)) == []
    assert play(Underfitting, run(shape, falls)) == []


def halves(level, val_level):
    train = curve(decay(400, 2.0, 1.84, 20))
    val = curve(decay(20, 2.0, 1.9, 20), "val_loss", every=20, start=20)
    right = curve([level + 0.01 * (i % 3) for i in range(400)], "train_accuracy")
    return run(
        train, val, right, curve([val_level + 0.01 * (i % 2) for i in range(20)], "val_accuracy", every=20, start=20)
    )


def test_says_both_accuracies_where_nobody_knows_the_classes():
    (finding,) = play(Underfitting, halves(0.42, 0.41))
    assert finding.message == "training and validation accuracy both stand still, at 43% and 42%, since step 212"


def test_near_miss_accuracies_that_are_high_or_apart():
    assert play(Underfitting, halves(0.7, 0.69)) == []
    assert play(Underfitting, halves(0.45, 0.3)) == []
