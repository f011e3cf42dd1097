from dataclasses import replace

import pytest

from flatline.events import ClipFacts, OptimizerFacts, OptimizerStepped, Where
from flatline.rules.gradients.clip_before_backward import ClipBeforeBackward
from flatline.testing import lint, play

CLIP = ClipFacts(norm=0.0, where=Where("train.py", 22))
EARLY = ("zero", "forward", "clip", "backward")


def steps(*tapes, clip=CLIP, **facts):
    return [
        OptimizerStepped(step=i, index=i, tape=tape, clips=(clip,) * tape.count("clip"), **facts)
        for i, tape in enumerate(tapes, 1)
    ]


def test_fires_on_a_clip_of_empty_gradients():
    (finding,) = play(ClipBeforeBackward, *steps(EARLY, EARLY))
    assert finding.severity == "error"
    assert finding.step == 2
    assert finding.where == Where("train.py", 22)
    assert (
        finding.message == "clip_grad_norm_ runs before backward() in all of the last 2 steps, on gradients of norm 0"
    )


def test_fires_on_clipping_by_value():
    assert len(play(ClipBeforeBackward, *steps(EARLY, EARLY, clip=replace(CLIP, kind="value", norm=None)))) == 1


def test_near_miss_between_backward_and_step():
    assert play(ClipBeforeBackward, *steps(*[("zero", "forward", "backward", "clip")] * 4)) == []


def test_near_miss_seen_once():
    assert play(ClipBeforeBackward, *steps(EARLY, EARLY[:2] + EARLY[3:])) == []


def test_near_miss_several_backwards_with_a_clip_each():
    assert (
        play(ClipBeforeBackward, *steps(*[("zero", "forward", "backward", "clip", "forward", "backward", "clip")] * 3))
        == []
    )


def test_near_miss_gradients_were_there_already():
    assert play(ClipBeforeBackward, *steps(*[EARLY] * 4, clip=replace(CLIP, norm=1.3))) == []


def test_near_miss_right_after_the_step_is_another_rule():
    assert play(ClipBeforeBackward, *steps(*[("clip", "zero", "forward", "backward")] * 4)) == []


def test_near_miss_clip_is_for_the_other_optimizer():
    first, second = OptimizerFacts(key=1), OptimizerFacts(key=2)
    events = []
    for event in steps(*[EARLY] * 4):
        own = replace(event, tape=("zero", "forward", "backward", "clip"), optimizer=second)
        events += [own, replace(event, optimizer=first)]
    assert play(ClipBeforeBackward, *events) == []


LOOP = "import torch\nfor x in data:\n    {}"
CLIPPED = "torch.nn.utils.clip_grad_value_(net.parameters(), 1.0)"


@pytest.mark.parametrize(
    "lines",
    [
        ("opt.zero_grad()", CLIPPED, "loss.backward()", "opt.step()"),
        (CLIPPED, "loss.backward()", "opt.step()", "opt.zero_grad()"),
        ("opt.zero_grad()", f"if limit: {CLIPPED}", "loss.backward()", "opt.step()"),
    ],
)
def test_source_clip_before_backward(lines):
    """Seen as a SourceParsed."""
    (finding,) = lint(ClipBeforeBackward, LOOP.format("\n    ".join(lines)))
    assert "before backward()" in finding.message


@pytest.mark.parametrize(
    "lines",
    [
        ("opt.zero_grad()", "loss.backward()", CLIPPED, "opt.step()"),
        ("loss.backward()", CLIPPED, "opt.step()", "opt.zero_grad()"),
        ("opt.zero_grad()", "first_backward(loss)", CLIPPED, "loss.backward()", "opt.step()"),
    ],
)
def test_near_miss_source(lines):
    assert lint(ClipBeforeBackward, LOOP.format("\n    ".join(lines))) == []
