from dataclasses import replace

import pytest

from flatline.events import (
    Curve,
    CurvesUpdated,
    OptimizerFacts,
    RateLost,
    RateMisplaced,
    RateRead,
    RateRestored,
    ScheduleObserved,
    Where,
)
from flatline.rules.optimization.logged_rate_is_not_the_rate import LoggedRateIsNotTheRate
from flatline.testing import lint, play

READ = RateRead(step=30, where=Where("train.py", 40), name="StepLR", value=0.001, rate=0.01)
ORPHAN = ScheduleObserved(
    step=100, where=Where("train.py", 30), built_where=Where("train.py", 12), name="CosineAnnealingLR", calls=10,
    first_lr=0.1, peak_lr=0.1, lr=0.01, trainer=OptimizerFacts(key=2, name="AdamW", steps=100), trainer_lr=0.1,
)  # fmt: skip


# --------------------------------------------------------------------------- read


def test_fires_on_wrong_values_of_get_lr():
    (finding,) = play(LoggedRateIsNotTheRate, READ, READ)
    assert (finding.code, finding.severity, finding.key) == ("O23", "warning", "read")
    assert finding.message == "get_lr() of StepLR returned 0.001 while the optimizer's rate is 0.01"
    assert finding.where == Where("train.py", 40)


def test_near_miss_one_look_ahead():
    assert play(LoggedRateIsNotTheRate, READ) == []


def test_near_miss_values_that_nobody_can_tell_apart():
    assert play(LoggedRateIsNotTheRate, *[replace(READ, value=0.00999)] * 5) == []


# --------------------------------------------------------------------------- restored

RESTORED = RateRestored(
    step=360, where=Where("train.py", 50), optimizer=OptimizerFacts(name="Adam"), built=1e-3, rate=0.0, peak=2e-3, steps=50
)  # fmt: skip


def test_fires_on_the_end_of_another_schedule():
    (finding,) = play(LoggedRateIsNotTheRate, RESTORED)
    assert (finding.severity, finding.key, finding.where) == ("warning", "restored", Where("train.py", 50))
    assert finding.message == (
        "Adam was built with lr=0.001, and load_state_dict() put the 0 of the file in its place, where a schedule had brought "
        "it there from 0.002; no schedule follows, and 50 steps were taken at 0"
    )
    assert "O7" in finding.consequences
    assert play(LoggedRateIsNotTheRate, replace(RESTORED, peak=0.0))
    (cycle,) = play(LoggedRateIsNotTheRate, replace(RESTORED, rate=8e-9))
    assert "8e-09 of the file" in cycle.message
    (told,) = play(LoggedRateIsNotTheRate, replace(RESTORED, rate=2e-3, told="args.lr"))
    assert "args.lr is told as the rate" in told.message


def test_fires_on_the_low_rate_of_another_training():
    (lower,) = play(LoggedRateIsNotTheRate, replace(RESTORED, rate=1e-5))
    assert lower.evidence["rate"] == 1e-5
    assert play(LoggedRateIsNotTheRate, replace(RESTORED, rate=2e-6, peak=2e-3, built=2e-3))
    assert play(LoggedRateIsNotTheRate, replace(RESTORED, rate=3e-2, told="lr", once=True, peak=0.0))


def test_near_miss_a_setting_that_is_told_once():
    assert play(LoggedRateIsNotTheRate, replace(RESTORED, rate=2e-4, told="lr", once=True)) == []


def test_near_miss_a_restored_rate_that_is_in_use():
    assert play(LoggedRateIsNotTheRate, replace(RESTORED, rate=1e-5, peak=1e-3)) == []
    assert play(LoggedRateIsNotTheRate, replace(RESTORED, rate=5e-5)) == []
    assert play(LoggedRateIsNotTheRate, replace(RESTORED, rate=1e-5, steps=20)) == []
    assert play(LoggedRateIsNotTheRate, replace(RESTORED, rate=1e-3, built=1e-4, peak=1e-3)) == []


def test_near_miss_a_small_rate_that_no_schedule_led_to():
    assert play(LoggedRateIsNotTheRate, replace(RESTORED, rate=1e-7, peak=0.0)) == []
    assert play(LoggedRateIsNotTheRate, replace(RESTORED, rate=1e-7, peak=1e-6)) == []


