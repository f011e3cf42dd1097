from dataclasses import replace

import pytest

from flatline.events import (
    ActivationsSampled,
    FirstCrossEntropy,
    LayerActivations,
    LayerNumbers,
    LossComputed,
    LossesRead,
    NumbersSampled,
    OptimizerFacts,
    RunEnded,
    TargetFacts,
)
from flatline.rules.weights.activation_scale_with_depth import ActivationScaleWithDepth
from flatline.testing import play

GROWING = [5.0 * 4.0**i for i in range(9)]
SHRINKING = [0.1 * 0.1**i for i in range(9)]
STUCK = RunEnded(step=60, loss=1.03, first_loss=1.1)


def sampled(stds, gain=5.6, step=1, kind="Linear", untrained=True, signals=None):
    layers = [
        LayerActivations(layer=f"net.{i}", kind=kind, std=std, signal=signal, weighted=True, gain=gain, fan_in=32)
        for i, (std, signal) in enumerate(zip(stds, signals or stds, strict=True))
    ]
    relus = [LayerActivations(layer=f"act.{i}", kind="ReLU", std=1.0, zeros=0.5) for i in range(len(stds))]
    mixed = tuple(layer for pair in zip(layers, relus, strict=True) for layer in pair)
    return ActivationsSampled(step=step, untrained=untrained, layers=mixed)


def shrunk(*, later=SHRINKING, **facts):
    first = sampled(SHRINKING, gain=0.06, **facts)
    return [first, *(sampled(later, gain=None, step=step, untrained=False) for step in (2, 3, 4, 5, 12))]


def test_fires_where_activations_grow():
    (finding,) = play(ActivationScaleWithDepth, sampled(GROWING))
    assert finding.severity == "warning"
    assert finding.message == (
        "before the first step the activations grow 4 × per layer: std 5 at net.0, 3.3e+05 at net.8, over 9 Linear layers"
    )
    assert "rms of about 0.99 with 32 inputs" in finding.cause
    assert "√(2/32) = 0.25" in finding.cause


def test_fires_where_activations_shrink_and_nothing_is_learned():
    (finding,) = play(ActivationScaleWithDepth, *shrunk(), STUCK)
    assert finding.message.startswith("before the first step the activations shrink 0.1 × per layer")
    assert finding.message.endswith("the loss has not fallen")


def test_fires_under_a_head_that_was_built_otherwise():
    head = [*SHRINKING, 0.03]
    later = [sampled(head, gain=None, step=step, untrained=False) for step in (2, 3, 4, 5, 12)]
    (finding,) = play(ActivationScaleWithDepth, sampled(head, gain=0.06), *later, STUCK)
    assert "0.1 × per layer" in finding.message


@pytest.mark.parametrize("kind", ["Conv1d", "Conv2d"])
def test_fires_on_convolutions(kind):
    assert len(play(ActivationScaleWithDepth, sampled(GROWING, kind=kind))) == 1


def test_near_miss_few_layers():
    assert play(ActivationScaleWithDepth, sampled([10.0**i for i in range(5)])) == []


def test_near_miss_default_initialisation_without_biases():
    assert play(ActivationScaleWithDepth, sampled([0.41**i for i in range(14)], gain=0.58), STUCK) == []


def test_near_miss_residual_growth():
    assert play(ActivationScaleWithDepth, sampled([1.4**i for i in range(12)], gain=1.4)) == []


def test_fires_on_residual_growth_of_a_deep_network():
    (finding,) = play(ActivationScaleWithDepth, sampled([0.9 * 1.5**i for i in range(32)], gain=1.7))
    assert finding.message.startswith("before the first step the activations grow 1.5 × per layer")
    assert "nothing normalises them" in finding.cause
    assert "begin the last layer of each block at 0" in finding.fix


def blocks(count, growth, inner, gain=1.4):
    layers = []
    for at in range(count):
        for name, size in (("a", 1.0), ("b", inner)):
            std = size * growth**at
            layers.append(LayerActivations(layer=f"blocks.{at}.{name}", kind="Linear", std=std, gain=gain, fan_in=64))
    return ActivationsSampled(step=1, untrained=True, layers=tuple(layers))


