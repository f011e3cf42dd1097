from dataclasses import replace

import pytest

from flatline.events import (
    Curve,
    CurvesUpdated,
    LayerNumbers,
    LossComputed,
    LossesRead,
    LossNotFinite,
    NumbersSampled,
    OptimizerFacts,
    RunEnded,
    TermsWeighed,
)
from flatline.rules.gradients.gradient_creeps_up import GradientCreepsUp
from flatline.testing import play


def run(gradients, losses, *, lr=lambda i: 1e-3):
    return [
        NumbersSampled(
            step=4 * i + 1,
            index=4 * i + 1,
            lr=lr(i),
            layers=(LayerNumbers(name="a", gradient_rms=g), LayerNumbers(name="b", gradient_rms=g)),
            loss=loss,
        )
        for i, (g, loss) in enumerate(zip(gradients, losses, strict=True))
    ]


RISING = [1e-3 * 1.1**i for i in range(60)]
STILL = [2.0 + 0.001 * i for i in range(60)]


def test_fires_on_a_steady_rise_without_learning():
    (finding,) = play(GradientCreepsUp, *run(RISING, STILL))
    assert finding.severity == "warning"
    assert finding.message.startswith("the gradient grew ")
    assert finding.evidence["rising"] == 1.0


def test_near_miss_the_loss_falls():
    assert play(GradientCreepsUp, *run(RISING, [2.0 - 0.02 * i for i in range(60)])) == []


def test_near_miss_a_loss_that_leaps_once():
    leap = [1e-3] * 20 + [1e-3 * 1.25**i for i in range(1, 21)] + [0.05] * 40
    back = [1.39] * 34 + [1.6] * 8 + [1.3 - 0.02 * i for i in range(38)]
    assert play(GradientCreepsUp, *run(leap, back), RunEnded(step=400, how="finished", loss=0.5)) == []


def test_fires_at_the_end_of_a_run_that_broke_off_while_it_rose():
    assert play(GradientCreepsUp, *run(RISING[:48], STILL[:48]), LossNotFinite(step=192)) != []


def test_near_miss_a_loss_that_breaks_while_the_gradient_is_as_ever():
    assert play(GradientCreepsUp, *run([1e-3] * 48, STILL[:48]), LossNotFinite(step=192)) == []


def test_near_miss_targets_that_grow():
    growing = [0.01 * 1.1**i for i in range(60)]
    assert play(GradientCreepsUp, *run(growing, [0.03 * 1.1**i for i in range(60)])) == []
    assert play(GradientCreepsUp, *run(growing, [2.0 + 0.01 * i for i in range(60)])) != []


def test_near_miss_two_optimizers_take_turns():
    judge = OptimizerFacts(key=2)
    turns = [e for event in run(RISING, STILL) for e in (replace(event, optimizer=judge), event)]
    assert play(GradientCreepsUp, *turns) == []


def test_near_miss_warm_up():
    assert play(GradientCreepsUp, *run(RISING, STILL, lr=lambda i: 1e-5 * (i + 1))) == []


def test_near_miss_noise_or_little_growth():
    noise = [1e-3 * (30 if i % 2 else 1) for i in range(60)]
    assert play(GradientCreepsUp, *run(noise, STILL)) == []
    assert play(GradientCreepsUp, *run([1e-3 * 1.02**i for i in range(60)], STILL)) == []


def test_near_miss_it_began_at_nothing():
    assert play(GradientCreepsUp, *run([1e-9 * 1.1**i for i in range(60)], STILL)) == []


FASTER = [0.02 - 0.02 * 1.15**i for i in range(60)]


def test_fires_on_a_loss_without_a_floor():
    (finding,) = play(GradientCreepsUp, *run(RISING, FASTER))
    assert finding.severity == "warning"
    assert "the loss falls ever faster below zero: -0.006" in finding.message