# --------------------------------------------------------------------------- the wrong optimizer


def test_fires_on_a_schedule_of_an_optimizer_that_never_steps():
    (finding,) = play(LoggedRateIsNotTheRate, ORPHAN)
    assert (finding.severity, finding.key, finding.where) == ("warning", "orphan", Where("train.py", 12))
    assert finding.message == (
        "CosineAnnealingLR made 10 steps and took the rate from 0.1 to 0.01, in an optimizer that never stepped; the "
        "AdamW that trains its parameters is at 0.1"
    )


def test_fires_on_a_schedule_of_an_optimizer_that_was_replaced():
    (finding,) = play(LoggedRateIsNotTheRate, replace(ORPHAN, optimizer_steps=70))
    assert "in an optimizer that is no longer stepped; the AdamW" in finding.message


def test_fires_on_a_schedule_of_a_model_that_was_copied():
    (finding,) = play(LoggedRateIsNotTheRate, replace(ORPHAN, copied=True))
    assert finding.message.endswith("the AdamW that trains a model of the same shapes is at 0.1")


def test_near_miss_its_own_optimizer_steps():
    assert play(LoggedRateIsNotTheRate, replace(ORPHAN, trainer=None)) == []


def test_near_miss_constant_schedule():
    assert play(LoggedRateIsNotTheRate, replace(ORPHAN, lr=0.1)) == []


def test_near_miss_rates_copied_by_hand():
    assert play(LoggedRateIsNotTheRate, replace(ORPHAN, trainer_lr=0.01)) == []


def test_near_miss_stepped_once():
    assert play(LoggedRateIsNotTheRate, replace(ORPHAN, calls=1)) == []


def logged(name, role, values):
    steps = tuple(float(i + 1) for i in range(len(values)))
    return Curve(name=name, role=role, steps=steps, values=tuple(values), count=len(values))


MOVES = logged("lr-AdamW", "learning_rate", [1e-3 * (1 - i / 50) for i in range(50)])


def test_a_logged_constant_at_the_peak_of_a_schedule_is_a_hint():
    constant = logged("config/lr", "learning_rate", [1e-3] * 50)
    (finding,) = play(LoggedRateIsNotTheRate, CurvesUpdated(curves=(constant, MOVES)))
    assert finding.severity == "hint"
    assert finding.message == "config/lr is 0.001 at all 50 points, while lr-AdamW goes from 0.001 to 2e-05"


def test_near_miss_logged_a_group_with_a_rate_of_its_own():
    other = logged("lr-AdamW/pg2", "learning_rate", [1e-5] * 50)
    assert play(LoggedRateIsNotTheRate, CurvesUpdated(curves=(other, MOVES))) == []


def test_near_miss_logged_only_constants():
    rates = (logged("lr", "learning_rate", [1e-3] * 50), logged("lr2", "learning_rate", [1e-3] * 50))
    assert play(LoggedRateIsNotTheRate, CurvesUpdated(curves=rates)) == []


RATE = "import torch\nfrom torch.optim import lr_scheduler as s\nopt = torch.optim.SGD(p, 0.1)\nsched = s.{}\nprint({})"


def test_source_get_lr():
    """Seen as a SourceParsed."""
    (finding,) = lint(LoggedRateIsNotTheRate, RATE.format("StepLR(opt, 3)", "sched.get_lr()[0]"))
    assert "get_last_lr()" in finding.fix


@pytest.mark.parametrize(
    ("made", "read"),
    [("StepLR(opt, 3)", "sched.get_last_lr()"), ("LambdaLR(opt, f)", "sched.get_lr()"), ("x", "mine.get_lr()")],
)
def test_near_miss_source_rate(made, read):
    assert lint(LoggedRateIsNotTheRate, RATE.format(made, read)) == []


TOLD = ScheduleObserved(
    step=800,
    calls=16,
    first_lr=0.1,
    peak_lr=0.1,
    lr=0.004,
    ended="finished",
    told="config['lr']",
    told_where=Where("t.py", 22),
)


