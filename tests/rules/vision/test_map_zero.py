import math
import random

from flatline.events import Curve, CurvesUpdated
from flatline.rules.vision.map_zero import MapZero
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
    return [finding.code for finding in play(MapZero, CurvesUpdated(curves=curves))]


def lacks(*curves):
    return MapZero().lacks(CurvesUpdated(curves=curves))


LOSS = [40 * math.exp(-i / 20) + 5 for i in range(90)]


def loss(values=LOSS):
    return curve("train/loss", noisy(values, 0.3), "train_loss")


def test_fires():
    assert found(curve("metrics/mAP50(B)", [0] * 15), curve("metrics/mAP50-95(B)", [0] * 15), loss()) == ["V3"]


def test_near_miss_first_epochs():
    assert found(curve("val/mAP", [0] * 6), loss()) == []


def test_near_miss_tiny():
    assert found(curve("bbox_mAP", [0] * 14 + [0.001]), loss()) == []


def test_near_miss_the_loss_stands_still():
    assert found(curve("val/map", [0] * 15), loss([40] * 90)) == []


def test_near_miss_another_metric_sees_boxes():
    assert found(curve("val/map_75", [0] * 15), curve("val/map_50", [0.01] * 15), loss()) == []


def test_too_short_says_so():
    assert lacks(curve("val/map", [0] * 3), loss()) == "too short: 3 points of the detection metric, 10 are needed"


def parts(*lasts):
    names = ("train/box_loss", "train/cls_loss", "train/dfl_loss")
    return [
        curve(n, noisy([4 * (x + (1 - x) * math.exp(-i / 8)) for i in range(60)]))
        for n, x in zip(names, lasts, strict=False)
    ]


def test_fires_where_only_parts_of_the_loss_were_logged():
    assert found(curve("metrics/mAP50(B)", [0] * 60), *parts(0.5, 0.3, 0.6), curve("val/box_loss", [4] * 60)) == ["V3"]
    assert lacks(curve("metrics/mAP50(B)", [0] * 60), *parts(0.5, 0.3)) == ""


def test_near_miss_parts_that_do_not_fall():
    assert found(curve("metrics/mAP50(B)", [0] * 60), *parts(0.5, 0.3, 1.0)) == []
    assert found(curve("metrics/mAP50(B)", [0] * 60), *parts(0.9, 0.8)) == []
