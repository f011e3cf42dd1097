from families import VARIANTS, alarms, curve, decay, length, missed, noisy, run, validation

from flatline.events import CurvesUpdated
from flatline.rules.curves.overfitting import Overfitting
from flatline.testing import play


def crossover(r, slope=None):
    """Validation falls with training, turns and rises steadily."""
    n, at = max(length(r), 60), r.uniform(0.2, 0.6)
    train = decay(n, 2.3, 0.05, 5)
    slope = slope or r.uniform(0.5, 2.0)
    val = [0.4 + 1.9 * (1 - i / n / at) ** 2 * (i < at * n) + slope * max(0.0, i / n - at) for i in range(n)]
    points = r.choice([12, 20, 40, 100])
    return run(
        curve(noisy(r, train, relative=r.choice([0.02, 0.2]))), validation(r, val, r.choice([0.002, 0.01]), points)
    )


def in_epochs_beside_steps(r):
    """Training is logged over steps, validation over epochs."""
    event = crossover(r, 1.0)
    train, val = event.curves
    return run(train, curve(val.values, "val_loss"))


def test_finds_the_sick():
    assert missed(Overfitting, crossover, VARIANTS) == []
    assert missed(Overfitting, in_epochs_beside_steps, seeds=20) == []


def test_names_the_turn():
    train = curve(decay(2400, 2.3, 0.05, 5))
    val = curve(
        [1.1, 0.7, 0.5, 0.412, 0.43, 0.47, 0.52, 0.58, 0.62, 0.66, 0.688, 0.7], "val_loss", every=200, start=200
    )
    (finding,) = play(Overfitting, run(train, val))
    assert finding.severity == "warning"
    assert finding.message == (
        "validation loss turned at step 800 (0.43) and rose to 0.688 by step 2,400, "
        "while training loss fell from 0.46 to 0.08"
    ).replace("0.46 to 0.08", f"{finding.evidence['train_then']:.4g} to {finding.evidence['train_now']:.4g}")
    assert finding.evidence["turn"] == 800


def test_an_accuracy_that_improves_makes_it_a_hint():
    train = curve(decay(2400, 2.3, 0.05, 5))
    val = curve([1.1, 0.7, 0.5, 0.41, 0.43, 0.47, 0.52, 0.58, 0.62, 0.66, 0.688, 0.7], "val_loss", every=200, start=200)
    accuracy = curve([0.5 + 0.03 * i for i in range(12)], "val_accuracy", every=200, start=200)
    assert [finding.severity for finding in play(Overfitting, run(train, val, accuracy))] == ["hint"]


def test_a_rise_that_is_small_beside_what_was_learned_is_a_hint():
    train = curve(decay(2400, 2.3, 0.001, 8))
    val = curve([0.12, 0.07, 0.06, 0.062, 0.066, 0.071, 0.075, 0.08, 0.084, 0.088], "val_loss", every=240, start=240)
    assert [finding.severity for finding in play(Overfitting, run(train, val))] == ["hint"]


def test_near_miss_the_healthy():
    assert alarms(Overfitting) == []
    assert play(Overfitting, CurvesUpdated()) == []


def test_near_miss_both_rise_or_training_is_unknown():
    val = curve([1.1, 0.7, 0.5, 0.41, 0.43, 0.47, 0.52, 0.58, 0.62, 0.66, 0.688, 0.7], "val_loss", every=200, start=200)
    rises = curve([*decay(800, 2.3, 0.4), *[0.4 + 0.0003 * i for i in range(1600)]])
    assert play(Overfitting, run(rises, val)) == []
    assert play(Overfitting, run(val)) == []


def test_near_miss_few_validations_and_a_rise_that_is_over():
    train = curve(decay(2400, 2.3, 0.05, 5))
    few = curve([1.1, 0.5, 0.6, 0.7, 0.8], "val_loss", every=480, start=480)
    hump = curve([1.1, 0.7, 0.5, 0.6, 0.8, 0.9, 0.8, 0.6, 0.5, 0.45, 0.4, 0.4], "val_loss", every=200, start=200)
    assert play(Overfitting, run(train, few)) == []
    assert play(Overfitting, run(train, hump)) == []


def memorised_soon(r):
    """A few examples are known by heart after a tenth of the run; from then on nothing moves."""
    n = max(length(r), 300)
    points = r.choice([24, 40])
    rises = [min(1.0, (i + 1) / (0.2 * points)) for i in range(points)]
    val = [0.5 + 0.15 * x + r.gauss(0, 0.001) for x in rises]
    return run(
        curve([max(v, 1e-15) for v in noisy(r, decay(n, 0.5, 1e-9, 40), relative=0.2)]),
        curve(val, "val_loss", every=n / points, start=n / points),
    )


def test_finds_a_rise_that_was_over_soon():
    assert missed(Overfitting, memorised_soon) == []


def test_near_miss_one_lucky_validation():
    train = curve(decay(2400, 2.3, 0.05, 5))
    lucky = curve([0.4, *[0.6 + 0.001 * (i % 3) for i in range(23)]], "val_loss", every=100, start=100)
    assert play(Overfitting, run(train, lucky)) == []


def test_near_miss_a_settled_rise_that_comes_back():
    train = curve(decay(2400, 2.3, 0.05, 5))
    back = curve([0.5, 0.55, 0.6, *[0.65] * 12, *[0.52] * 9], "val_loss", every=100, start=100)
    assert play(Overfitting, run(train, back)) == []
