import math
from dataclasses import replace

import pytest

from flatline.events import (
    AnswersBeyond,
    DeadFacts,
    FirstCrossEntropy,
    ForwardObserved,
    LayerNumbers,
    LossesRead,
    LossNotFinite,
    NumbersSampled,
    OptimizerFacts,
    RatesSwept,
    RunEnded,
)
from flatline.rules.optimization.learning_rate_too_high import LearningRateTooHigh
from flatline.testing import play

ADAM = OptimizerFacts(key=1, name="Adam", adaptive=True)
SGD = OptimizerFacts(key=1, name="SGD")


def run(updates, losses, *, optimizer=ADAM, gradient=1e-3, lr=1.0, first_loss=None):
    return [
        NumbersSampled(
            step=i + 1,
            index=i + 1,
            lr=lr,
            optimizer=optimizer,
            layers=tuple(
                LayerNumbers(name=n, weight_rms=0.1, gradient_rms=gradient, update_ratio=u, elements=4096) for n in "ab"
            ),
            loss=loss,
            first_loss=losses[0] if first_loss is None else first_loss,
        )
        for i, (u, loss) in enumerate(zip(updates, losses, strict=True))
    ]


def test_fires_when_the_first_steps_wipe_out_the_weights():
    (finding,) = play(LearningRateTooHigh, *run([9.6, 0.7, 0.4, 0.2, 0.2] + [0.01] * 30, [1.44] + [40.0] * 34))
    assert finding.severity == "warning"
    assert finding.message == (
        "at lr=1 Adam overshoots: its first 5 steps carried the weights 11.1 times their own size (healthy: about 0.1 % a step), "
        "and the loss went from 1.44 to 40 (worst 40)"
    )
    assert finding.fix.startswith("divide lr by ten, from 1 to 0.1")


def test_fires_when_every_step_is_huge_and_nothing_is_learned():
    (finding,) = play(LearningRateTooHigh, *run([0.25] * 40, [2.3, 5.0] * 20, optimizer=SGD))
    assert "every step changes the weights by 25%" in finding.message


def test_fires_on_a_loss_that_diverges_slowly():
    losses = [2.0, 1.5] + [2.0 * 1.2**i for i in range(38)]
    (finding,) = play(LearningRateTooHigh, *run([0.05] * 40, losses, optimizer=SGD), RunEnded())
    assert "5.0% of their size" in finding.message
    losses += [losses[-1]] * 60
    (finding,) = play(LearningRateTooHigh, *run([0.05] * 100, losses, optimizer=SGD))
    assert finding.step >= 60


def test_near_miss_a_learner_whose_targets_grow():
    losses = [0.01] * 30 + [1.4] * 12 + [0.02] * 60
    assert play(LearningRateTooHigh, *run([0.05] * 102, losses), RunEnded()) == []


def test_near_miss_a_high_rate_that_learns():
    assert play(LearningRateTooHigh, *run([2.0] * 5 + [0.1] * 40, [2.3 * 0.9**i for i in range(45)])) == []


def test_near_miss_embeddings_and_free_parameters():
    wild = run([2.0] * 40, [2.3, 5.0] * 20)
    for change in ({"kind": "Embedding"}, {"depth": -1}):
        events = [replace(event, layers=tuple(replace(layer, **change) for layer in event.layers)) for event in wild]
        assert play(LearningRateTooHigh, *events) == []


def test_near_miss_a_loss_that_stands_still_at_first():
    assert play(LearningRateTooHigh, *run([0.15] * 60, [3.466] * 60)) == []
    assert len(play(LearningRateTooHigh, *run([0.15] * 120, [3.466] * 120))) == 1


def test_near_miss_a_small_initialisation_that_learns_slowly():
    """A language model whose weights begin at a thousandth."""
    assert play(LearningRateTooHigh, *run([0.4] * 5 + [0.01] * 145, [3.296 - 0.0005 * i for i in range(150)])) == []