def test_fires_on_layers_of_one_place_in_every_block():
    (finding,) = play(ActivationScaleWithDepth, blocks(16, 2.2, 0.3))
    assert "over 16 Linear layers" in finding.message


def test_near_miss_blocks_that_grow_a_little_or_are_few():
    assert play(ActivationScaleWithDepth, blocks(16, 1.5, 0.3)) == []
    assert play(ActivationScaleWithDepth, blocks(11, 2.5, 0.3)) == []
    assert play(ActivationScaleWithDepth, blocks(16, 2.2, 0.3, gain=0.9)) == []


def test_near_miss_one_jump():
    assert play(ActivationScaleWithDepth, sampled([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1e5])) == []


def test_near_miss_towers_beside_each_other():
    assert play(ActivationScaleWithDepth, sampled([1.0, 30.0, 900.0, 2.0, 60.0, 1800.0, 4.0, 120.0, 3600.0])) == []


def test_near_miss_large_inputs_that_shrink_to_an_ordinary_size():
    stds = [3e3 * 0.3**i for i in range(8)]
    assert play(ActivationScaleWithDepth, sampled(stds, gain=0.3), sampled(stds, step=9, untrained=False), STUCK) == []


def test_near_miss_trained_or_loaded():
    assert play(ActivationScaleWithDepth, sampled(GROWING, untrained=False)) == []
    assert play(ActivationScaleWithDepth, sampled(GROWING, gain=None)) == []


def test_near_miss_zero_initialised():
    assert play(ActivationScaleWithDepth, sampled([0.0] * 9)) == []


def test_near_miss_shrunk_but_recovers():
    recovered = [0.1 * 0.5**i for i in range(9)]
    assert play(ActivationScaleWithDepth, *shrunk(later=recovered), STUCK) == []


def test_fires_where_samples_differ_by_rounding_alone():
    later = [0.1 * 0.5**i for i in range(9)]  # biases have grown
    noise = [3e-10] * 9
    looks = [sampled(later, gain=None, step=step, untrained=False, signals=noise) for step in range(2, 12)]
    assert len(play(ActivationScaleWithDepth, sampled(SHRINKING, gain=0.06, signals=[1e-12] * 9), *looks, STUCK)) == 1
    looks = [sampled(later, gain=None, step=step, untrained=False, signals=[0.0] * 9) for step in range(2, 12)]
    assert len(play(ActivationScaleWithDepth, sampled(SHRINKING, gain=0.06), *looks, STUCK)) == 1


def test_near_miss_shrunk_and_no_longer_known():
    other = ActivationsSampled(step=7, untrained=False)
    assert play(ActivationScaleWithDepth, *shrunk(), other, STUCK) == []


def test_near_miss_shrunk_but_learns():
    assert play(ActivationScaleWithDepth, *shrunk(), RunEnded(step=60, loss=0.4, first_loss=1.1)) == []


def test_near_miss_shrunk_and_hardly_trained():
    first, second, *_ = shrunk()
    assert play(ActivationScaleWithDepth, first, second, STUCK) == []
    assert play(ActivationScaleWithDepth, *shrunk(), RunEnded(step=60)) == []


def losses_of(*losses):
    return [NumbersSampled(step=index, index=index, loss=loss) for index, loss in enumerate(losses, 1)]


def test_shrunk_and_a_last_batch_that_is_easy_by_chance():
    noisy = losses_of(*[1.0, 1.1, 1.05] * 10)
    (finding,) = play(ActivationScaleWithDepth, *shrunk(), *noisy, RunEnded(step=60, loss=0.7, first_loss=1.0))
    assert "shrink" in finding.message


def test_near_miss_losses_that_fell_and_a_last_batch_that_is_hard():
    fallen = losses_of(*[1.0] * 8, *[0.4] * 20)
    assert play(ActivationScaleWithDepth, *shrunk(), *fallen, RunEnded(step=60, loss=1.0, first_loss=1.0)) == []


def test_near_miss_few_losses_and_the_last_one_fell():
    few = losses_of(1.0, 1.0, 0.5)
    assert play(ActivationScaleWithDepth, *shrunk(), *few, RunEnded(step=60, loss=0.5, first_loss=1.0)) == []


MILD = [1.65**i for i in range(13)]  # 400 times
OFF = FirstCrossEntropy(classes=5, value=702.0, targets=64, spread=605.0, layer="net.12", gain=2.3, input_rms=227.0)


