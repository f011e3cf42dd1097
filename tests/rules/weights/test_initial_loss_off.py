import math

import pytest

from flatline.events import ActivationsSampled, FirstCrossEntropy, LayerActivations
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
