import math
import random

from flatline.events import Curve, CurvesUpdated, PenaltySubtracted
from flatline.rules.llm.logit_drift import LogitDrift
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
    return [finding.code for finding in play(LogitDrift, CurvesUpdated(curves=curves))]


def lacks(*curves):
    return LogitDrift().lacks(CurvesUpdated(curves=curves))


GROWS = [10 + 2 * i for i in range(90)]
LOSS = [3 * math.exp(-i / 20) + 1 for i in range(90)]


def loss(values):
    return curve("train/loss", noisy(values), "train_loss")


def test_fires_as_advice():
    (finding,) = play(LogitDrift, CurvesUpdated(curves=(curve("train/log_z", noisy(GROWS, 1)), loss(LOSS))))
    assert (finding.code, finding.severity) == ("L6", "hint")


def test_fires_as_a_warning_when_the_loss_rises():
    worse = [value + max(0, i - 70) / 10 for i, value in enumerate(LOSS)]
    (finding,) = play(LogitDrift, CurvesUpdated(curves=(curve("max_logit", noisy(GROWS, 1)), loss(worse))))
    assert finding.severity == "warning"
    assert "the training loss rises" in finding.message


def test_fires_downwards():
    assert found(curve("logZ", noisy([-value for value in GROWS], 1))) == ["L6"]


def test_near_miss_levels_off():
    assert found(curve("log_z", noisy([200 * (1 - math.exp(-i / 20)) for i in range(90)], 1))) == []


def test_near_miss_far_from_zero():
    assert found(curve("log_z", noisy([-120] * 90, 1))) == []


def test_near_miss_small():
    assert found(curve("log_z", noisy([i / 10 for i in range(90)], 0.05))) == []


def test_too_short_says_so():
    assert lacks(curve("log_z", [1, 2])).startswith("too short: 2 points")
    assert lacks(loss(LOSS)) == "no normaliser or size of the logits was logged"


def test_fires_on_a_z_loss_of_the_wrong_sign():
    (finding,) = play(LogitDrift, PenaltySubtracted(kind="normaliser", tensors=1))
    assert finding.severity == "warning"
    assert finding.message.startswith("the loss subtracts the square of the softmax normaliser")


def test_near_miss_a_penalty_of_another_kind():
    assert play(LogitDrift, PenaltySubtracted(kind="weights", tensors=2)) == []


def test_near_miss_no_penalty():
    assert play(LogitDrift) == []