def test_fires_where_growth_shows_in_the_first_loss():
    (finding,) = play(ActivationScaleWithDepth, sampled(MILD, gain=2.4), OFF)
    assert (finding.code, finding.severity) == ("W3", "warning")
    assert finding.message.startswith("before the first step the activations grow 1.6 × per layer: std 1 at net.0")
    assert finding.message.endswith("the first cross entropy is 702, and ln 5 is 1.61")


def test_fires_under_a_head_of_another_scale():
    (finding,) = play(ActivationScaleWithDepth, sampled([*MILD[:-1], 30.0], gain=2.4), OFF)
    assert finding.evidence["last"] == MILD[-2]


def test_near_miss_a_first_loss_in_order():
    assert play(ActivationScaleWithDepth, sampled(MILD, gain=2.4)) == []
    assert play(ActivationScaleWithDepth, sampled(MILD, gain=2.4), replace(OFF, value=9.0)) == []


def test_near_miss_a_last_layer_whose_own_doing_it_is():
    assert play(ActivationScaleWithDepth, sampled(MILD, gain=2.4), replace(OFF, input_rms=1.0)) == []
    assert play(ActivationScaleWithDepth, sampled(MILD, gain=2.4), replace(OFF, layer="other.12")) == []


def test_near_miss_growth_that_is_not_the_weights():
    assert play(ActivationScaleWithDepth, sampled(MILD, gain=1.4), OFF) == []
    assert play(ActivationScaleWithDepth, sampled([1.3**i for i in range(13)], gain=2.4), OFF) == []


def regression(loss=1.1e5, low=-1.8, high=3.1, kind="mse_loss", step=1):
    target = TargetFacts(low=low, high=high, total=60)
    yield sampled(MILD, gain=2.4)
    yield LossComputed(step=step, kind=kind, target=target)
    yield NumbersSampled(step=step, index=step, loss=loss, first_loss=loss)


def test_fires_where_growth_shows_in_the_first_error_of_a_regression():
    (finding,) = play(ActivationScaleWithDepth, *regression())
    assert finding.message.endswith("the first mean square error is 1.1e+05, and no target is larger than 3.1")


def test_near_miss_regressions():
    assert play(ActivationScaleWithDepth, *regression(loss=40.0)) == []
    assert play(ActivationScaleWithDepth, *regression(low=0.0, high=300.0)) == []  # targets are as large
    assert play(ActivationScaleWithDepth, *regression(loss=30.0, kind="l1_loss")) == []
    assert play(ActivationScaleWithDepth, *regression(kind="poisson_nll_loss")) == []
    assert play(ActivationScaleWithDepth, *regression(step=2)) == []


@pytest.mark.parametrize("kind", ["l1_loss", "smooth_l1_loss", "huber_loss"])
def test_fires_where_growth_shows_in_another_error(kind):
    (finding,) = play(ActivationScaleWithDepth, *regression(loss=32.0, kind=kind))
    assert finding.message.endswith("the first error is 32, and no target is larger than 3.1")


def message_passing(stds, loss=1.7e9):
    """Two layers in each block, of which one is summed over neighbours."""
    layers = [
        LayerActivations(layer=f"convs.{i}.{name}", kind="Linear", std=std * more, weighted=True, gain=1.4, fan_in=48)
        for i, std in enumerate(stds)
        for name, more in (("own", 1.0), ("near", 0.2))
    ]
    yield ActivationsSampled(step=1, untrained=True, layers=tuple(layers))
    yield LossComputed(step=1, kind="mse_loss", target=TargetFacts(low=-1.8, high=2.5, total=60))
    yield NumbersSampled(step=1, index=1, loss=loss, first_loss=loss)


def test_fires_where_what_lies_between_the_layers_multiplies():
    (finding,) = play(ActivationScaleWithDepth, *message_passing([5.0**i for i in range(8)]))
    assert "std 1 at convs.0.own, 7.8e+04 at convs.7.own, over 8 Linear layers" in finding.message
    assert "sum over neighbours" in finding.cause


