import math

from families import SAME, alarms, curve, decay, length, missed, noisy, run, validation

from flatline.events import CurvesUpdated
from flatline.rules.curves.stuck_at_chance import StuckAtChance
from flatline.testing import play


def stuck(r):
    """At ln C with a validation loss beside it, perhaps after a first fall from a bad initial loss."""
    n, classes = max(length(r), 120), r.choice([2, 10, 100, 1000])
    chance = math.log(classes)
    shape = decay(n, chance * r.choice([1.0, 1.005, 1.5]), chance, 40)
    return run(
        curve(noisy(r, shape, relative=r.choice([0.003, 0.02]))),
        validation(r, shape, 0.001 * chance, gap=0.0),
        classes=classes,
    )


def stuck_with_accuracy(r):
    """The number of classes is not known, but the accuracy is that of a guess."""
    n, classes = max(length(r), 120), r.choice([2, 5, 10])
    loss = noisy(r, [math.log(classes)] * n, relative=0.01)
    accuracy = [(1 / classes + r.gauss(0, 0.02)) * r.choice([1]) for _ in range(n)]
    return run(curve(loss), curve(accuracy, "train_accuracy"))


def test_finds_the_sick():
    assert missed(StuckAtChance, stuck, SAME) == []
    assert missed(StuckAtChance, stuck_with_accuracy, SAME) == []


def test_says_what_chance_is():
    event = run(curve([2.3026] * 300), curve([2.3027] * 4, "val_loss", every=75, start=75), classes=10)
    (finding,) = play(StuckAtChance, event)
    assert finding.severity == "warning"
    assert finding.message == (
        "train_loss stayed at 2.303 from step 1 to step 300: that is ln 10 = 2.303, the loss of guessing among 10 classes; "
        "the validation loss is 2.303"
    )


def test_near_miss_the_healthy():
    waits = ("plateau_then_fall", "stopped")  # at chance for as long as it was seen
    assert [alarm for alarm in alarms(StuckAtChance) if not all(word in alarm for word in waits)] == []
    assert play(StuckAtChance, CurvesUpdated()) == []


def test_near_miss_unknown_classes_and_the_beginning_of_a_run():
    assert play(StuckAtChance, run(curve([2.3026] * 3000))) == []
    assert play(StuckAtChance, run(curve([2.3026] * 300), classes=10)) == []


def test_near_miss_slow_but_falling_or_warming():
    slow = [2.3026 - 0.0001 * i for i in range(1500)]
    assert play(StuckAtChance, run(curve(slow), classes=10)) == []
    rising = curve([1e-6 * i for i in range(3000)], "learning_rate")
    assert play(StuckAtChance, run(curve([2.3026] * 3000), rising, classes=10)) == []


def stuck_with_small_batches(r):
    """Batches of 32: an accuracy is 0, 1/32, 2/32, …, and their median is not their mean."""
    n, classes = max(length(r), 300), r.choice([4, 10, 26, 100])
    loss = noisy(r, [math.log(classes)] * n, relative=0.01)
    right = [sum(r.random() < 1 / classes for _ in range(32)) / 32 for _ in range(n)]
    return run(curve(loss), curve(right, "train_accuracy"))


def test_finds_the_sick_in_small_batches():
    assert len(missed(StuckAtChance, stuck_with_small_batches, SAME)) <= 20  # of 200


def test_near_miss_loss_of_guessing_with_another_accuracy():
    loss = curve([2.3026] * 300)
    assert play(StuckAtChance, run(loss, curve([0.3] * 300, "train_accuracy"))) == []
    assert play(StuckAtChance, run(curve([1.95] * 300), curve([0.1] * 300, "train_accuracy"))) == []
