from families import HEALTHY, SAME, alarms, curve, decay, length, missed, noisy, run, validation

from flatline.events import CurvesUpdated
from flatline.rules.curves.grokking import Grokking
from flatline.testing import play


def waiting(r):
    """Known by heart, and nothing has generalised yet."""
    n = max(length(r), 120)
    train = decay(n, 4.6, 1e-4, r.choice([40, 80]))
    return run(curve(noisy(r, train, relative=0.2)), validation(r, [4.6] * n, 0.05, r.choice([20, 40])), classes=97)


def test_finds_the_sick():
    assert missed(Grokking, waiting, SAME) == []
    assert len(missed(Grokking, HEALTHY["late_generalisation"], SAME, seeds=20)) <= 5  # of 100: short and smoothed


def test_says_since_when():
    train, val = decay(1000, 4.6, 1e-4, 60), [4.6] * 35 + [4.0, 2.0, 0.4, 0.1, 0.05]
    (finding,) = play(Grokking, run(curve(train), curve(val, "val_loss", every=25, start=25)))
    assert finding.severity == "hint"
    assert finding.message == (
        "the training loss is under 5% of its first value since step 62, the validation loss followed only at step 950"
    )


def test_says_that_it_waits():
    train, val = decay(1000, 4.6, 1e-4, 60), [4.6] * 40
    (finding,) = play(Grokking, run(curve(train), curve(val, "val_loss", every=25, start=25)))
    assert finding.message.endswith("and the validation loss is 4.6, after 4.6 at its start")


def test_near_miss_the_healthy():
    assert [alarm for alarm in alarms(Grokking) if not alarm.startswith("late_generalisation")] == []
    assert play(Grokking, CurvesUpdated()) == []


def test_near_miss_validation_falls_along():
    train, val = decay(1000, 4.6, 1e-4, 60), decay(40, 4.6, 0.5, 60)
    assert play(Grokking, run(curve(train), curve(val, "val_loss", every=25, start=25))) == []


def test_near_miss_training_is_not_done():
    train, val = decay(1000, 4.6, 1.0, 60), [4.6] * 40
    assert play(Grokking, run(curve(train), curve(val, "val_loss", every=25, start=25))) == []