def test_fires_on_a_residual_stream_that_grows_block_by_block():
    """14 blocks by Kaiming's initialisation, a last error of 600 times the targets' size."""
    (finding,) = play(ActivationScaleWithDepth, *message_passing([0.8 * 1.5**i for i in range(14)], loss=4e5))
    assert "the activations grow 1.5 × per layer" in finding.message
    assert "residual connection" in finding.cause


def test_near_miss_blocks_that_grow_and_a_loss_in_order():
    assert play(ActivationScaleWithDepth, *message_passing([5.0**i for i in range(8)], loss=40.0)) == []
    assert play(ActivationScaleWithDepth, *message_passing([1.5**i for i in range(14)], loss=40.0)) == []
    assert play(ActivationScaleWithDepth, *message_passing([1.5**i for i in range(8)])) == []
    assert play(ActivationScaleWithDepth, *message_passing([5.0**i for i in range(4)])) == []


HELD_UP = [0.1] * 9  # by biases


def faded(factor=0.4, gain=0.58, steps=600, losses=(1.1, 1.1), keys=(1,), update=1e-6, gradient=1e-6, adaptive=False):
    """What tells the samples apart is multiplied at every layer; every tenth step is sampled."""
    signals = [0.1 * factor**i for i in range(9)]
    looks = [
        sampled(HELD_UP, gain=gain if step == 1 else None, step=step, untrained=step == 1, signals=signals)
        for step in (1, 2, 12)
    ]
    for step in range(1, steps + 1, 10):
        loss = losses[0] + (losses[1] - losses[0]) * step / steps
        optimizer = OptimizerFacts(key=keys[step // 10 % len(keys)], adaptive=adaptive)
        looks.append(LossesRead(optimizer=optimizer, losses=(loss,) * 10, rates=(0.1,) * 10))
        layers = (LayerNumbers(name="net.0", update_ratio=update, gradient_rms=gradient, weight_rms=0.1),)
        looks.append(NumbersSampled(step=step, index=step, loss=loss, optimizer=optimizer, layers=layers))
    return [*looks, RunEnded(step=steps, loss=losses[1], first_loss=losses[0])]


def test_fires_where_samples_become_alike_and_the_loss_stands():
    (finding,) = play(ActivationScaleWithDepth, *faded())
    assert finding.message == (
        "before the first step what tells the samples apart shrinks 0.4 × per layer: they differ by 0.1 at net.0, by 6.6e-05 "
        "at net.8, over 9 Linear layers; the loss has stood at 1.1"
    )
    assert "of about 0.58, of which the activation function leaves 0.4" in finding.cause


@pytest.mark.parametrize(
    "facts",
    [
        {"losses": (1.1, 0.8)},
        {"steps": 200},
        {"update": 1e-3},
        {"gradient": 0.01},  # a rate far too low
        {"adaptive": True},
        {"keys": (1, 2)},
        {"factor": 0.9, "gain": 1.3},
        {"factor": 0.3, "gain": 1.4},  # by the sigmoids
    ],
)
def test_near_miss_samples_become_alike(facts):
    assert play(ActivationScaleWithDepth, *faded(**facts)) == []


def few(*, gain=11.3, stds=(1.6, 13.0, 102.0, 809.0, 4338.0), loss=5e7):
    """Three hidden layers of the script's own class, between a first and a last one whose weights have too few elements."""
    shown = sampled(stds)
    ends = (0, 2 * len(stds) - 2)  # an activation function stands behind each
    layers = [
        layer if layer.kind == "ReLU" else replace(layer, gain=None if at in ends else gain, fan_in=128)
        for at, layer in enumerate(shown.layers)
    ]
    yield replace(shown, layers=tuple(layers))
    _, asked, numbers = regression(loss=loss)
    yield from (asked, numbers)


def test_fires_on_few_layers_whose_weights_no_initialiser_draws_so_large():
    (finding,) = play(ActivationScaleWithDepth, *few())
    assert "7.9 × per layer" in finding.message


def test_near_miss_few_layers_that_are_in_order():
    assert play(ActivationScaleWithDepth, *few(gain=2.0)) == []
    assert play(ActivationScaleWithDepth, *few(loss=40.0)) == []
    assert play(ActivationScaleWithDepth, *few(stds=(1.6, 13.0, 102.0, 809.0))) == []
    assert play(ActivationScaleWithDepth, *few(stds=(1.6, 13.0, 9.0, 809.0, 4338.0))) == []