def test_near_miss_below_zero_and_settling():
    likelihood = [100.0 - 400.0 * (1 - 0.9**i) for i in range(60)]
    assert play(GradientCreepsUp, *run(RISING, likelihood)) == []
    assert play(GradientCreepsUp, *run(RISING, [-3.0 * i for i in range(60)])) == []
    similarity = [-1 / (1 + 1.4 ** (45 - i)) for i in range(60)]
    assert play(GradientCreepsUp, *run(RISING, similarity)) == []


def test_near_miss_no_floor_and_steady_gradients():
    assert play(GradientCreepsUp, *run([1e-3] * 60, FASTER)) == []


def test_near_miss_an_image_made_to_please():
    events = run(RISING, FASTER)
    events = [replace(event, layers=tuple(replace(each, depth=-1) for each in event.layers)) for event in events]
    assert play(GradientCreepsUp, *events) == []


def test_near_miss_short_run():
    assert play(GradientCreepsUp, *run(RISING[:20], STILL[:20])) == []


def logged(name, role, values):
    steps = tuple(float(i + 1) for i in range(len(values)))
    return Curve(name=name, role=role, steps=steps, values=tuple(values), count=len(values))


CREEPS = logged("grad_norm", "gradient_norm", [0.5 * 1.03**i * (1 + 0.2 * (i % 3)) for i in range(200)])
FLAT = logged("loss", "train_loss", [2.3 + 0.002 * i + 0.05 * (i % 4) for i in range(200)])


def test_fires_on_a_logged_norm():
    (finding,) = play(GradientCreepsUp, CurvesUpdated(curves=(FLAT, CREEPS)))
    assert finding.severity == "warning"
    assert finding.message.startswith("grad_norm grew ")
    assert "steadily over 200 points, while the loss went from 2.3" in finding.message


def test_near_miss_logged_and_the_loss_falls_or_the_rate_rises():
    falls = logged("loss", "train_loss", [2.3 - 0.005 * i for i in range(200)])
    warm = logged("lr", "learning_rate", [1e-5 * i for i in range(200)])
    assert play(GradientCreepsUp, CurvesUpdated(curves=(falls, CREEPS))) == []
    assert play(GradientCreepsUp, CurvesUpdated(curves=(FLAT, CREEPS, warm))) == []


def test_near_miss_logged_beside_an_adversary_or_alone():
    sides = (logged("g_loss", "train_loss", FLAT.values), logged("d_loss", "train_loss", FLAT.values))
    assert play(GradientCreepsUp, CurvesUpdated(curves=(*sides, CREEPS))) == []
    assert play(GradientCreepsUp, CurvesUpdated(curves=(CREEPS,))) == []


def test_near_miss_step_by_hand_whose_rate_may_rise():
    by_hand = OptimizerFacts(name="a step by hand", by_hand=True)
    events = run([1e-3 * 1.1**i for i in range(150)], [2.3] * 150)
    assert play(GradientCreepsUp, *events)
    assert not play(GradientCreepsUp, *(replace(event, optimizer=by_hand) for event in events))


def sharpened(factors, *, gradients=(1e-3, 1e-2), losses=(2.0, 0.5, 3.0), kind="cross_entropy"):
    """Scores under a factor: the loss falls in the first half of the run, and rises in the second, as the gradient does."""
    yield from (LossComputed(step=step, kind=kind, factor=factor) for step, factor in factors)
    first, lowest, last = losses
    falling = [first + (lowest - first) * i / 30 for i in range(30)]
    rising = [lowest + (last - lowest) * i / 25 for i in range(25)]
    grown = [gradients[0]] * 30 + [gradients[0] + (gradients[1] - gradients[0]) * i / 25 for i in range(25)]
    yield from run([*grown, *[gradients[1]] * 8], [*falling, *rising, *[last] * 8])


GROWS = [(1, 3.0), (30, 3.6), (100, 12.0), (160, 300.0)]


