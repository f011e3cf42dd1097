import math
import random

from flatline.events import Curve, CurvesUpdated
from flatline.rules.llm.preference_collapse import PreferenceCollapse
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
    return [finding.code for finding in play(PreferenceCollapse, CurvesUpdated(curves=curves))]


def lacks(*curves):
    return PreferenceCollapse().lacks(CurvesUpdated(curves=curves))


FALLS = [-80 - i for i in range(60)]
FLAT = [0.0] * 60


def preference(margin, chosen=FALLS, rejected=FALLS):
    return (
        curve("train/rewards/margins", noisy(margin, 0.05)),
        curve("train/logps/chosen", noisy(chosen, 3)),
        curve("train/logps/rejected", noisy(rejected, 3)),
    )


def test_fires():
    assert found(*preference(FLAT)) == ["L9"]


def test_near_miss_the_margin_grows():
    assert found(*preference([i / 60 for i in range(60)], rejected=[-80 - 2 * i for i in range(60)])) == []


def test_near_miss_a_small_beta():
    assert found(*preference([0.1 * i / 60 for i in range(60)], rejected=[-80 - 1.6 * i for i in range(60)])) == []


def test_near_miss_nothing_moves_yet():
    assert found(*preference(FLAT, [-80] * 60, [-81] * 60)) == []


def test_near_miss_only_rejected_falls():
    assert found(*preference(FLAT, [-80] * 60)) == []


def test_too_short_says_so():
    few = [each[:6] for each in (FLAT, FALLS, FALLS)]
    assert lacks(*preference(*few)) == "too short: 6 points of the margin of a preference, 16 are needed"
