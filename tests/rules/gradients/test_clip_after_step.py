from dataclasses import replace

import pytest

from flatline.events import ClipFacts, OptimizerFacts, OptimizerStepped, Where
from flatline.rules.gradients.clip_after_step import ClipAfterStep
from flatline.testing import lint, play

CLIP = ClipFacts(norm=0.8, where=Where("train.py", 25))
LATE = ("clip", "batch", "zero", "forward", "backward")


def steps(*tapes, clip=CLIP, **facts):
    return [
        OptimizerStepped(step=i, index=i, tape=tape, clips=(clip,) * tape.count("clip"), **facts)
        for i, tape in enumerate(tapes, 1)
    ]


def test_fires_on_a_clip_right_after_the_step():
    (finding,) = play(ClipAfterStep, *steps(LATE[1:], LATE, LATE))
    assert finding.severity == "error"
    assert finding.step == 3
    assert finding.where == Where("train.py", 25)
    assert finding.message == (
        "clip_grad_norm_ runs after SGD.step() and before the next backward: seen after all of the last 2 steps"
    )
    assert finding.fix == "move clip_grad_norm_ between loss.backward() and optimizer.step()"


def test_near_miss_between_backward_and_step():
    tape = ("batch", "zero", "forward", "backward", "clip")
    assert play(ClipAfterStep, *steps(*[tape] * 4)) == []


def test_near_miss_both_after_the_step_and_before_it():
    assert play(ClipAfterStep, *steps(*[(*LATE, "clip")] * 4)) == []


def test_near_miss_no_modules_and_no_zeroing():
    assert play(ClipAfterStep, *steps(*[("backward", "clip")] * 4)) == []


def test_near_miss_clip_is_for_the_second_optimizer():
    first, second = OptimizerFacts(key=1), OptimizerFacts(key=2)
    events = []
    for event in steps(LATE[1:], LATE, LATE, LATE):
        own = replace(event, tape=("zero", "forward", "backward", "clip"), clips=(CLIP,), optimizer=second)
        events += [replace(event, optimizer=first), own]
    assert play(ClipAfterStep, *events) == []


def test_near_miss_only_measures_the_norm():
    assert play(ClipAfterStep, *steps(*[LATE] * 4, clip=replace(CLIP, threshold=1e9))) == []


def test_near_miss_closure():
    assert play(ClipAfterStep, *steps(*[LATE] * 4, closure=True)) == []


LOOP = "import torch\nfrom torch.nn.utils import clip_grad_norm_ as clip\nfor x in data:\n    {}"


def test_source_clip_after_step():
    """Seen as a SourceParsed."""
    lines = "opt.zero_grad()", "loss.backward()", "opt.step()", "clip(net.parameters(), 1.0)"
    (finding,) = lint(ClipAfterStep, LOOP.format("\n    ".join(lines)))
    assert finding.where.line == 7


@pytest.mark.parametrize(
    "lines",
    [
        ("opt.zero_grad()", "loss.backward()", "clip(net.parameters(), 1.0)", "opt.step()"),
        ("opt.zero_grad()", "loss.backward()", "opt.step()", "n = clip(net.parameters(), 1e9)"),
        (
            "loss.backward()",
            "if i % 4 == 0:",
            "    clip(net.parameters(), 1.0)",
            "    opt.step()",
            "    opt.zero_grad()",
        ),
    ],
)
def test_near_miss_source(lines):
    assert lint(ClipAfterStep, LOOP.format("\n    ".join(lines))) == []
