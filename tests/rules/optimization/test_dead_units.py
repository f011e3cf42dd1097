import pytest

from flatline.events import DeadFacts, ForwardObserved, LayerNumbers, NumbersSampled, Where
from flatline.rules.optimization.dead_units import DeadUnits
from flatline.testing import play

LEARNING = NumbersSampled(layers=(LayerNumbers(gradient_rms=0.0), LayerNumbers(gradient_rms=1e-3)))
STUCK = NumbersSampled(layers=(LayerNumbers(gradient_rms=1e-6),), loss=1.0, first_loss=1.1)


def seen(*dead, layer="1", units=64, samples=100, lasting=None, **facts):
    return [
        ForwardObserved(
            step=step,
            where=Where("train.py", 30),
            dead=(
                DeadFacts(
                    layer=layer,
                    units=units,
                    dead=count,
                    samples=samples,
                    looks=min(step, 3),
                    lasting=min(dead[max(0, step - 3) : step]) if lasting is None else lasting,
                    total=samples * min(step, 3),
                    **facts,
                ),
            ),
        )
        for step, count in enumerate(dead, 1)
    ]


def saturated(share, kind="Tanh", steps=3, samples=100, units=64):
    facts = {"layer": "3", "kind": kind, "units": units, "samples": samples, "saturated": share}
    return [ForwardObserved(step=step, dead=(DeadFacts(looks=step, **facts),)) for step in range(1, steps + 1)]


def test_fires_on_a_layer_that_is_dead():
    (finding,) = play(DeadUnits, *seen(64, 64, 64))
    assert finding.severity == "error"
    assert finding.message == (
        "64 of 64 units of the ReLU 1 are zero on all 300 samples of 3 steps, the last of them step 3"
    )
    assert "dead when first seen" in finding.cause
    assert "start the biases of the layers before these units at 0" in finding.fix


def test_warns_of_a_layer_that_dies():
    (finding,) = play(DeadUnits, *seen(5, 58, 60, 62, bias=-3.1, first_bias=-0.02))
    assert finding.severity == "warning"
    assert "died in training" in finding.cause
    assert "their biases went from -0.02 to -3.1" in finding.cause
    assert "learning rate" in finding.fix


def test_layers_that_are_dead_together_are_one_finding():
    events = zip(seen(64, 64, 64), seen(64, 64, 64, layer="3"), strict=True)
    (finding,) = play(DeadUnits, *[ForwardObserved(step=a.step, dead=a.dead + b.dead) for a, b in events])
    assert finding.message.endswith("; the same in the ReLU 3")


def test_fires_without_a_module_where_something_still_learns():
    (finding,) = play(DeadUnits, LEARNING, *seen(64, 64, 64, layer=""))
    assert "the ReLU number 1 of the graph" in finding.message


@pytest.mark.parametrize("kind", ["Tanh", "Sigmoid"])
def test_fires_on_a_saturated_layer(kind):
    (finding,) = play(DeadUnits, STUCK, *saturated(0.97, kind))
    assert finding.severity == "warning"
    assert finding.message == f"97% of what the {kind} 3 makes lies within 0.01 of its limits, in 3 steps looked at"


def two_layers(first, second, *, lasting=40, looks=3, samples=100):
    """Two ReLUs of 64 units, and the number that the biases under each were filled with."""
    some = {"units": 64, "dead": lasting, "samples": samples, "looks": looks, "total": samples * looks}
    return ForwardObserved(
        step=looks,
        dead=(
            DeadFacts(layer="1", lasting=lasting, filled=first, **some),
            DeadFacts(layer="3", lasting=3, filled=second, **some),
        ),
    )


def test_fires_on_hidden_layers_with_the_bias_of_the_output():
    (finding,) = play(DeadUnits, two_layers(-2.59, -2.59))
    assert finding.severity == "warning"
    assert finding.message == (
        "40 of 64 units of the ReLU 1 are zero on all 300 samples of 3 steps; the biases under 2 ReLUs all began at -2.59"
    )
    assert "output layer alone" in finding.fix


def test_near_miss_filled_with_little_or_one_layer_or_two_numbers():
    assert play(DeadUnits, two_layers(-0.1, -0.1)) == []
    assert play(DeadUnits, two_layers(-2.59, None)) == []
    assert play(DeadUnits, two_layers(-2.59, -1.5)) == []


def test_near_miss_filled_but_most_units_answer():
    assert play(DeadUnits, two_layers(-2.59, -2.59, lasting=20)) == []
    assert play(DeadUnits, two_layers(-2.59, -2.59, looks=2)) == []
    assert play(DeadUnits, two_layers(-2.59, -2.59, samples=10)) == []


def test_near_miss_hinge_loss_satisfied():
    silent = NumbersSampled(layers=(LayerNumbers(gradient_rms=0.0),))
    assert play(DeadUnits, silent, *seen(64, 64, 64, layer="")) == []
    assert play(DeadUnits, LEARNING, *seen(60, 61, 62, layer="")) == []


def test_near_miss_ordinary_sparsity():
    assert play(DeadUnits, *seen(*[32] * 9)) == []
    assert play(DeadUnits, *seen(*[57] * 9)) == []


def test_near_miss_other_units_at_every_step():
    assert play(DeadUnits, *seen(*[60] * 9, lasting=50)) == []


def test_near_miss_small_batch_or_few_units():
    assert play(DeadUnits, *seen(*[64] * 9, samples=16)) == []
    assert play(DeadUnits, *seen(*[4] * 9, units=4)) == []


def test_near_miss_wide_sparse_dictionary():
    assert play(DeadUnits, *seen(*[3900] * 9, units=4096, samples=512)) == []


def test_near_miss_recovering():
    assert play(DeadUnits, *seen(64, 62, 60)) == []


def test_near_miss_numbers_alone():
    assert play(DeadUnits, LEARNING, LEARNING, LEARNING) == []


def test_near_miss_half_saturated():
    assert play(DeadUnits, STUCK, *saturated(0.6, steps=9)) == []


def test_near_miss_saturated_but_learns():
    falling = NumbersSampled(layers=(LayerNumbers(gradient_rms=1e-3),), loss=0.5, first_loss=1.1)
    assert play(DeadUnits, falling, *saturated(0.97)) == []


def test_near_miss_saturated_in_two_steps_or_few_samples():
    assert play(DeadUnits, STUCK, *saturated(0.97, steps=2)) == []
    assert play(DeadUnits, STUCK, *saturated(0.97, samples=16)) == []
    assert play(DeadUnits, STUCK, *saturated(0.97, units=4)) == []


NO_GRADIENT = NumbersSampled(layers=(LayerNumbers(gradient_rms=0.0),) * 3, loss=9.1, first_loss=10.6)


def test_fires_on_an_answer_that_is_zero_for_every_sample():
    (finding,) = play(DeadUnits, NO_GRADIENT, *seen(0, 1, 1, 1, units=1, layer="after out"))
    assert finding.severity == "error"
    assert "1 of 1 units" in finding.message
    assert "leave the ReLU out" in finding.fix


def test_near_miss_one_unit_while_something_learns():
    """A gate of one unit, closed for all of them; and a hinge loss that is satisfied."""
    assert play(DeadUnits, LEARNING, *seen(1, 1, 1, units=1)) == []
    assert play(DeadUnits, NO_GRADIENT, *seen(1, 1, 1, units=1, layer="")) == []  # beside a constant
    satisfied = NumbersSampled(layers=(LayerNumbers(gradient_rms=0.0),), loss=0.0, first_loss=1.0)
    assert play(DeadUnits, satisfied, *seen(1, 1, 1, units=1, layer="")) == []
