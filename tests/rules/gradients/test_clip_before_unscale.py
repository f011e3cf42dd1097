from dataclasses import replace

import pytest

from flatline.events import ClipFacts, OptimizerStepped, Where
from flatline.rules.gradients.clip_before_unscale import ClipBeforeUnscale
from flatline.testing import lint, play

CLIP = ClipFacts(threshold=1.0, norm=9e4, scaled=True, scale=65536.0, where=Where("train.py", 30))
TAPE = ("zero", "forward", "backward", "clip")


def step(clip, tape=TAPE):
    return OptimizerStepped(step=1, tape=tape, clips=(clip,), scaled=True)


def test_fires_on_a_clip_of_scaled_gradients():
    (finding,) = play(ClipBeforeUnscale, step(CLIP), step(CLIP))
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 30)
    assert finding.message == "clip_grad_norm_ clips gradients of norm 9e+04 to 1 while they carry the loss scale 65536"
    assert "= 1.5e-05 instead of 1" in finding.cause
    assert finding.fix == "call scaler.unscale_(optimizer) between backward() and clip_grad_norm_"


def test_fires_on_values_and_on_overflow():
    assert len(play(ClipBeforeUnscale, step(replace(CLIP, kind="value", norm=None)))) == 1
    assert len(play(ClipBeforeUnscale, step(replace(CLIP, norm=float("inf"))))) == 1


def test_near_miss_unscaled_before():
    assert play(ClipBeforeUnscale, step(replace(CLIP, scaled=False))) == []


def test_near_miss_threshold_times_scale():
    assert play(ClipBeforeUnscale, step(replace(CLIP, threshold=65536.0))) == []


def test_near_miss_scale_of_one():
    assert play(ClipBeforeUnscale, step(replace(CLIP, scale=1.0))) == []


def test_near_miss_optimizer_whose_loss_is_not_scaled():
    assert play(ClipBeforeUnscale, step(replace(CLIP, norm=0.7))) == []


def test_near_miss_clip_before_any_backward():
    assert play(ClipBeforeUnscale, step(CLIP, ("zero", "clip", "forward", "backward"))) == []


LOOP = """
import torch
from torch.nn.utils import clip_grad_norm_
opt = torch.optim.SGD(net.parameters(), 0.1)
scaler = torch.amp.GradScaler()
for x in data:
    opt.zero_grad()
    {}
    scaler.update()
"""


@pytest.mark.parametrize("late", ["", "scaler.unscale_(opt)"])
def test_source_clip_before_unscale(late):
    """Seen as a SourceParsed."""
    lines = "scaler.scale(loss).backward()", "clip_grad_norm_(net.parameters(), 1.0)", late, "scaler.step(opt)"
    (finding,) = lint(ClipBeforeUnscale, LOOP.format("\n    ".join(lines)))
    assert finding.where.line == 8


@pytest.mark.parametrize(
    "lines",
    [
        ("scaler.scale(loss).backward()", "scaler.unscale_(opt)", "clip_grad_norm_(p, 1.0)", "scaler.step(opt)"),
        ("loss.backward()", "clip_grad_norm_(p, 1.0)", "opt.step()"),
        ("scaler.scale(loss).backward()", "clip_grad_norm_(p, 1.0 * scaler.get_scale())", "scaler.step(opt)"),
    ],
)
def test_near_miss_source(lines):
    assert lint(ClipBeforeUnscale, LOOP.format("\n    ".join(lines))) == []


MIXED = """
import torch
class Scales:
    def before(self): self.scaler.unscale_(self.opt)
    def step(self): self.before(); self.scaler.step(self.opt); self.scaler.update(); self.opt.zero_grad()
class Clips:
    def before(self):
        {first}
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
class Averages:
    def step(self): super().step(); self.average()
class Trainer(Averages, Clips, Scales):
    def __init__(self):
        self.net = torch.nn.Linear(3, 3)
        self.opt, self.scaler = torch.optim.SGD(self.net.parameters(), 0.1), torch.amp.GradScaler()
    def send(self, loss): self.scaler.scale(loss).backward()
    def turn(self, x): self.send(self.net(x).mean()); self.step()
    def fit(self):
        for x in data: self.turn(x)
Trainer().fit()
"""


@pytest.mark.parametrize(("first", "found"), [("super().before()", 0), ("pass", 1)])
def test_source_mixins_many_calls_deep(first, found):
    assert len(lint(ClipBeforeUnscale, MIXED.format(first=first))) == found


SWITCHED = """
import torch
net = torch.nn.Linear(3, 3)
opt, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cuda"{switch})
for x in data:
    opt.zero_grad()
    scaler.scale(net(x).mean()).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("switch", "found"),
    [
        ("", 1),
        (", enabled=True", 1),
        (", enabled=amp", 1),
        (", enabled=False", 0),
        (", enabled=kind is torch.float16", 0),
    ],
)
def test_source_a_scaler_that_is_switched_off(switch, found):
    assert len(lint(ClipBeforeUnscale, SWITCHED.format(switch=switch))) == found


def by_hand(**facts):
    clip = replace(CLIP, **facts)
    return OptimizerStepped(step=2, tape=("zero", "forward", "backward", "unscale"), scaled=True, clip_by_hand=clip)


def test_fires_on_clipping_by_hand():
    (finding,) = play(ClipBeforeUnscale, by_hand())
    assert finding.message.startswith("the script's own clipping clips gradients of norm 9e+04 to 1 while they carry")


def test_near_miss_clipping_by_hand_behind_unscale():
    assert play(ClipBeforeUnscale, by_hand(scaled=False), by_hand(threshold=65536.0)) == []