def test_near_miss_a_rising_loss_of_small_steps():
    """A critic, a reward, a generator: the loss rises while the steps are ordinary."""
    assert play(LearningRateTooHigh, *run([0.01] * 40, [0.1 * 1.2**i for i in range(40)])) == []


def test_near_miss_exploding_gradient_at_an_ordinary_rate():
    assert play(LearningRateTooHigh, *run([0.9] * 40, [2.3, 9.0] * 20, optimizer=SGD, gradient=30.0, lr=0.01)) == []


def test_near_miss_only_the_first_steps_were_seen():
    assert play(LearningRateTooHigh, *run([5.0] * 15, [2.3] * 15)) == []


def test_near_miss_losses_below_zero_or_unknown():
    assert play(LearningRateTooHigh, *run([0.5] * 40, [-1.0, -0.5] * 20)) == []
    assert play(LearningRateTooHigh, *run([0.5] * 40, [None] * 40, first_loss=1.0)) == []


def swept(configured, diverges=0.1):
    return RatesSwept(
        step=100, optimizer="SGD", configured=configured, steepest=0.01, diverges=diverges, first_loss=2.3
    )


def test_fires_far_inside_what_diverges_in_a_sweep():
    (finding,) = play(LearningRateTooHigh, swept(1.5))
    assert finding.message == (
        "with the rate raised step by step, the loss of SGD diverges from lr=0.1 on, and falls fastest at 0.01; the script sets 1.5"
    )
    assert finding.fix.startswith("begin at lr=0.001")


def test_near_miss_a_rate_at_the_edge():
    assert play(LearningRateTooHigh, swept(0.5)) == []


def test_near_miss_a_sweep_without_divergence():
    assert play(LearningRateTooHigh, swept(1.5, diverges=None)) == []


def test_fires_on_a_step_by_hand_without_naming_a_rate():
    by_hand = OptimizerFacts(key=1, name="a step by hand", by_hand=True)
    (finding,) = play(LearningRateTooHigh, *run([0.25] * 40, [2.3, 5.0] * 20, optimizer=by_hand, lr=0.0))
    assert finding.message.startswith("a step by hand overshoots: every step changes the weights by 25%")
    assert finding.fix.startswith("divide the rate by ten, and again until the loss falls")
    assert finding.evidence.get("lr") is None


def guessing(updates, losses, *heads):
    return play(LearningRateTooHigh, *(FirstCrossEntropy(step=1, classes=c) for c in heads), *run(updates, losses))


FEW_LEAPS = [0.4, 0.2, 0.1, 0.1, 0.1] + [1e-3] * 120


def test_fires_where_a_few_leaps_ended_in_guessing():
    (finding,) = guessing(FEW_LEAPS, [1.93] + [1.8] * 124, 6)
    assert (
        "its first 5 steps carried the weights 0.9 times their own size, and since then the loss is what guessing costs"
        in (finding.message)
    )


def test_near_miss_guessing_without_leaps_and_leaps_without_guessing():
    assert guessing([1e-3] * 125, [1.93] + [1.8] * 124, 6) == []
    assert guessing(FEW_LEAPS, [1.93] + [1.5] * 124, 6) == []
    assert guessing(FEW_LEAPS, [1.93] + [1.8] * 124, 6, 6) == []
    assert guessing(FEW_LEAPS, [1.93] + [1.8] * 124) == []
    assert guessing(FEW_LEAPS, [1.93] + [1.72] * 124, 6) == []  # 4 % better than guessing, as models of clicks are


def test_near_miss_steps_that_make_the_weights_smaller():
    """A decay of a tenth at every step, and nothing is left to tell classes with."""
    shrinking = [
        replace(each, layers=tuple(replace(layer, weight_rms=0.9 ** min(each.index, 60)) for layer in each.layers))
        for each in run(FEW_LEAPS, [1.93] + [1.8] * 124)
    ]
    assert play(LearningRateTooHigh, FirstCrossEntropy(step=1, classes=6), *shrinking) == []