def test_fires_where_the_loop_tells_a_constant():
    (finding,) = play(LoggedRateIsNotTheRate, TOLD)
    assert (finding.severity, finding.where) == ("warning", Where("t.py", 22))
    assert finding.message == (
        "the loop tells config['lr'] as its learning rate, a constant, while StepLR took the rate from 0.1 to 0.004 in 16 steps"
    )


def test_fires_where_the_rate_comes_back():
    (finding,) = play(LoggedRateIsNotTheRate, replace(TOLD, lr=0.1, peak_lr=1.0))
    assert finding.message.endswith(", by way of 1")


def test_near_miss_told_and_the_schedule_hardly_moved():
    assert play(LoggedRateIsNotTheRate, replace(TOLD, lr=0.095)) == []
    assert play(LoggedRateIsNotTheRate, replace(TOLD, calls=2)) == []


def test_near_miss_a_schedule_and_nothing_told():
    assert play(LoggedRateIsNotTheRate, replace(TOLD, told="", told_where=None)) == []


MISPLACED = RateMisplaced(
    step=120, optimizer=OptimizerFacts(name="SGD"), first=0.3, highest=0.3, value=0.25, lr=0.3, looks=9
)


def test_fires_on_a_rate_under_another_key():
    (finding,) = play(LoggedRateIsNotTheRate, MISPLACED)
    assert finding.severity == "error"
    assert finding.fix == 'for group in optimizer.param_groups: group["lr"] = … in place of group["learning_rate"]'
    assert finding.message == (
        'group["learning_rate"] went from 0.3 to 0.25 in 120 steps, and SGD reads group["lr"], which stayed at 0.3'
    )


def test_near_miss_another_key_that_hardly_moves():
    assert play(LoggedRateIsNotTheRate, replace(MISPLACED, value=0.299)) == []


def test_near_miss_another_key_written_once_or_twice():
    assert play(LoggedRateIsNotTheRate, replace(MISPLACED, looks=2)) == []


def test_fires_on_an_attribute():
    (finding,) = play(LoggedRateIsNotTheRate, replace(MISPLACED, place="optimizer.lr"))
    assert finding.message.startswith("optimizer.lr went from 0.3 to 0.25 in 120 steps")


LOST = RateLost(
    optimizer=OptimizerFacts(name="SGD", steps=900),
    text="group = dict(group, lr=lr)",
    values=(0.001, 0.05, 0.0001),
    lr=0.05,
)


def test_a_rate_that_becomes_an_attribute():
    (finding,) = play(LoggedRateIsNotTheRate, replace(LOST, text="opt.lr = lr", attribute=True, lr=1e-5))
    assert finding.severity == "warning"
    assert finding.message == (
        "`opt.lr = lr` sets an attribute that SGD never reads: it went from 0.001 by way of 0.05 to 0.0001, and the rate in use "
        "stayed at 1e-05"
    )


def test_a_rate_that_goes_to_a_copy():
    (finding,) = play(LoggedRateIsNotTheRate, LOST)
    assert (finding.code, finding.severity) == ("O23", "warning")
    assert "went from 0.001 by way of 0.05 to 0.0001" in finding.message
    assert "dict(group, lr=lr)" in finding.message
    (finding,) = play(LoggedRateIsNotTheRate, replace(LOST, values=()))
    assert "stayed at 0.05" in finding.message


def test_a_rate_that_is_only_told():
    (finding,) = play(LoggedRateIsNotTheRate, replace(LOST, copied=False, text="lr"))
    assert "nothing but the log gets lr" in finding.message


def test_near_miss_a_rate_that_hardly_moves():
    assert play(LoggedRateIsNotTheRate, replace(LOST, values=(0.05, 0.048, 0.05))) == []


def test_near_miss_a_few_steps_or_nothing_seen():
    assert play(LoggedRateIsNotTheRate, replace(LOST, optimizer=OptimizerFacts(name="SGD", steps=9))) == []
    assert play(LoggedRateIsNotTheRate, replace(LOST, values=(), copied=False)) == []


CONSTANT = """
    import torch
    import torch.nn.functional as F
    lr = 0.1
    model = torch.nn.Linear(8, 2)
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    sched = torch.optim.lr_scheduler.{}
    for x, y in data:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        {}
"""
COSINE = "CosineAnnealingLR(opt, 100)"


