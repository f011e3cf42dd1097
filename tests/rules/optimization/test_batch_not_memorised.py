import math
from dataclasses import replace

import pytest

from flatline.events import OneBatchTrained
from flatline.rules.optimization.batch_not_memorised import BatchNotMemorised, failure, memorised
from flatline.testing import play


def trained(loss, steps=200, rate=0.01, weights=5000):
    return OneBatchTrained(
        step=steps, losses=tuple(loss(at / (steps - 1)) for at in range(steps)), rate=rate, weights=weights, targets=32
    )


def test_fires_where_the_loss_stays():
    (finding,) = play(BatchNotMemorised, trained(lambda t: 2.303 - 0.01 * min(t, 0.1)))
    assert (finding.code, finding.severity) == ("O1", "error")
    assert finding.message == (
        "one batch cannot be learned by heart: in 200 steps on it, at lr=0.01, the loss stays at 2.302, from 2.303 at the start"
    )


def test_fires_where_it_rises_or_ends():
    (finding,) = play(BatchNotMemorised, trained(lambda t: 1 + 5 * t))
    assert "rises from 1 to 5." in finding.message
    (finding,) = play(BatchNotMemorised, trained(lambda t: 1.0 if t < 0.1 else math.nan))
    assert "the loss is nan after 21 steps" in finding.message


@pytest.mark.parametrize(
    "loss",
    [
        lambda t: 2.3 * math.exp(-9 * t),  # gone
        lambda t: 2.3 * math.exp(-1 * t),  # on its way
        lambda t: 2.3 - 0.03 * t,  # slow, and steady: a low rate
        lambda t: 0.9 + 1.4 * math.exp(-30 * t),  # a model that is too small
        lambda t: 0.009,  # gone from the start
    ],
)
def test_near_miss_healthy(loss):
    assert play(BatchNotMemorised, trained(loss)) == []


def test_near_miss_too_few_steps():
    assert play(BatchNotMemorised, trained(lambda t: 2.3, steps=99)) == []


def test_near_miss_no_steps_and_a_loss_below_zero():
    assert play(BatchNotMemorised, OneBatchTrained()) == []
    assert play(BatchNotMemorised, trained(lambda t: -5.0)) == []


def test_memorised():
    assert memorised([2.0, 1.0, *[0.019] * 5])
    assert not memorised([2.0, 1.0, *[0.03] * 5])
    assert not memorised([])


def test_fires_where_next_to_nothing_trains():
    stays = replace(trained(lambda t: 1.817 - 0.006 * t, weights=8), frozen=48_678, guessing=1.79)
    (finding,) = play(BatchNotMemorised, stays)
    assert finding.cause.startswith("only 8 of 48,686 weights train")
    assert "most often the head" in finding.fix


def test_near_miss_a_few_weights_that_learn_or_that_are_all_there_is():
    learns = replace(trained(lambda t: 1.817 - 0.5 * t, weights=8), frozen=48_678, guessing=1.79)
    assert play(BatchNotMemorised, learns) == []
    assert play(BatchNotMemorised, replace(trained(lambda t: 1.8, weights=8), frozen=40, guessing=1.79)) == []
    tuned = replace(trained(lambda t: 0.5, weights=1), frozen=11_608, guessing=1.79)  # a temperature
    assert play(BatchNotMemorised, tuned) == []
    assert play(BatchNotMemorised, replace(tuned, guessing=None)) == []


def test_near_miss_few_weights_for_the_batch():
    assert play(BatchNotMemorised, trained(lambda t: 0.693 - 0.006 * min(t, 0.1), weights=20)) == []


def test_near_miss_a_bound_below():
    assert play(BatchNotMemorised, trained(lambda t: 0.696 - 0.0254 * min(1, 10 * t))) == []


@pytest.mark.parametrize(
    ("losses", "kind"),
    [
        ([1.0 / (1 + 0.01 * step) for step in range(200)], "falling"),
        ([1.117, *(3.0 - step * 1e-3 for step in range(1000))], "rising"),
        ([1.0, *[0.5] * 300], "plateau"),
        ([1.0, *[0.999] * 300], "stuck"),
        ([2.0, *[0.9, 1.3] * 150], "swinging"),
        ([2.0, *[0.9, 0.91] * 150], "plateau"),
        ([2.0, 1.0, math.inf, 1.0], "not finite"),
    ],
)
def test_kinds_of_failure(losses, kind):
    assert failure(losses) == kind