def schedule(*, high=0.045, back=1.58, update=0.03, first=1.8, optimizers=1, classes=6):
    """A warm-up: the loss falls at 0.01 for 64 steps, and goes back as the rate goes on."""
    losses = [first, *[1.2] * 63, *[back] * 160]
    rates = [0.01] * 64 + [high] * 160
    samples = run([0.01] * 64 + [update] * 160, losses, first_loss=first)
    read = LossesRead(step=224, optimizer=ADAM, steps=tuple(range(1, 225)), losses=tuple(losses), rates=tuple(rates))
    others = [replace(read, optimizer=replace(ADAM, key=2 + i)) for i in range(optimizers - 1)]
    return FirstCrossEntropy(classes=classes), *samples, read, *others, RunEnded(step=224)


def test_fires_where_a_rising_rate_takes_away_what_was_learned():
    (finding,) = play(LearningRateTooHigh, *schedule())
    assert finding.message == (
        "Adam overshoots: the loss had come from 1.8 to 1.2 at step 16, at lr=0.01; as lr went on to 0.045, where a step changes "
        "the weights by 3.0% of their size (healthy: about 0.1 %), it went up, and is 1.58 at the end"
    )
    assert finding.fix == "keep the highest rate of the schedule at 0.005 or below; flatline lr-find finds it"


@pytest.mark.parametrize(
    "changed",
    [
        {"high": 0.015},  # not the rate
        {"update": 0.005},  # ordinary steps
        {"back": 1.4},  # noise of the high rate
        {"first": 1.3, "back": 1.29},  # nothing to lose
        {"optimizers": 2},  # adversaries
        {"classes": 0},  # a loss that may grow with its targets
    ],
)
def test_near_miss_a_rate_that_rises(changed):
    assert play(LearningRateTooHigh, *schedule(**changed)) == []


def restarts(*, peaks=(0.004, 0.016, 0.064), back=0.7, update=0.05):
    """A regression under restarts whose peaks grow: the last one takes away what the first two had brought."""
    losses = [1.17, *[0.3] * 63, *[0.08] * 64, *[back] * 192]
    rates = [peaks[0]] * 64 + [peaks[0] / 40] * 64 + [peaks[1]] * 64 + [peaks[1] / 40] * 64 + [peaks[2]] * 64
    samples = run([0.01] * 128 + [update] * 2 + [1e-4] * 190, losses, first_loss=1.17)
    read = LossesRead(step=320, optimizer=ADAM, steps=tuple(range(1, 321)), losses=tuple(losses), rates=tuple(rates))
    return *samples, read, RunEnded(step=320)


def test_fires_where_each_restart_goes_higher():
    (finding,) = play(LearningRateTooHigh, *restarts())
    assert "as lr went on to 0.064, where a step changes the weights by 5.0% of their size" in finding.message


@pytest.mark.parametrize(
    "changed", [{"peaks": (0.004, 0.004, 0.004)}, {"back": 0.3}, {"update": 0.005}, {"peaks": (0.004, 0.001, 0.006)}]
)
def test_near_miss_restarts(changed):
    assert play(LearningRateTooHigh, *restarts(**changed)) == []


def killed(*, left=1e-9, update=0.28, loss=2.08, lr=0.7, peak=0.76):
    """Large steps of a warm-up, and then none at all."""
    yield FirstCrossEntropy(classes=8)
    for event in run(
        [0.01] * 10 + [update] * 10 + [left] * 125, [2.08] * 20 + [loss] * 125, lr=lr, first_loss=2.08, optimizer=SGD
    ):
        yield replace(event, peak_lr=peak)


def test_fires_where_large_steps_left_no_gradient():
    (finding,) = play(LearningRateTooHigh, *killed())
    assert (
        "its steps changed the weights by up to 28% of their size; by step 100 they change by 1e-09" in finding.message
    )


@pytest.mark.parametrize("changed", [{"left": 1e-3}, {"update": 0.005}, {"loss": 0.01}, {"lr": 0.01}])
def test_near_miss_no_gradient_left(changed):
    assert [f for f in play(LearningRateTooHigh, *killed(**changed)) if "no gradient is left" in f.message] == []


