import math
from dataclasses import replace

import pytest

from flatline.events import LayerNumbers, NumbersSampled, OptimizerFacts, PenaltySubtracted, RunEnded
from flatline.findings import Finding, causes
from flatline.rules.weights.weight_norm_runaway import WeightNormRunaway
from flatline.testing import play


def run(weights, losses, *, matrix=True):
    return [
        NumbersSampled(
            step=2 * i + 1,
            index=2 * i + 1,
            layers=(
                LayerNumbers(name="net.0", weight_rms=w, matrix=matrix),
                LayerNumbers(name="net.2", weight_rms=0.1),
            ),
            loss=loss,
            first_loss=losses[0],
        )
        for i, (w, loss) in enumerate(zip(weights, losses, strict=True))
    ]


GROWING = [0.05 * 1.1**i for i in range(40)]
STILL = [2.3] * 40


def test_fires_on_growth_without_end():
    (finding,) = play(WeightNormRunaway, *run(GROWING, STILL), RunEnded())
    assert finding.severity == "warning"
    assert "the weights of net.0 grew" in finding.message
    assert "1 of 2 weight matrices" in finding.message


def test_fires_when_the_loss_runs_to_minus_infinity():
    assert len(play(WeightNormRunaway, *run(GROWING, [2.0 - i for i in range(40)]), RunEnded())) == 1


def test_fires_on_geometric_growth_though_the_loss_falls():
    """A decay with the wrong sign: the same share at every step."""
    assert len(play(WeightNormRunaway, *run(GROWING, [2.3 * 0.9**i for i in range(40)]), RunEnded())) == 1


def test_near_miss_growth_in_a_sweep_of_the_rate():
    sweep = [replace(event, lr=1e-4 * 1.2**i) for i, event in enumerate(run(GROWING, STILL))]
    assert play(WeightNormRunaway, *sweep, RunEnded()) == []


def test_near_miss_growth_that_slows_under_a_falling_loss():
    slowing = [0.01 + 0.02 * i for i in range(40)]
    assert play(WeightNormRunaway, *run(slowing, [2.3 * 0.9**i for i in range(40)])) == []


def test_fires_before_the_end_of_a_long_run():
    long = [0.05 * 1.02**i for i in range(700)]
    finding, *_ = play(WeightNormRunaway, *run(long, [2.3] * 700))
    assert finding.step > 4 * 200


def test_near_miss_weights_that_come_to_the_size_of_their_targets():
    weights = [0.05 * 1.1**i for i in range(30)] + [0.8 + 0.02 * i for i in range(40)]
    losses = [70.0] * 30 + [70.0 * 0.97**i for i in range(40)]
    assert play(WeightNormRunaway, *run(weights, losses), RunEnded()) == []


def test_near_miss_growth_that_levels_off():
    assert play(WeightNormRunaway, *run([0.05 * min(1.5**i, 12.0) for i in range(40)], STILL)) == []


def test_near_miss_zero_initialised():
    assert play(WeightNormRunaway, *run([1e-5 * 1.3**i for i in range(40)], STILL)) == []


def test_near_miss_small_logits_that_begin_to_choose():
    assert play(WeightNormRunaway, *run([0.01 * 1.1**i for i in range(40)], STILL)) == []


def test_near_miss_an_image_that_is_optimised():
    free = [
        NumbersSampled(step=i, index=i, layers=(LayerNumbers(weight_rms=0.1 * 1.2**i, depth=-1),), loss=-float(i))
        for i in range(1, 41)
    ]
    assert play(WeightNormRunaway, *free) == []


def test_near_miss_a_bias_or_little_growth():
    assert play(WeightNormRunaway, *run(GROWING, STILL, matrix=False)) == []
    assert play(WeightNormRunaway, *run([0.05 * 1.03**i for i in range(40)], STILL)) == []


def decayed(share, *, count=60, lr=0.05, decay=0.02, other=1.0):
    """Two matrices that grow by a share of lr * weight_decay at every twentieth step, under a loss that falls."""
    return [
        NumbersSampled(
            step=20 * i + 1,
            index=20 * i + 1,
            layers=tuple(
                LayerNumbers(
                    name=name,
                    weight_rms=0.1 * (1 + lr * decay) ** (20 * i * part),
                    weight_decay=decay,
                    learning_rate=lr,
                )
                for name, part in (("enc", share), ("dec", share * other), ("out", share))
            ),
            loss=1.0 * 0.95**i,
            first_loss=1.0,
        )
        for i in range(count)
    ]


def test_fires_where_decay_has_the_wrong_sign():
    finding, *_ = play(WeightNormRunaway, *decayed(1.0, count=120))
    assert "the weights grow by the 0.10% a step that weight decay should take from them" in finding.message
    assert finding.cause == "the decay in the optimizer's step has the wrong sign"


def test_near_miss_growth_of_another_pace_than_decay():
    assert play(WeightNormRunaway, *decayed(0.6, count=120, other=0.8)) == []
    assert play(WeightNormRunaway, *decayed(1.0, count=120, other=0.1)) == []
    assert play(WeightNormRunaway, *decayed(1.0, count=120, decay=0.0002)) == []
    assert play(WeightNormRunaway, *decayed(-1.0, count=120)) == []


