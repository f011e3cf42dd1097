import math
import random

from flatline.events import Curve, CurvesUpdated
from flatline.rules.vision.majority_only import MajorityOnly
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
    return [finding.code for finding in play(MajorityOnly, CurvesUpdated(curves=curves))]


def lacks(*curves):
    return MajorityOnly().lacks(CurvesUpdated(curves=curves))


def accuracy(values):
    return curve("val/accuracy", values, "val_accuracy")


def test_fires_on_an_f1_of_zero():
    assert found(accuracy([0.93] * 12), curve("val/f1", [0] * 12)) == ["V6"]


def test_fires_on_balanced_accuracy():
    assert found(accuracy([93] * 12), curve("val/balanced_accuracy", [0.25] * 12)) == ["V6"]


def test_near_miss_it_rises():
    assert found(accuracy([0.93] * 12), curve("val/f1", [0] * 9 + [0.1, 0.2, 0.3])) == []


def test_near_miss_near_one_half_but_it_moves():
    assert found(accuracy([0.93] * 12), curve("balanced_accuracy", noisy([0.5] * 12, 0.004))) == []


def test_near_miss_accuracy_is_low():
    assert found(accuracy([0.3] * 12), curve("val/f1", [0] * 12)) == []


def test_near_miss_first_validations():
    assert found(accuracy([0.93] * 4), curve("val/recall", [0] * 4)) == []


def test_too_short_says_so():
    assert lacks(accuracy([0.9] * 9), curve("val/f1", [0] * 4)).startswith("too short: 4 points of the F1")
    assert lacks(curve("val/f1", [0] * 9)) == "no accuracy was logged"