def leaps_that_kill(*, updates=(1.5, 0.6, 0.4, 0.3, 0.2), first=10, now=46, step=14):
    """What the first steps did to 48 units, of which some were zero before."""
    yield ForwardObserved(step=1, dead=(DeadFacts(layer="out.1", units=48, dead=first, samples=64, total=64),))
    yield from run([*updates, *[0.1] * 9], [0.94, 2.66, 5.68, 1.2, 2.9, *[0.95] * 9])
    facts = DeadFacts(layer="out.1", units=48, dead=now, samples=64, looks=3, lasting=now, total=192)
    yield ForwardObserved(step=step, dead=(facts,))


def test_fires_where_the_first_steps_killed_the_units():
    (finding,) = play(LearningRateTooHigh, *leaps_that_kill())
    assert (
        "carried the weights 3.0 times their own size, and 46 of 48 units of the ReLU out.1 that were"
        in finding.message
    )


@pytest.mark.parametrize(
    "changed",
    [{"updates": (0.1,) * 5}, {"first": 40}, {"now": 30}, {"step": 400}],
    ids=["ordinary steps", "born dead", "alive", "much later"],
)
def test_near_miss_units_that_are_zero(changed):
    assert play(LearningRateTooHigh, *leaps_that_kill(**changed)) == []


def test_near_miss_a_rate_on_a_device_is_not_known():
    unknown = (float("nan"),) * 224
    events = [replace(e, rates=unknown) if isinstance(e, LossesRead) else e for e in schedule()]
    assert play(LearningRateTooHigh, *events) == []


def test_near_miss_a_cycle_that_comes_down_again():
    events = [*schedule()]
    down = tuple(range(225, 400))
    events[-1:] = [
        LossesRead(step=400, optimizer=ADAM, steps=down, losses=(1.25,) * 175, rates=(0.001,) * 175),
        RunEnded(step=400),
    ]
    assert play(LearningRateTooHigh, *events) == []


def growing(*, times=16.0, update=0.02, end=2.05, weight=0.02, optimizer=ADAM, kind="Linear"):
    """AdamW at 0.096 on weights of 0.02, with a warm-up: they are far larger after twenty steps."""
    losses = [3.46] * 20 + [2.6] * 20 + [end] * 80
    for event in run([0.15] * 5 + [0.08] * 25 + [update] * 90, losses, optimizer=optimizer, lr=0.096):
        size = weight * (1 + (times - 1) * min(1.0, event.index / 25))
        yield replace(event, layers=tuple(replace(each, weight_rms=size, kind=kind) for each in event.layers))


def test_fires_where_the_weights_are_blown_up_at_once():
    finding = play(LearningRateTooHigh, *growing())[0]
    assert finding.step == 100
    assert (
        "its first 30 steps blew the typical weight matrix up to 8.53 times its initial size, and a step still changes it by 2.0%"
    ) in finding.message


@pytest.mark.parametrize(
    "changed",
    [
        {"times": 8.0},
        {"update": 0.004},
        {"end": 1.5},
        {"weight": 1e-3},
        {"optimizer": SGD},
    ],  # the weight is far under what initialisers leave
)
def test_near_miss_weights_that_grow(changed):
    assert play(LearningRateTooHigh, *growing(**changed)) == []


def thrown(*, off=(9.0, 20.0), last=5.4, update=0.04, gradient=1e-3, optimizers=1):
    """The loss comes down, and then goes far up at one and the same rate; the answers lie beyond all targets now and then."""
    losses = [0.5] * 16 + [0.23] * 48 + [last] * 160
    samples = run([update] * 60 + [0.004] * 164, losses, optimizer=SGD, gradient=gradient)
    samples = samples[:60] + samples[60::16]
    read = LossesRead(step=224, optimizer=SGD, steps=tuple(range(1, 225)), losses=tuple(losses), rates=(1.28,) * 224)
    others = [replace(read, optimizer=replace(SGD, key=2 + i)) for i in range(optimizers - 1)]
    beyond = [AnswersBeyond(step=100 + i, off=each, low=-1.7, high=1.7, loss=5.0) for i, each in enumerate(off)]
    return *samples, read, *others, *beyond, RunEnded(step=224)


