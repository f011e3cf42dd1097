import math
import random

from flatline.events import Curve, CurvesUpdated
from flatline.rules.vision.miou_zero import MiouZero
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
    return [finding.code for finding in play(MiouZero, CurvesUpdated(curves=curves))]


def lacks(*curves):
    return MiouZero().lacks(CurvesUpdated(curves=curves))


LOSS = [2 * math.exp(-i / 20) + 0.3 for i in range(90)]


def loss(values=LOSS):
    return curve("train_loss", noisy(values), "train_loss")


def test_fires():
    assert found(curve("val/mIoU", [0] * 8), loss()) == ["V5"]


def test_fires_on_nan():
    assert found(curve("val_mean_iou", [math.nan] * 8), loss()) == ["V5"]


def test_near_miss_small_and_growing():
    assert found(curve("mIoU", [0, 0, 0.01, 0.02, 0.05, 0.1]), loss()) == []


def test_near_miss_one_rare_class():
    assert found(curve("val/iou_pole", [0] * 8), loss()) == []


def test_near_miss_nothing_learned():
    assert found(curve("mIoU", [0] * 8), loss([2] * 90)) == []


def test_too_short_says_so():
    assert lacks(curve("mIoU", [0] * 2), loss()) == "too short: 2 points of the mean overlap, 5 are needed"
