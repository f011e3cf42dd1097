"""Rates that load_state_dict brings back."""

from __future__ import annotations

import linecache

import pytest
from watching import seen

from flatline.events import RateRestored
from flatline.sensors.told_rates import constant_told, told_below

SCRIPT = """
import torch
from torch.optim import lr_scheduler as schedules
LR = {built}
def groups(model):
    return [{{"params": [model.weight]}}, {{"params": [model.bias], "lr": 0.01}}] if {two} else model.parameters()
old = torch.nn.Linear(3, 1)
before = torch.optim.Adam(groups(old), lr=0.002)
schedule = schedules.{schedule}
for _ in range(20):
    old(torch.ones(4, 3)).square().mean().backward()
    before.step()
    schedule.step()
state = before.state_dict()
model = torch.nn.Linear(3, 1)
opt = torch.optim.Adam(groups(model), lr=LR)
{load}
for step in range({steps}):
    opt.zero_grad()
    model(torch.ones(4, 3)).square().mean().backward()
    opt.step()
    {after}
"""
LOAD = "opt.load_state_dict(state)"
COSINE = "CosineAnnealingLR(before, 20)"


@pytest.fixture
def told(tmp_path):
    def run(load=LOAD, after="pass", schedule=COSINE, steps=60, two=False, built=0.001):
        text = SCRIPT.format(load=load, after=after, schedule=schedule, steps=steps, two=two, built=built)
        file = tmp_path / "train.py"
        file.write_text(text)
        linecache.checkcache()
        constant_told.cache_clear()
        code = compile(text, str(file), "exec")
        return seen(lambda: exec(code, {"__name__": "train"}), RateRestored)

    return run


@pytest.mark.parametrize("steps", [12, 60, 300])
def test_the_end_of_a_schedule(told, steps):
    (restored,) = told(steps=steps)
    assert (restored.built, restored.rate, restored.peak, restored.told) == (0.001, 0.0, 0.002, "")
    assert restored.where.line == 17
    assert restored.steps == steps  # somebody may write another rate until then


def test_other_schedules_and_groups(told):
    (cycle,) = told(schedule="OneCycleLR(before, 0.02, total_steps=21)")
    assert (cycle.peak, cycle.rate < 1e-5) == (0.02, True)
    (two,) = told(two=True, schedule="LambdaLR(before, lambda step: max(0.0, 1 - step / 20))")
    assert (two.rate, two.optimizer.name) == (0.0, "Adam")
    (constant,) = told(schedule="ConstantLR(before, 1.0)", after='print(f"lr={LR}")')
    assert (constant.rate, constant.built, constant.told) == (0.002, 0.001, "LR")


@pytest.mark.parametrize(
    "load",
    [
        "pass",
        f"{LOAD}\nfor group in opt.param_groups: group['lr'] = LR",
        f"{LOAD}\nmine = schedules.CosineAnnealingLR(opt, 40)",
        f"mine = schedules.CosineAnnealingLR(opt, 40)\n{LOAD}\nmine.load_state_dict(schedule.state_dict())",
    ],
)
def test_near_miss_another_rate_or_a_schedule(told, load):
    assert told(load) == []


def test_near_miss_a_rate_that_moves(told):
    assert told(after="opt.param_groups[0]['lr'] = 0.001 / (1 + step)") == []


def test_near_miss_the_same_rate(told):
    assert told(schedule="ConstantLR(before, 1.0)", built=0.002) == []
    assert told(steps=5) == []


def test_near_miss_back_to_the_best_step_of_the_same_run(told):
    back = "if step == 20: opt.load_state_dict(state)"
    assert told(load="pass", after=back) == []


BY_HAND = SCRIPT.replace("schedule = schedules.{schedule}\n", "").replace(
    "    schedule.step()", "    before.param_groups[0]['lr'] = max(2e-6, before.param_groups[0]['lr'] * 0.5)"
)


def by_hand(tmp_path, load=LOAD, after="pass"):
    file = tmp_path / "train.py"
    file.write_text(BY_HAND.format(load=load, after=after, steps=60, two=False, built=0.001))
    linecache.checkcache()
    told_below.cache_clear()
    code = compile(file.read_text(), str(file), "exec")
    return seen(lambda: exec(code, {"__name__": "train"}), RateRestored)


def test_the_end_of_a_schedule_by_hand(tmp_path):
    (restored,) = by_hand(tmp_path)
    assert (restored.rate, restored.peak, restored.told, restored.steps) == (2e-6, 0.002, "", 60)
    (told,) = by_hand(tmp_path, load=f'{LOAD}\nprint(f"training with lr = {{LR}}")')
    assert (told.told, told.once) == ("LR", True)


def test_near_miss_a_schedule_by_hand_that_goes_on(tmp_path):
    again = (
        "opt.param_groups[0]['lr'] = max(2e-6, opt.param_groups[0]['lr'] * 0.5) if step % 20 == 19 else float('2e-6')"
    )
    assert by_hand(tmp_path, after=again) == []