def test_fires_where_scores_are_multiplied_with_more_and_more():
    finding, *_ = play(GradientCreepsUp, *sharpened(GROWS))
    assert finding.message.startswith(
        "the scores are multiplied with a number that grew from 3 (step 1) to 300 (step 160)"
    )
    assert "without a floor, now 0.0033" in finding.cause
    assert "W1" in finding.consequences


def test_near_miss_a_factor_that_does_not_grow_so_far():
    assert play(GradientCreepsUp, *sharpened([*GROWS[:3], (160, 40.0)])) == []
    assert play(GradientCreepsUp, *sharpened([(1, 64.0), (30, 64.0), (160, 120.0)])) == []
    assert play(GradientCreepsUp, *sharpened([*GROWS, (170, 20.0)])) == []
    assert play(GradientCreepsUp, *sharpened([(1, 0.0), (160, 0.0)])) == []
    assert play(GradientCreepsUp, *sharpened(GROWS, kind="mse")) == []


def test_near_miss_a_factor_that_grows_while_nothing_suffers():
    assert play(GradientCreepsUp, *sharpened(GROWS, losses=(2.0, 0.5, 0.6))) == []
    assert play(GradientCreepsUp, *sharpened(GROWS, losses=(2.0, 0.001, 0.01))) == []
    assert play(GradientCreepsUp, *sharpened(GROWS, gradients=(1e-3, 2e-3))) == []


OF_PENALTY = OptimizerFacts(key=1, name="Adam", adaptive=True)
LOOKED = (1, 2, 3, 4, 5, 6, 8, 12, 17, 24, 34, 48, 67, 94, 132, 185, 259, 363, 508, 711, 800)


def penalised(weight=lambda step: 0.1 * 1.006**step, losses=(0.6, 0.2, 2.0), gradients=(0.1, 0.5), **facts):
    """A run of 1000 steps: the weight of a term, the loss at first, at its lowest and at the end, the gradient."""
    steps = 1000
    first, lowest, end = losses
    course = [
        first if at < 50 else lowest if at < 400 else lowest * (end / lowest) ** ((at - 400) / 600)
        for at in range(steps)
    ]
    begun, ended = gradients
    numbers = [
        NumbersSampled(
            index=at + 1,
            step=at + 1,
            optimizer=OF_PENALTY,
            loss=course[at],
            layers=(LayerNumbers(gradient_rms=begun + (ended - begun) * at / steps),),
        )
        for at in range(0, steps, 10)
    ]
    looks = [TermsWeighed(step=step, weights=(0.5, weight(step))) for step in facts.get("looks", LOOKED)]
    read = LossesRead(optimizer=OF_PENALTY, steps=tuple(range(steps)), losses=tuple(course), rates=(1e-3,) * steps)
    return [*numbers, *looks, read, RunEnded(step=steps, how=facts.get("how", "finished"))]


def test_fires_on_a_weight_that_is_raised_without_end():
    (finding,) = play(GradientCreepsUp, *penalised())
    assert finding.message.startswith(
        "a term of the loss is multiplied with a number that grew by 0.60% at every step, from 0.101 (step 1) to 12 (step 800)"
    )
    assert {"C2", "O28"} <= set(finding.consequences)


@pytest.mark.parametrize(
    "facts",
    [
        {"weight": lambda step: min(2.0, 0.1 * 1.006**step)},
        {"weight": lambda step: 0.1 + 0.02 * step},
        {"weight": lambda step: 0.1 * 3.0 ** (step // 100)},
        {"weight": lambda step: 0.001 * 1.006**step},
        {"losses": (0.6, 0.2, 0.3)},
        {"losses": (0.6, 0.2, 0.1)},
        {"gradients": (0.5, 0.5)},
        {"looks": LOOKED[:15]},
        {"how": "interrupted"},
    ],
    ids=[
        "bounded",
        "along a line",
        "in rounds",
        "small",
        "rises little",
        "falls",
        "gradient stands",
        "not seen",
        "stopped",
    ],
)
def test_near_miss_a_weight_that_is_raised(facts):
    assert play(GradientCreepsUp, *penalised(**facts)) == []