def test_source_tells_the_first_rate_as_the_rate():
    (finding,) = lint(LoggedRateIsNotTheRate, CONSTANT.format(COSINE, "log({'loss': loss.item(), 'lr': lr})"))
    assert (finding.code, finding.severity, finding.where.line) == ("O23", "warning", 13)
    assert "lr is reported as the rate" in finding.message


def test_near_miss_source_tells_the_rate_in_use():
    read = "log({'loss': loss.item(), 'lr': opt.param_groups[0]['lr']})"
    assert lint(LoggedRateIsNotTheRate, CONSTANT.format(COSINE, read)) == []


def test_near_miss_source_saves_the_settings():
    assert lint(LoggedRateIsNotTheRate, CONSTANT.format(COSINE, "torch.save({'net': model, 'lr': lr}, 'x.pt')")) == []


HANDED = """
import argparse, torch
from torch import nn
def make(model, lr, steps):
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    return opt, torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
def epoch(model, loader, opt, sched, args, writer):
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        sched.step()
        writer.add_scalar("lr", {}, i)
args = argparse.Namespace(lr=0.1, base=0.2)
model = nn.Linear(3, 3)
opt, sched = make(model, args.lr, 900)
for e in range(9):
    epoch(model, loader, opt, sched, args, writer)
"""


def test_source_follows_the_rate_through_calls():
    (finding,) = lint(LoggedRateIsNotTheRate, HANDED.format("args.lr"))
    assert finding.where.line == 12


@pytest.mark.parametrize("read", ["args.base", "sched.get_last_lr()[0]", "opt.param_groups[0]['lr']"])
def test_near_miss_source_another_number_through_calls(read):
    assert lint(LoggedRateIsNotTheRate, HANDED.format(read)) == []


KEPT = """
import torch
from torch import nn
class Trainer:
    def __init__(self, model, args):
        self.args, self.model = args, model
        self.opt = torch.optim.SGD(model.parameters(), lr=args.lr)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 30)
    def step(self, x, y):
        self.opt.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.opt.step()
        self.sched.step()
    def run(self):
        for x, y in loader:
            self.step(x, y)
            self.writer.add_scalar("train/lr", {}, 0)
"""


@pytest.mark.parametrize(
    ("told", "then", "found"),
    [
        ("self.args['lr']", "pass", 1),
        ("self.args['floor']", "pass", 0),
        ("self.args['lr']", "self.args['lr'] = self.opt.param_groups[0]['lr']", 0),
        ("self.opt.param_groups[0]['lr']", "pass", 0),
    ],
)
def test_source_a_rate_out_of_a_table(told, then, found):
    code = KEPT.replace("args.lr", "args['lr']").replace(
        "            self.step(x, y)", f"            {then}\n            self.step(x, y)"
    )
    assert len(lint(LoggedRateIsNotTheRate, code.format(told))) == found


def test_source_a_step_in_a_method_that_a_loop_calls():
    assert len(lint(LoggedRateIsNotTheRate, KEPT.format("self.args.lr"))) == 1
    assert lint(LoggedRateIsNotTheRate, KEPT.format("self.args.floor")) == []


SWEEP = """
import torch
from torch import nn
for lr in [0.1, 0.01]:
    model = nn.Linear(3, 3)
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    sched = torch.optim.lr_scheduler.StepLR(opt, 3)
    for e in range(10):
        for x, y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        sched.step()
    print(f"lr {lr} acc {evaluate(model):.3f}")
"""


def test_near_miss_source_a_sweep_tells_what_it_began_with():
    assert lint(LoggedRateIsNotTheRate, SWEEP) == []


NAMED = """
import torch
from dataclasses import dataclass
from torch import nn
from torch.optim.lr_scheduler import StepLR
@dataclass
class Row:
    loss: float
    lr: float
class Sink:
    def __call__(self, **row):
        print(row)
def adapt(model, loss, lr):
    pass
def train(model, loader, cfg):
    sink, rows = Sink(), []
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    sched = StepLR(opt, 3)
    for e in range(10):
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        sched.step()
        {}
"""


