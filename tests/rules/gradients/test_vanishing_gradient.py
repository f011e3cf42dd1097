from dataclasses import replace

import pytest

from flatline.events import (
    ActivationsSampled,
    LayerActivations,
    LayerNumbers,
    LossComputed,
    LossesRead,
    NumbersSampled,
    OptimizerFacts,
    RecurrentGradientsSampled,
    RunEnded,
)
from flatline.rules.gradients.vanishing_gradient import VanishingGradient
from flatline.testing import play


def sampled(*gradients, steps=3, matrix=True, depth=0):
    layers = tuple(
        LayerNumbers(name=f"net.{i}", depth=i + depth, gradient_rms=g, weight_rms=0.1, matrix=matrix)
        for i, g in enumerate(gradients)
    )
    return [NumbersSampled(step=step, index=step, layers=layers) for step in range(1, steps + 1)]


def test_fires_on_ten_sigmoids():
    (finding,) = play(VanishingGradient, *sampled(*[1e-3 * 0.1 ** (9 - i) for i in range(10)]))
    assert finding.severity == "warning"
    assert finding.message == (
        "the gradient fades with depth: rms 1e-12 at net.0 against 0.001 at net.9, over 10 weight matrices (0.1 × per layer)"
    )
    assert "ReLU" in finding.fix


def test_fires_past_layers_that_underflowed():
    gradients = [0.0, 0.0] + [1e-3 * 0.1 ** (7 - i) for i in range(8)]
    assert len(play(VanishingGradient, *sampled(*gradients))) == 1


def thrown(update, first=0.3):
    """Three samples at which the gradient passes, then three at which it fades."""
    passing, fading = (
        sampled(*[first ** ((9 - i) / 9) for i in range(10)]),
        sampled(*[0.1 ** (9 - i) for i in range(10)]),
    )
    for at, event in enumerate([*passing, *fading], start=1):
        layers = tuple(replace(layer, update_ratio=update) for layer in event.layers)
        yield replace(event, step=at, index=at, lr=0.05, layers=layers)


def test_names_the_steps_that_saturated_the_units():
    (finding,) = play(VanishingGradient, *thrown(0.04))
    assert finding.cause.startswith(
        "the first steps, which changed the weights by 4.0% each (healthy: about 0.1 %), threw"
    )
    assert "from 0.05 to 0.005" in finding.fix


@pytest.mark.parametrize("changed", [{"update": 0.004}, {"update": 0.04, "first": 1e-3}])
def test_near_miss_steps_that_saturate(changed):
    (finding,) = play(VanishingGradient, *thrown(**changed))
    assert finding.cause == VanishingGradient.cause


GATED = [x for i in range(8) for x in (3e-4 * 0.08 ** (8 - i), 2e-3 * 0.08 ** (8 - i))]


def test_fires_where_the_gate_of_each_block_has_less_than_the_block_before():
    (finding,) = play(VanishingGradient, *sampled(*GATED))
    assert "over 16 weight matrices" in finding.message


def test_near_miss_large_and_small_layers_in_turn():
    assert play(VanishingGradient, *sampled(*[1e-7 if i % 2 else 1e-2 for i in range(15)], 1e-1)) == []


def test_near_miss_two_samples():
    assert play(VanishingGradient, *sampled(*[1e-3 * 0.1 ** (9 - i) for i in range(10)], steps=2)) == []


def test_near_miss_healthy_depth():
    assert play(VanishingGradient, *sampled(2e-3, 1e-3, 3e-3, 2e-3, 4e-3, 5e-3)) == []


def test_near_miss_frozen_or_dead_layers():
    assert play(VanishingGradient, *sampled(0.0, 0.0, 0.0, 1e-3, 2e-3, 3e-3)) == []


def test_near_miss_one_small_embedding():
    assert play(VanishingGradient, *sampled(1e-9, 1e-3, 2e-3, 1e-3, 3e-3, 2e-3)) == []


