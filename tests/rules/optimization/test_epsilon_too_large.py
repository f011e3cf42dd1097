from dataclasses import replace

import pytest

from flatline.events import (
    FirstCrossEntropy,
    LayerNumbers,
    LossesRead,
    NumbersSampled,
    OptimizerFacts,
    OptimizerStateSampled,
    ParameterFacts,
    ParametersAudited,
    RunEnded,
    Where,
)
from flatline.rules.optimization.epsilon_too_large import EpsilonTooLarge
from flatline.testing import play

ADAM = OptimizerFacts(name="Adam", adaptive=True, where=Where("train.py", 75))
STATE = OptimizerStateSampled(optimizer=ADAM, eps=1.0, state="float32")
GUESS = FirstCrossEntropy(classes=30, value=3.4)
ENDED = RunEnded(step=250, how="finished")


def steps(*, update=1.6e-5, gradient=8e-4, lr=2e-3, peak=2e-3, loss=3.381, rising=1.0, end=90, count=24):
    layer = LayerNumbers(update_ratio=update, gradient_rms=gradient, weight_rms=0.05, learning_rate=lr)
    return [
        NumbersSampled(
            step=at,
            index=at,
            lr=lr * rising**number,
            peak_lr=peak,
            layers=(layer,) * 3,
            loss=loss,
            first_loss=3.396,
            optimizer=ADAM,
        )
        for number, at in enumerate(range(end - count, end))
    ]


def test_fires_where_eps_is_far_above_the_gradients():
    (finding,) = play(EpsilonTooLarge, STATE, *steps())[:1]
    assert (finding.code, finding.severity, finding.step) == ("O29", "warning", 85)
    assert finding.where == Where("train.py", 75)
    assert finding.message == (
        "Adam divides by sqrt(v) + eps with eps=1, and the gradients are about 8.0e-04: its steps are 1,250 times too small; "
        "one changes the weights by 1.6e-05 of their size (healthy: about 1e-3), and the loss went from 3.396 to 3.381 in "
        "85 steps"
    )
    assert finding.fix == "eps=1e-8, the default, in place of 1; a larger rate only makes up for it"
    assert "O7" in finding.consequences


def test_fires_on_a_run_that_came_nowhere_from_guessing():
    (finding,) = play(EpsilonTooLarge, STATE, GUESS, *steps(update=1.5e-4, loss=3.0, end=240), ENDED)
    assert finding.step == 239


def read(losses):
    count = len(losses)
    return LossesRead(optimizer=ADAM, steps=tuple(range(count)), losses=tuple(losses), rates=(2e-3,) * count)


def test_fires_on_a_run_that_ends_while_it_is_as_fast_as_ever():
    falling = [3.396 * (1 - 0.25 * at / 240) for at in range(240)]
    told = (STATE, *steps(update=1.5e-4, loss=2.6, end=240), read(falling), ENDED)
    (finding,) = play(EpsilonTooLarge, *told)
    assert "from 3.396 to 2.6 in 239 steps" in finding.message


@pytest.mark.parametrize(
    "losses",
    [
        [3.396 - 0.8 * (1 - 0.97**at) for at in range(240)],  # at its floor
        [3.396 * (1 - 0.5 * at / 240) for at in range(240)],  # half of it is gone
    ],
)
def test_near_miss_a_run_that_came_down(losses):
    assert play(EpsilonTooLarge, STATE, *steps(update=1.5e-4, loss=losses[-1], end=240), read(losses), ENDED) == []


@pytest.mark.parametrize(
    "state",
    [
        replace(STATE, eps=1e-3),
        replace(STATE, eps=None),
        replace(STATE, stock=False),
        replace(STATE, optimizer=replace(ADAM, name="Adagrad")),
    ],
)
def test_near_miss_another_eps_or_arithmetic_that_is_not_known(state):
    assert play(EpsilonTooLarge, state, *steps()) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"update": 1e-3},  # a rate for this eps
        {"loss": 2.9},  # it learns
        {"end": 70},  # too early to say
        {"count": 12},  # few were looked at
        {"rising": 1.1},  # warm-up
        {"peak": 1.0},  # the end of a decay
        {"lr": 1e-7},  # the rate is to blame
        {"loss": 3.6},  # targets may grow
        {"gradient": 1e-9},  # the gradients are
        {"gradient": 0.1},  # as large as a tenth of it
    ],
)
def test_near_miss_steps_that_are_large_or_small_for_another_reason(changed):
    assert play(EpsilonTooLarge, STATE, *steps(**changed)) == []


@pytest.mark.parametrize(
    "told",
    [
        (GUESS, *steps(update=1.5e-4, loss=2.4, end=240), ENDED),
        (GUESS, *steps(update=1.5e-4, end=150), ENDED),
        (GUESS, *steps(update=1.5e-4, end=240), replace(ENDED, how="crashed")),
        (replace(GUESS, value=0.5), *steps(update=1.5e-4, end=240), ENDED),
        (*steps(update=1.5e-4, end=240), ENDED),  # a loss that need not fall, as of an agent
    ],
)
def test_near_miss_a_whole_run(told):
    assert play(EpsilonTooLarge, STATE, *told) == []


def test_near_miss_a_first_cross_entropy_of_a_trained_model():
    told = replace(GUESS, value=0.3)
    assert play(EpsilonTooLarge, STATE, told, *steps(update=1e-4, end=240), ENDED) == []


def test_near_miss_state_of_another_optimizer():
    other = replace(STATE, optimizer=replace(ADAM, key=7))
    assert play(EpsilonTooLarge, other, *steps()) == []


def test_near_miss_a_model_that_was_trained_before_stands_at_its_best():
    parts = [ParameterFacts(name=name, loaded=True, optimizers=(ADAM.key,)) for name in "ab"]
    assert play(EpsilonTooLarge, STATE, ParametersAudited(parameters=tuple(parts)), *steps()) == []
    headed = (*parts, ParameterFacts(name="head", optimizers=(ADAM.key,)))
    assert play(EpsilonTooLarge, STATE, ParametersAudited(parameters=headed), *steps())
