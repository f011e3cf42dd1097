from dataclasses import replace

import pytest

from flatline.events import (
    LayerNumbers,
    LossComputed,
    LossesRead,
    NumbersSampled,
    OptimizerFacts,
    ParameterFacts,
    ParametersAudited,
    RunEnded,
    Where,
)
from flatline.rules.optimization.one_rate_for_all_layers import OneRateForAllLayers
from flatline.testing import play

BODY = ("body.0.weight", "body.2.weight", "body.4.weight")
ADAM = OptimizerFacts(name="AdamW", where=Where("train.py", 12))


def audit(body=True, head=False, **facts):
    made = [ParameterFacts(name=n, shape=(32, 32), loaded=body, optimizers=(0,), **facts) for n in BODY]
    return ParametersAudited(
        parameters=(*made, ParameterFacts(name="head.weight", shape=(3, 32), loaded=head, optimizers=(0,)))
    )


def steps(ratio=0.3, body_lr=0.01, head_elements=96):
    body = [LayerNumbers(name=n, update_ratio=ratio, learning_rate=body_lr, elements=1024) for n in BODY]
    head = LayerNumbers(name="head.weight", update_ratio=0.2, learning_rate=0.01, elements=head_elements)
    return [NumbersSampled(step=i, index=i, optimizer=ADAM, layers=(*body, head)) for i in range(1, 8)]


def test_fires_on_a_body_that_is_rewritten():
    first, *rest = steps()
    (finding,) = play(OneRateForAllLayers, first, audit(), *rest)
    assert (finding.code, finding.severity, finding.step) == ("O19", "warning", 5)
    assert finding.where == Where("train.py", 12)
    assert finding.message == (
        "3 pretrained weight matrices moved by 150% of their own size in 5 steps, at the rate of 0.01 that they share "
        "with the fresh head.weight"
    )
    assert "lr=0.001" in finding.fix


def test_hint_on_a_body_that_moves_noticeably():
    (finding,) = play(OneRateForAllLayers, audit(), *steps(ratio=0.05))
    assert finding.severity == "hint"


def faster_than_before(ratio, *, rate=1e-3, index=400, adaptive=False):
    """Its body was trained by another optimizer."""
    kind = replace(ADAM, adaptive=adaptive)
    trained = NumbersSampled(step=index, index=index, optimizer=kind, lr=rate / 10, peak_lr=rate)
    tuned = [replace(event, optimizer=replace(ADAM, key=2)) for event in steps(ratio=ratio)]
    return play(OneRateForAllLayers, trained, audit(False, trained_before=True), *tuned)


def test_fires_on_a_body_that_moves_a_fifth_at_a_rate_above_that_of_its_training():
    (finding,) = faster_than_before(0.05)
    assert finding.severity == "warning"
    assert finding.message.endswith("with the fresh head.weight; they were trained at 0.001")


@pytest.mark.parametrize("facts", [{"rate": 8e-3}, {"index": 60}, {"adaptive": True}], ids=["as fast", "a try", "SGD"])
def test_near_miss_a_body_that_moves_a_fifth(facts):
    assert [finding.severity for finding in faster_than_before(0.05, **facts)] == ["hint"]


def leaping(ratio, *losses):
    return [
        replace(event, loss=loss, first_loss=losses[0]) for event, loss in zip(steps(ratio=ratio), losses, strict=False)
    ]


def test_a_loss_that_leaps_is_told():
    (finding,) = play(OneRateForAllLayers, audit(), *leaping(0.12, 1.4, 1.2, 2.6, 1.1, 1.3))
    assert finding.severity == "warning"
    assert finding.message.endswith("with the fresh head.weight; the loss leapt from 1.4 to 2.6")


def test_fires_on_a_body_that_was_trained_before():
    assert len(play(OneRateForAllLayers, audit(False, trained_before=True), *steps())) == 1


def test_near_miss_a_body_that_moves_by_a_third():
    (finding,) = play(OneRateForAllLayers, audit(), *leaping(0.07, 1.4, 1.2, 2.6, 1.1, 1.3))
    assert finding.severity == "hint"


def test_near_miss_a_body_under_batch_norm():
    """Its matrices have no size of their own."""
    normed = LayerNumbers(name="body.1.weight", kind="BatchNorm2d", matrix=False)
    events = [replace(event, layers=(*event.layers, normed)) for event in steps(ratio=0.12)]
    assert [finding.severity for finding in play(OneRateForAllLayers, audit(), *events)] == ["hint"]