def test_fires_where_answers_lie_beyond_all_targets():
    (finding,) = play(LearningRateTooHigh, *thrown())
    assert (finding.severity, finding.key) == ("warning", "beyond")
    assert finding.message == (
        "at lr=1.28 SGD overshoots: a step typically changed the weights by 4.0% of their size (healthy: about 0.1 %), and the "
        "loss went from 0.5 by way of 0.23 to 5.4: at step 101 the answers were 20 off, where all targets lie from -1.7 to 1.7"
    )


@pytest.mark.parametrize(
    "changed",
    [{"off": (9.0,)}, {"last": 1.2}, {"update": 0.015}, {"gradient": 0.2}, {"optimizers": 2}],
    ids=["once", "it comes back", "ordinary steps", "the gradient is at fault", "adversaries"],
)
def test_near_miss_answers_beyond_all_targets(changed):
    assert play(LearningRateTooHigh, *thrown(**changed)) == []


def test_a_run_without_weight_matrices_is_not_judged():
    """Tables of ids only: no step has a size that could be compared."""
    (sample,) = run([0.04], [0.5], optimizer=SGD)
    tables = replace(sample, layers=tuple(replace(each, kind="Embedding") for each in sample.layers))
    assert play(LearningRateTooHigh, tables, *(e for e in thrown() if not isinstance(e, NumbersSampled))) == []


def relapse(*, step=0.4, low=0.33, end=1.6, typical=2.4, classes=24, optimizer=ADAM):
    """Steps as large as the weights; the loss falls for 64 steps and comes back, at one rate all along."""
    losses = [3.2, *[low] * 63, *[typical] * 128, *[end] * 16]
    samples = run([step] * 5 + [0.02] * 203, losses, optimizer=optimizer, lr=0.03, first_loss=3.2)
    read = LossesRead(
        step=208, optimizer=optimizer, steps=tuple(range(1, 209)), losses=tuple(losses), rates=(0.03,) * 208
    )
    return FirstCrossEntropy(classes=classes), *samples, read, RunEnded(step=208)


def test_fires_where_large_steps_lose_again_what_was_learned():
    (finding,) = play(LearningRateTooHigh, *relapse())
    assert finding.message == (
        "at lr=0.03 Adam overshoots: its first 5 steps carried the weights 2.0 times their own size (healthy: about 0.1 % a step); "
        "the loss had come from 3.2 to 0.33 at step 16, and is 1.6 at the end"
    )


@pytest.mark.parametrize(
    "changed",
    [{"step": 0.1}, {"typical": 0.9}, {"end": 0.5}, {"low": 2.9}, {"classes": 0}, {"optimizer": SGD}],
)
def test_near_miss_of_a_relapse(changed):
    assert play(LearningRateTooHigh, *relapse(**changed)) == []


def test_fires_where_a_part_of_it_is_lost_far_above_the_best():
    (finding,) = play(LearningRateTooHigh, *relapse(low=0.03, typical=1.0, end=0.9))
    assert finding.message.endswith("the loss had come from 3.2 to 0.03 at step 16, and is 0.9 at the end")


@pytest.mark.parametrize("changed", [{"typical": 0.7}, {"end": 0.08}, {"low": 0.4}, {"step": 0.2}])
def test_near_miss_of_a_part_that_is_lost(changed):
    assert play(LearningRateTooHigh, *relapse(**{"low": 0.03, "typical": 1.0, "end": 0.9, **changed})) == []


