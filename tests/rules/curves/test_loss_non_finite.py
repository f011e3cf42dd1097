import math

from families import SAME, alarms, curve, decay, length, missed, noisy, run

from flatline.events import CurvesUpdated
from flatline.rules.curves.loss_non_finite import LossNonFinite
from flatline.testing import play

NAN, INF = math.nan, math.inf


def broken(r):
    n = length(r)
    at = r.randrange(n // 3, n)
    values = noisy(r, decay(n, 2.3, 0.5), 0.05)
    return run(curve([v if i < at else r.choice([NAN, NAN, INF]) for i, v in enumerate(values)]), classes=10)


def hidden(r):
    """As the Hugging Face Trainer logs it."""
    n = max(length(r), 12)
    at = r.randrange(n // 3, n - 4)
    values = noisy(r, decay(n, 2.3, 0.5), 0.05)
    return run(
        curve([v if i < at else 0.0 for i, v in enumerate(values)]),
        curve([1.0 if i < at else NAN for i in range(n)], "gradient_norm"),
    )


def test_finds_the_sick():
    variants = {name: change for name, change in SAME.items() if name != "ema"}
    assert missed(LossNonFinite, broken, variants) == []
    assert missed(LossNonFinite, hidden, variants) == []


def test_names_the_last_finite_loss():
    (finding,) = play(LossNonFinite, run(curve([2.3, 1.9, 1.7, NAN, NAN], every=10, start=10)))
    assert finding.severity == "error"
    assert finding.message == (
        "train_loss is not finite from step 40 on (2 points); the last finite one was 1.7 at step 30"
    )


def test_names_the_hidden_form():
    event = run(curve([2.3, 1.9, 0.0, 0.0, 0.0]), curve([1.0, 9.0, NAN, NAN, NAN], "gradient_norm"))
    (finding,) = play(LossNonFinite, event)
    assert finding.severity == "error"
    assert finding.message == "train_loss is exactly 0 from step 3 on, after 1.9, and the gradient norm there is nan"


def test_never_finite():
    (finding,) = play(LossNonFinite, run(curve([NAN] * 30)))
    assert finding.message == "train_loss was never finite: nan or inf at all 30 points, from step 1 on"


def test_only_the_validation_loss_is_a_warning():
    event = run(curve(decay(50, 2.3, 1.0)), curve([2.3, 2.0, NAN, NAN, NAN], "val_loss", every=10))
    assert [finding.severity for finding in play(LossNonFinite, event)] == ["warning"]


def test_near_miss_the_healthy():
    assert alarms(LossNonFinite) == []
    assert play(LossNonFinite, CurvesUpdated()) == []


def test_near_miss_a_placeholder_and_a_column_with_holes():
    assert play(LossNonFinite, run(curve([NAN, NAN, *decay(50, 2.3, 1.0)]))) == []
    assert play(LossNonFinite, run(curve([v for value in decay(50, 2.3, 1.0) for v in (NAN, NAN, value, NAN)]))) == []
    assert play(LossNonFinite, run(curve([NAN] * 40, "val_loss"), curve(decay(40, 2.3, 1.0)))) == []


def test_near_miss_one_loss_that_was_skipped():
    values = decay(100, 2.3, 1.0)
    assert play(LossNonFinite, run(curve([*values[:50], INF, *values[50:]]))) == []


def test_near_miss_zeros_with_a_finite_gradient():
    assert play(LossNonFinite, run(curve([0.0] * 50), curve([0.3] * 50, "gradient_norm"))) == []
    assert play(LossNonFinite, run(curve([0.0] * 50), curve([NAN] * 3 + [0.2] * 47, "gradient_norm"))) == []
