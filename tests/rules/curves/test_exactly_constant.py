from families import SAME, alarms, curve, decay, length, missed, run

from flatline.events import CurvesUpdated
from flatline.rules.curves.exactly_constant import ExactlyConstant
from flatline.testing import play


def constant(r):
    return run(curve([r.uniform(0.1, 9)] * length(r)))


def test_finds_the_sick():
    assert missed(ExactlyConstant, constant, SAME) == []


def test_says_the_value():
    (finding,) = play(ExactlyConstant, run(curve([2.302585] * 400)))
    assert finding.severity == "error"
    assert finding.message == (
        "train_loss is 2.302585 at all 400 points, from step 1 to step 400: "
        "not even the noise of different batches shows"
    )


def test_near_miss_the_healthy():
    assert alarms(ExactlyConstant) == []


def test_near_miss_rounded_zero_or_few():
    assert play(ExactlyConstant, run(curve([0.6931] * 400))) == []
    assert play(ExactlyConstant, run(curve([0.0] * 400))) == []
    assert play(ExactlyConstant, run(curve([2.302585] * 10))) == []
    assert play(ExactlyConstant, CurvesUpdated()) == []


def test_near_miss_only_the_median_of_each_stretch_is_constant():
    from dataclasses import replace

    flat = curve([2.302585] * 400)
    moved = replace(flat, lows=(2.1,) * 400, highs=(2.5,) * 400)
    assert play(ExactlyConstant, run(moved)) == []
    assert play(ExactlyConstant, run(curve([*decay(30, 2.3, 1.0), *[1.0123456] * 300]))) == []


def test_says_that_validation_never_sees_other_weights():
    train = curve([2.3 + 0.01 * (i % 7) for i in range(400)])
    (finding,) = play(ExactlyConstant, run(train, curve([2.30271] * 10, "val_loss", every=40, start=40)))
    assert finding.severity == "warning"
    assert finding.message.startswith("val_loss is 2.30271 at all 10 validations, from step 40 to step 400")


def test_near_miss_a_row_repeats_the_last_validation():
    train = curve([2.3 + 0.01 * (i % 7) for i in range(400)])
    assert play(ExactlyConstant, run(train, curve([2.30271] * 400, "val_loss"))) == []


def test_near_miss_few_or_rounded_validations():
    train = curve([2.3 + 0.01 * (i % 7) for i in range(400)])
    assert play(ExactlyConstant, run(train, curve([2.30271] * 6, "val_loss", every=40, start=40))) == []
    assert play(ExactlyConstant, run(train, curve([2.303] * 10, "val_loss", every=40, start=40))) == []