def test_near_miss_one_small_rate():
    assert play(OneRateForAllLayers, audit(), *steps(ratio=0.005)) == []


def test_near_miss_groups_with_their_own_rates():
    assert play(OneRateForAllLayers, audit(), *steps(body_lr=0.001)) == []


@pytest.mark.parametrize(("body", "head"), [(False, False), (True, True), (False, True)])
def test_near_miss_from_scratch_or_all_from_the_checkpoint(body, head):
    assert play(OneRateForAllLayers, audit(body, head), *steps()) == []


def test_near_miss_frozen_body():
    assert play(OneRateForAllLayers, audit(trainable=False), *steps()) == []


def test_near_miss_a_small_part_is_pretrained():
    assert play(OneRateForAllLayers, audit(), *steps(head_elements=9000)) == []


def test_near_miss_too_fast_for_any_layer():
    assert play(OneRateForAllLayers, audit(), *steps(ratio=0.9)) == []


def test_near_miss_sampled_too_late():
    late = [replace(event, index=event.index + 20) for event in steps()]
    assert play(OneRateForAllLayers, audit(), *late) == []


def left_behind(
    *, ratio=0.0005, losses=(8.0, 4.0, 2.1), classes=10, count=280, how="finished", body_lr=0.01, before=()
):
    """One small rate for all; the loss goes evenly from the first of the three to the second and the third."""
    begin, middle, end = losses
    half = count // 2
    fall = [begin + (middle - begin) * i / half for i in range(half)] + [
        middle + (end - middle) * i / half for i in range(half)
    ]
    samples = []
    for at in (*range(1, 8), *range(20, count, 20)):
        event = steps(ratio=1e-4, body_lr=body_lr)[0]
        head = replace(event.layers[-1], update_ratio=ratio)
        samples.append(replace(event, step=at, index=at, layers=(*event.layers[:-1], head)))
    read = LossesRead(
        step=count, optimizer=ADAM, steps=tuple(range(1, count + 1)), losses=tuple(fall), rates=(0.01,) * count
    )
    loss = LossComputed(step=1, kind="cross_entropy", reduction="mean", classes=classes)
    return play(OneRateForAllLayers, audit(), loss, *before, *samples, read, RunEnded(step=count, how=how))


def test_fires_on_a_head_that_is_left_behind():
    (finding,) = left_behind()
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 12))
    assert finding.message == (
        "the fresh head.weight moved by 14% of its own size in the whole run, at the rate of 0.01 that it shares with the "
        "pretrained layers; the loss is 2.32 and still falls (guessing: 2.3)"
    )
    assert "lr=1 or so" in finding.fix


@pytest.mark.parametrize(
    "changed",
    [
        {"ratio": 0.005},
        {"losses": (2.3, 1.4, 0.9)},
        {"losses": (8.0, 2.3, 2.3)},
        {"classes": 1000},
        {"count": 160},
        {"how": "interrupted"},
        {"body_lr": 0.001},
    ],
    ids=["it moves", "far below guessing", "it stands", "more classes", "a try", "cut off", "groups"],
)
def test_near_miss_a_head_that_is_left_behind(changed):
    assert left_behind(**changed) == []


def pretrained(rate=0.5, count=300):
    """In the same run, at a rate of its own."""
    earlier = replace(ADAM, key=-1)
    steps = tuple(range(1, count + 1))
    return (LossesRead(step=count, optimizer=earlier, steps=steps, losses=(1.0,) * count, rates=(rate,) * count),)


def test_fires_halfway_down_at_a_small_part_of_the_rate_that_the_body_was_trained_with():
    (finding,) = left_behind(losses=(2.3, 1.6, 1.0), before=pretrained())
    assert finding.severity == "warning"


def test_fires_above_guessing_where_the_loss_came_down_from_far_above():
    (finding,) = left_behind(losses=(5.0, 2.8, 2.5), before=pretrained())
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    "changed",
    [
        {"before": ()},
        {"losses": (5.0, 1.9, 1.6)},
        {"before": pretrained(0.05)},
        {"before": pretrained(count=100)},
        {"losses": (2.3, 1.2, 0.6)},
        {"losses": (2.3, 1.2, 1.0)},
        {"ratio": 0.005},
    ],
    ids=[
        "rate not known",
        "came down from far above",
        "a fifth of it",
        "a try",
        "far below guessing",
        "it stands",
        "it moves",
    ],
)
def test_near_miss_halfway_down(changed):
    assert left_behind(**{"losses": (2.3, 1.6, 1.0), "before": pretrained(), **changed}) == []