def test_near_miss_few_layers_or_biases():
    assert play(VanishingGradient, *sampled(1e-12, 1e-9, 1e-6, 1e-3)) == []
    assert play(VanishingGradient, *sampled(*[0.1 ** (9 - i) for i in range(10)], matrix=False)) == []


def test_near_miss_order_unknown():
    assert play(VanishingGradient, *sampled(*[0.1 ** (9 - i) for i in range(10)], depth=-20)) == []


FADED = [2e-6, 2e-6, 1e-5, 1e-4, 1e-3, 2e-2]


def whole_run(gradients=FADED, losses=(1.61, 1.61), steps=600, optimizer=None):
    """Sampled at every tenth step: the loss goes evenly from the first of the two to the second."""
    optimizer = optimizer or OptimizerFacts(key=1)
    layers = tuple(LayerNumbers(name=f"net.{i}", depth=i, gradient_rms=g) for i, g in enumerate(gradients))
    return [
        *(
            NumbersSampled(
                step=step,
                index=step,
                layers=layers,
                lr=0.03,
                optimizer=optimizer,
                loss=losses[0] + (losses[1] - losses[0]) * step / steps,
            )
            for step in range(0, steps + 1, 10)
        ),
        RunEnded(step=steps),
    ]


def test_fires_on_a_milder_decay_where_the_loss_stands():
    (finding,) = play(VanishingGradient, *whole_run())
    assert finding.message.endswith(
        "over 6 weight matrices (0.16 × per layer); at lr=0.03 the first layers hardly move, and the loss stands at 1.61"
    )


def test_near_miss_a_milder_decay_and_the_loss_falls():
    assert play(VanishingGradient, *whole_run(losses=(1.61, 1.2))) == []


def test_near_miss_a_milder_decay_that_the_optimizer_evens_out():
    assert play(VanishingGradient, *whole_run(optimizer=OptimizerFacts(key=1, name="Adam", adaptive=True))) == []


def test_near_miss_a_run_of_few_steps_or_without_an_end():
    assert play(VanishingGradient, *whole_run(steps=250)) == []
    assert play(VanishingGradient, *whole_run()[:-1]) == []


def test_near_miss_a_loss_that_stands_over_ordinary_gradients():
    assert play(VanishingGradient, *whole_run([2e-4, 4e-4, 1e-3, 2e-3, 4e-3, 2e-2])) == []


ADAM = OptimizerFacts(key=1, name="Adam", adaptive=True)


def under_adam(*factors):
    """Ten layers over steps; each factor is what a layer leaves of the gradient at that step."""
    for step, factor in enumerate(factors, start=1):
        (event,) = sampled(*[factor ** (9 - i) for i in range(10)], steps=1)
        yield replace(event, step=step, index=step, optimizer=ADAM)


ENDED = RunEnded(step=12, how="finished", loss=1.0, first_loss=1.0)


def test_waits_whether_adam_mends_it():
    (finding,) = play(VanishingGradient, *under_adam(*[0.2] * 30), ENDED)
    assert finding.step == 30
    (finding,) = play(VanishingGradient, *under_adam(*[0.2] * 12), ENDED)
    assert finding.step == 12


def test_does_not_wait_where_it_is_hopeless():
    assert play(VanishingGradient, *under_adam(*[0.05] * 4))[0].step == 3


def test_near_miss_adam_mends_it():
    assert play(VanishingGradient, *under_adam(*[0.2] * 9, 0.3, 0.4, 0.5), ENDED) == []
    assert play(VanishingGradient, *under_adam(*[0.2] * 12), replace(ENDED, how="crashed")) == []


def forward(*signals, untrained=True, gain=1.0):
    layers = [LayerActivations(layer=f"net.{i}", signal=signal, gain=gain) for i, signal in enumerate(signals)]
    return ActivationsSampled(step=1, untrained=untrained, layers=tuple(layers))