def alike(*, paces=(1.0, 0.6, 1.0), slows=0.0, rises=3.0, count=60, rates=(1e-3, 1e-3)):
    """Matrices that grow by 0.05 % a step, in an optimizer of the user's own: of its decay nothing is known."""
    for i in range(count):
        step = 60 * i + 1
        grown = 5e-4 * step / (1 + slows * step)
        layers = tuple(LayerNumbers(name=str(n), weight_rms=0.06 * math.exp(grown * p)) for n, p in enumerate(paces))
        loss = 0.02 if i < count // 2 else 0.02 * (1 + (rises - 1) * (2 * i / count - 1))
        lr = rates[0] * (rates[1] / rates[0]) ** (i / count)
        yield NumbersSampled(step=step, index=step, layers=layers, loss=loss, first_loss=0.2, lr=lr)


def test_fires_where_all_matrices_grow_alike():
    finding, *_ = play(WeightNormRunaway, *alike())
    assert (
        "all 3 weight matrices grow by about 0.0005 of their size at every step, and do not slow down"
        in finding.message
    )
    assert finding.cause.startswith(
        "something adds a share of the weights to the weights at every step, as a decay with the wrong sign"
    )


def test_what_is_proven_to_grow_the_weights_explains_dead_units():
    dead = Finding(code="O25", slug="dead-units", severity="error", message="", cause="", fix="", step=5_000)
    proven = [
        play(WeightNormRunaway, *alike())[0],
        play(WeightNormRunaway, *decayed(1.0, count=120))[0],
        play(WeightNormRunaway, PenaltySubtracted(tensors=2))[0],
    ]
    assert [(found.code, found.severity) for each in proven for found in causes([dead, each])] == [("W1", "error")] * 3


def test_fires_on_one_pace_of_all_where_samples_are_few_and_far_between():
    often = [event for event in alike(paces=(1.0, 1.0, 1.02), count=80) if event.step <= 1_600]
    seldom = [event for event in alike(paces=(1.0, 1.0, 1.02), count=80) if event.step in (2_101, 4_741)]
    finding, *_ = play(WeightNormRunaway, *often, *seldom)
    assert finding.message.startswith("all 3 weight matrices grow by about 0.0005 of their size at every step")


def test_near_miss_growth_of_unknown_cause_explains_no_dead_units():
    (found,) = play(WeightNormRunaway, *run(GROWING, STILL), RunEnded())
    assert "O25" not in found.consequences


def test_fires_on_one_pace_of_all_whatever_the_loss_does():
    assert play(WeightNormRunaway, *alike(paces=(1.0, 1.0, 1.02), rises=1.0))


def test_fires_where_two_tables_are_multiplied():
    finding, *_ = play(WeightNormRunaway, *alike(paces=(1.0, 1.0, -0.5)))
    assert "2 of 3 weight matrices grow by about 0.0005 of their size" in finding.message


@pytest.mark.parametrize(
    "changed",
    [
        {"paces": (1.0, 0.1, 0.9)},  # a gradient drives two of them
        {"slows": 1e-3},  # as the steps of Adam do
        {"rises": 1.0},  # the loss does not mind
        {"paces": (0.6, 0.4, 0.6)},  # not far yet: targets may grow
        {"paces": (0.6, 0.6)},  # of two, that may be by chance
        {"rates": (1e-4, 1e-1)},  # a sweep
        {"paces": (1.0,)},
        {"paces": (-1.0, -1.0, -1.0)},
    ],
)
def test_near_miss_matrices_that_grow(changed):
    assert play(WeightNormRunaway, *alike(**changed)) == []


def test_fires_on_a_penalty_of_the_wrong_sign():
    (finding,) = play(WeightNormRunaway, PenaltySubtracted(names=("0.weight", "2.weight"), tensors=2))
    assert "the loss subtracts squares or norms of 2 weight tensors (0.weight, 2.weight): the larger" in finding.message


def test_what_grows_under_such_a_penalty_is_not_told_again():
    assert len(play(WeightNormRunaway, PenaltySubtracted(tensors=2), *run(GROWING, STILL))) == 1


def test_near_miss_a_normaliser_is_another_rule():
    assert play(WeightNormRunaway, PenaltySubtracted(kind="normaliser", tensors=1)) == []


def walking(ratio, *, momentum=0.9, scaled=1.0, **facts):
    """Matrices that grow alike, by steps of one size."""
    for event in alike(paces=(1.0, 0.6, 1.03)):
        told = [replace(each, update_ratio=ratio, momentum=momentum, scaled=scaled) for each in event.layers]
        yield replace(event, layers=tuple(told), optimizer=OptimizerFacts(name="SGD", **facts))


def test_near_miss_large_steps_that_grow_the_weights_by_themselves():
    assert play(WeightNormRunaway, *walking(0.02)) == []
    assert play(WeightNormRunaway, *walking(0.05, momentum=0.0)) == []


def test_fires_where_steps_are_too_small_to_grow_them():
    assert play(WeightNormRunaway, *walking(0.002))
    assert play(WeightNormRunaway, *walking(0.02, scaled=1.0005))
    assert play(WeightNormRunaway, *walking(0.02, own=True))