def erased(*, step=0.98, second=0.6, elements=4096, growth=5.0, early=0.72, end=0.71, classes=4, optimizer=ADAM):
    """A first step as large as the weights, which grow; the loss falls at once, and stands still from then on."""
    losses = [1.4, *[1.0] * 15, *[early] * 112, *[end] * 128]
    samples = run([step, second] + [0.02] * 254, losses, optimizer=optimizer, lr=0.08)
    grown = [0.1 * (1 + step**2) ** 0.5 * (1 + (growth / (1 + step**2) ** 0.5 - 1) * i / 255) for i in range(256)]
    sized = [
        replace(sample, layers=tuple(replace(each, weight_rms=rms, elements=elements) for each in sample.layers))
        for sample, rms in zip(samples, grown, strict=True)
    ]
    read = LossesRead(
        step=256, optimizer=optimizer, steps=tuple(range(1, 257)), losses=tuple(losses), rates=(0.08,) * 256
    )
    return FirstCrossEntropy(classes=classes), *sized, read, RunEnded(step=256)


def test_fires_where_the_first_weights_are_erased_and_the_loss_stands_still():
    (finding,) = play(LearningRateTooHigh, *erased())
    assert finding.message == (
        "at lr=0.08 Adam overshoots: at step 1 it changed the weights by 98% of their own size (healthy: about 0.1 %), the "
        "typical weight matrix is 5 times what it began as, and the loss has stood still since early on: 0.72 in the second "
        "quarter of the run, 0.71 in the last one"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"second": 0.1},
        {"elements": 9},
        {"growth": 3.0},
        {"end": 0.6},
        {"early": 0.3, "end": 0.3},
        {"classes": 0},
        {"optimizer": SGD},
    ],
)
def test_near_miss_of_weights_that_are_erased(changed):
    assert play(LearningRateTooHigh, *erased(**changed)) == []


def not_a_number(*, updates=(6.0, 5.0), largest=1e6, **options):
    losses = [1.0, 1e6][: len(updates)]
    broken = LossNotFinite(step=3, value="inf", first_finite=1.0, largest=largest)
    return play(LearningRateTooHigh, *run(list(updates), losses, **options), broken)


def scattered(*, step=1.0, worst=300.0, growth=20.0, middle=0.1, end=0.12, swing=0.5, optimizer=ADAM):
    """The first steps throw the loss far up; it comes down to a tenth of where it began, and goes up and down from then on."""
    level = [middle] * 104 + [end] * 128
    restless = [each * (1 + swing * math.sin(2.3 * (i // 8))) for i, each in enumerate(level)]
    losses = [0.9, *[worst] * 7, *[0.6] * 16, *restless]
    samples = run([step] * 5 + [0.004] * 251, losses, optimizer=optimizer, lr=0.3)
    sized = [
        replace(each, layers=tuple(replace(layer, weight_rms=0.1 if i == 0 else 0.1 * growth) for layer in each.layers))
        for i, each in enumerate(samples)
    ]
    read = LossesRead(
        step=256, optimizer=optimizer, steps=tuple(range(1, 257)), losses=tuple(losses), rates=(0.3,) * 256
    )
    return *sized, read, RunEnded(step=256, first_loss=0.9, loss=losses[-1])


def test_fires_where_the_loss_was_thrown_far_up_and_never_settles():
    (finding,) = play(LearningRateTooHigh, *scattered())
    assert finding.message.startswith(
        "at lr=0.3 Adam overshoots: its first 5 steps carried the weights 5.0 times their own size (healthy: about 0.1 % a step), "
        "and the loss went from 0.9 to 300; by the second quarter of the run it was"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"step": 0.2},
        {"worst": 9.0},
        {"growth": 2.0},
        {"end": 0.05},  # it still falls
        {"swing": 0.05},  # the noise of the targets
        {"optimizer": SGD},
    ],
)
def test_near_miss_of_a_loss_that_was_thrown_far_up(changed):
    assert play(LearningRateTooHigh, *scattered(**changed)) == []


def test_fires_where_the_loss_is_no_number_after_steps_that_left_nothing():
    (finding,) = not_a_number()
    assert "its first steps carried the weights 11.0 times their own size; the loss is inf since" in finding.message


def test_near_miss_of_on_loss_not_finite_a_loss_that_breaks_for_another_reason():
    assert not_a_number(updates=(1e-3, 1e-3)) == []
    assert not_a_number(largest=1.2) == []
    assert not_a_number(optimizer=SGD, gradient=10.0) == []
