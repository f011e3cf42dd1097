import math

import pytest

from flatline.events import ActivationsSampled, FirstCrossEntropy, LayerActivations, NumbersSampled, RunEnded
from flatline.rules.weights.initial_loss_off import InitialLossOff
from flatline.testing import play

SICK = {
    "classes": 10, "value": 30.0, "targets": 64, "spread": 12.0, "layer": "head", "gain": 8.0, "weight_std": 1.0,
    "fan_in": 64, "input_rms": 1.5,
}  # fmt: skip


def first(**facts):
    return FirstCrossEntropy(step=1, **{**SICK, **facts})


def test_fires_on_a_weight_drawn_with_deviation_one():
    scores = LayerActivations(layer="head", mean=-0.5, std=12.1)
    (finding,) = play(InitialLossOff, ActivationsSampled(untrained=True, layers=(scores,)), first())
    assert finding.severity == "warning"
    assert finding.message == (
        "the first cross entropy is 30, where 10 classes with equal scores give ln 10 = 2.3: "
        "the scores of a row have std 12 before the first step"
    )
    assert finding.cause == (
        "the weight of head has std 1 with 64 inputs, so its outputs are 8 times as large as its inputs; "
        "1/√64 = 0.12 keeps them"
    )
    assert finding.evidence["scores_mean"] == -0.5


def test_names_the_embedding_that_shares_the_weight():
    (finding,) = play(InitialLossOff, first(tied="tok"))
    assert "shared with the embedding tok" in finding.cause
    assert "tok" in finding.fix


def test_names_the_bias():
    (finding,) = play(InitialLossOff, first(gain=0.6, bias_std=11.0))
    assert finding.severity == "warning"
    assert "bias of head" in finding.cause


def test_hints_where_large_numbers_reach_the_layer():
    (finding,) = play(InitialLossOff, first(gain=0.58, input_rms=40.0))
    assert finding.severity == "hint"
    assert "rms 40" in finding.cause


def test_hints_where_it_is_mild():
    (finding,) = play(InitialLossOff, first(value=4.0, spread=2.0))
    assert finding.severity == "hint"


@pytest.mark.parametrize("value", [math.log(10), 2.4, 3.0, 0.1])
def test_near_miss_about_the_entropy_of_equal_scores(value):
    assert play(InitialLossOff, first(value=value, spread=1.2)) == []


def test_near_miss_confident_and_right_like_a_trained_network():
    assert play(InitialLossOff, first(value=0.4, spread=12.0)) == []


def test_near_miss_equal_scores():
    assert play(InitialLossOff, first(spread=0.3)) == []


def test_near_miss_few_targets():
    assert play(InitialLossOff, first(targets=4)) == []


@pytest.mark.parametrize("strange", [{"value": math.inf}, {"value": math.nan}, {"spread": math.nan}])
def test_near_miss_not_finite(strange):
    assert play(InitialLossOff, first(**strange)) == []


def test_near_miss_activations_alone():
    assert play(InitialLossOff, ActivationsSampled(untrained=True, layers=(LayerActivations(std=1e6),))) == []


HUGE = {"classes": 4, "value": 7e6, "spread": 4e6, "gain": 0.56, "input_rms": 9e6}


def ended(*, losses=(7e6, 3e5, 9e4), loss=6.6e4, first_loss=7e6, step=120):
    sampled = [NumbersSampled(step=at, loss=each) for at, each in enumerate(losses, 1)]
    return [*sampled, RunEnded(step=step, loss=loss, first_loss=first_loss)]


def loud(*events):
    return [finding for finding in play(InitialLossOff, *events) if finding.severity == "warning"]


def test_fires_where_it_never_came_down():
    scales = [LayerActivations(layer=f"l{i}", std=0.7 * 30.0**i, weighted=True) for i in range(4)]
    growing = ActivationsSampled(untrained=True, layers=tuple(scales))
    (finding,) = loud(growing, first(**HUGE), *ended())
    assert finding.message == (
        "the cross entropy began at 7e+06 and is still 6.6e+04 after 120 steps, never as low as ln 4 = 1.39, which equal "
        "scores for all 4 classes give"
    )
    assert finding.cause.endswith("outputs have std 0.7 at l0, 1.9e+04 at l3")


def test_fires_where_it_is_worse_than_guessing_for_long():
    (finding,) = loud(
        first(**{**HUGE, "value": 325.0}), *ended(losses=(325.0, 1.2), loss=2.2, first_loss=325.0, step=378)
    )
    assert "is still 2.2 after 378 steps, above ln 4 = 1.39" in finding.message
    assert loud(first(**{**HUGE, "value": 90.0}), *ended(losses=(90.0, 1.2), loss=2.2, first_loss=90.0, step=378)) == []


def test_near_miss_it_comes_down():
    assert loud(first(**HUGE), *ended(loss=1.1)) == []
    assert loud(first(**HUGE), *ended(losses=(7e6, 1.3, 9e4))) == []
    assert loud(first(**HUGE), *ended(loss=130.0)) == []


def test_near_miss_hardly_trained():
    assert loud(first(**HUGE), *ended(step=20)) == []
    assert loud(first(**HUGE), *ended(losses=())) == []
    assert loud(first(**HUGE), RunEnded(step=120)) == []


def test_near_miss_another_loss_at_the_end():
    assert loud(first(**HUGE), *ended(first_loss=2e7)) == []
    assert loud(first(**{**HUGE, "value": 1.4, "spread": 0.2}), *ended(first_loss=1.4)) == []


def test_names_the_factor_behind_the_layer():
    (finding,) = play(InitialLossOff, first(factor=40.0, gain=24.0))
    assert finding.severity == "warning"
    assert finding.cause == "what head gives is multiplied by 40 before the softmax"
    assert "leave that factor out" in finding.fix
    (finding,) = play(InitialLossOff, first(factor=40.0, gain=320.0))
    assert finding.cause.endswith("1/√64 = 0.12 keeps them, and they are multiplied by 40 besides")


def test_near_miss_a_factor_that_does_no_harm():
    """A temperature over numbers that are small: the scores are spread as usual."""
    assert play(InitialLossOff, first(factor=14.0, gain=8.0, value=2.5, spread=0.9)) == []