def test_fires_under_adam_where_the_samples_fade_on_their_way_forward_and_the_loss_stands():
    (finding,) = play(VanishingGradient, forward(*[0.2**i for i in range(6)]), *whole_run(optimizer=ADAM))
    assert finding.severity == "warning"
    assert finding.message.endswith(
        "so do the samples on their way forward: before the first step they differed by 1 at the first layer, by 0.00032 at "
        "the last one, and the loss stands at 1.61"
    )


@pytest.mark.parametrize("signals", [[1.0] * 6, [1.0, 1.0, 1.0, 1.0, 1.0, 1e-4], [0.5**i for i in range(6)]])
def test_near_miss_under_adam_the_samples_come_through(signals):
    assert play(VanishingGradient, forward(*signals), *whole_run(optimizer=ADAM)) == []


def test_near_miss_under_adam_the_loss_falls_or_the_weights_are_small_or_loaded():
    fading = [0.2**i for i in range(6)]
    assert play(VanishingGradient, forward(*fading), *whole_run(optimizer=ADAM, losses=(1.61, 1.2))) == []
    assert play(VanishingGradient, forward(*fading, gain=0.3), *whole_run(optimizer=ADAM)) == []
    assert play(VanishingGradient, forward(*fading, untrained=False), *whole_run(optimizer=ADAM)) == []


FORGOTTEN = tuple(1e-4 * 0.25 ** (29 * (8 - at) / 8) for at in range(9))


def recurrent(
    gradients=FORGOTTEN, *, losses=(1.79, 1.791), looks=3, steps=400, last=None, how="finished", classes=None
):
    """Looks at the gradients of 30 positions, the newest as ``last``, and a loss that goes from one number to another."""
    sizes = [gradients] * (looks - 1) + [last or gradients]
    seen = [RecurrentGradientsSampled(weight="cell.h", shape=(9, 9), positions=30, gradients=each) for each in sizes]
    course = tuple(losses[0] if at < steps // 10 else losses[1] for at in range(steps))
    read = LossesRead(steps=tuple(range(steps)), losses=course, rates=(1e-3,) * steps)
    told = [LossComputed(kind="cross_entropy", classes=classes)] if classes else []
    return [*told, *seen, read, RunEnded(step=steps, how=how)]


def test_fires_on_a_state_that_is_forgotten_within_a_few_positions():
    (finding,) = play(VanishingGradient, *recurrent())
    assert finding.message == (
        "cell.h is applied to its own result at 30 positions, and the gradient shrinks on its way back from rms 0.0001 at "
        "the last to 3.5e-22 at the first, 0.25 × at each; the loss stands at 1.791"
    )
    (finding,) = play(VanishingGradient, *recurrent((0.0, *FORGOTTEN[1:])))
    assert "to 0 at the first, 0.25 × at each" in finding.message
    (finding,) = play(VanishingGradient, *recurrent(losses=(2.1, 1.7918), classes=6))
    assert "stands at 1.792" in finding.message


@pytest.mark.parametrize(
    "facts",
    [
        {"losses": (1.79, 1.7)},
        {"losses": (1.79, 1.77)},
        {"losses": (1.79, 1.77), "classes": 6},
        {"gradients": tuple(1e-4 * 0.58 ** (29 * (8 - at) / 8) for at in range(9))},
        {"last": (1e-4,) * 9},
        {"gradients": (1e-4,) * 8 + (1e4,)},
        {"gradients": (0.0,) * 9},
        {"looks": 2},
        {"steps": 200},
        {"how": "interrupted"},
    ],
    ids=[
        "it learns", "it learns a little", "of classes", "usual weights", "it opens", "one step", "no gradient",
        "two looks", "early", "interrupted",
    ],
)  # fmt: skip
def test_near_miss_a_state_that_fades(facts):
    assert play(VanishingGradient, *recurrent(**facts)) == []