@pytest.mark.parametrize(
    "line",
    [
        "sink(epoch=e, loss=loss.item(), lr=cfg.lr)",
        "logger.log(loss=loss.item(), lr=cfg.lr)",
        "rows.append(Row(loss=loss.item(), lr=cfg.lr))",
        "rows.append(dict(epoch=e, lr=cfg.lr))",
    ],
)
def test_source_tells_the_first_rate_by_its_name(line):
    assert len(lint(LoggedRateIsNotTheRate, NAMED.format(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "sink(epoch=e, loss=loss.item(), lr=sched.get_last_lr()[0])",
        "adapt(model, loss=loss.item(), lr=cfg.lr)",  # a number that something is calculated with
        "sink(epoch=e, lr=cfg.lr)",  # what the run was begun with
        "save_checkpoint(loss=loss.item(), lr=cfg.lr)",
    ],
)
def test_near_miss_source_a_rate_by_its_name(line):
    assert lint(LoggedRateIsNotTheRate, NAMED.format(line)) == []


FIRST_RATE = "sink(epoch=e, loss=loss.item(), lr=cfg.lr)"


@pytest.mark.parametrize(
    ("schedule", "line", "found"),
    [
        ("StepLR(opt, 3)", FIRST_RATE, 1),
        ("torch.optim.lr_scheduler.LambdaLR(opt, lambda e: 0.9 ** e)", FIRST_RATE, 1),
        ("torch.optim.lr_scheduler.LambdaLR(opt, lambda e: 1.0)", FIRST_RATE, 0),
        ("StepLR(opt, 3)", "sink(loss=loss.item(), lr=cfg.lr, current_lr=sched.get_last_lr()[0])", 0),
    ],
)
def test_source_schedules_that_move_nothing_and_rates_beside_themselves(schedule, line, found):
    code = NAMED.replace("StepLR(opt, 3)", schedule).format(line)
    assert len(lint(LoggedRateIsNotTheRate, code)) == found


def test_a_rate_that_stays_explains_what_it_does():
    (finding,) = play(LoggedRateIsNotTheRate, LOST)
    assert {"O28", "O7"} <= set(finding.consequences)
    (told,) = play(LoggedRateIsNotTheRate, replace(LOST, copied=False, text="lr"))
    assert "O28" not in told.consequences


# --------------------------------------------------------------------------- a rate for a factor

SQUARED = ScheduleObserved(
    step=320, where=Where("train.py", 30), built_where=Where("train.py", 12), name="LambdaLR", calls=320, position=320,
    first_lr=1e-7, base_lr=2e-3, highest_lr=4e-6, peak_lr=4e-6, lr=2e-7, ended="finished",
)  # fmt: skip


@pytest.mark.parametrize(
    "changed", [{}, {"ended": ""}, {"lr": 4e-6}, {"base_lr": 0.02, "highest_lr": 4e-4, "first_lr": 4e-4, "lr": 1e-5}]
)
def test_fires_on_a_function_that_returns_a_rate(changed):
    (finding,) = play(LoggedRateIsNotTheRate, replace(SQUARED, **changed))
    assert (finding.key, finding.severity, finding.where) == ("squared", "warning", Where("train.py", 12))
    assert "O7" in finding.consequences
    if not changed:
        assert finding.message == (
            "the function of LambdaLR returns at most 0.002, the very lr that its optimizer was built with, and the two are "
            "multiplied: the rate never exceeded 4e-06"
        )


@pytest.mark.parametrize(
    "changed",
    [
        {"base_lr": None},  # no LambdaLR
        {"base_lr": 1.0, "highest_lr": 1.0, "first_lr": 0.1, "lr": 0.1},
        {"base_lr": 0.1, "highest_lr": 0.01, "first_lr": 1e-3, "lr": 1e-3},  # a tenth, by design
        {"highest_lr": 2e-3},
        {"highest_lr": 4.1e-6},  # a small factor, and another number
        {"first_lr": 4e-6, "lr": 4e-6},  # a constant
        {"lr": 4e-6, "ended": ""},  # it may rise yet
        {"calls": 100, "position": 320},  # at a step of the decay at which a run was resumed
        {"others_stepped": True},
    ],
)
def test_near_miss_of_a_function_that_returns_a_rate(changed):
    assert play(LoggedRateIsNotTheRate, replace(SQUARED, **changed)) == []
