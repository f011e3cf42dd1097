"""Runs that go on from a checkpoint, with and without the state of its optimizer."""

from __future__ import annotations

import linecache

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import OptimizerBeganAnew, ScheduleBeganAnew

GOES_ON = "for epoch in range(checkpoint['epoch'] + 1, 20):\n    train()\n"


@pytest.fixture
def script(tmp_path):
    """Run lines as a script of the user's that has a checkpoint of an AdamW at hand; what was told."""
    net = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    saved = {"model": net.state_dict(), "optim": optimizer.state_dict(), "epoch": 12}
    torch.save(saved, tmp_path / "last.pt")

    def run(build, loop=GOES_ON, load="", instead=None):
        if instead is not None:
            torch.save({**{k: v for k, v in saved.items() if k != "optim"}, **instead}, tmp_path / "last.pt")
        text = f"checkpoint = torch.load(FILE)\nnet.load_state_dict(checkpoint['model'])\n{build}\n{load}\nstep()\n"
        file = tmp_path / "train.py"
        file.write_text(f"{text}if False:\n    def train(): pass\n    {loop.replace(chr(10), chr(10) + '    ')}")
        linecache.checkcache()
        names = {"torch": torch, "net": nn.Linear(4, 2), "FILE": tmp_path / "last.pt", "nn": nn}

        def step():
            names["net"](torch.randn(3, 4)).square().mean().backward()
            names["optimizer"].step()

        names["step"] = step
        kinds = OptimizerBeganAnew, ScheduleBeganAnew
        return seen(lambda: exec(compile(file.read_text(), str(file), "exec"), names), *kinds)

    return run


ADAMW = "optimizer = torch.optim.AdamW(net.parameters())"


def test_left_in_the_file(script):
    (left,) = script(ADAMW)
    assert (left.key, left.counter, left.count, left.tensors, left.optimizer) == ("optim", "epoch", 12, 2, "AdamW")
    assert left.where.line == 1


def test_by_way_of_a_name(script):
    assert (
        len(script(ADAMW, "self.start = checkpoint.get('epoch', 0) + 1\nfor e in trange(self.start, 20): train()\n"))
        == 1
    )


def test_by_way_of_a_condition(script):
    loop = "job.step = checkpoint['epoch']\nwhile job.step < 20:\n    train()\n"
    assert [left.counter for left in script(ADAMW, loop)] == ["epoch"]
    assert script(ADAMW, loop.replace("job.step <", "job.done <")) == []


def test_by_way_of_a_function(script):
    loop = "def run(first, last):\n    for step in range(first, last):\n        train()\nrun({}, 20)\n"
    assert [left.counter for left in script(ADAMW, loop.format("checkpoint['epoch']"))] == ["epoch"]
    assert script(ADAMW, loop.format("0")) == []


def test_a_generator_that_goes_on_whatever_the_rate_is(script, tmp_path):
    kept = {"rng": torch.get_rng_state(), "optim": torch.load(tmp_path / "last.pt")["optim"]}
    build = "optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)"
    assert len(script(build, load="torch.set_rng_state(checkpoint['rng'])", instead=kept)) == 1
    assert script(build, instead=kept) == []


def test_an_optimizer_that_has_its_state_at_once(script, tmp_path):
    net = nn.Linear(4, 2)
    trained = torch.optim.Adagrad(net.parameters())
    net(torch.ones(3, 4)).sum().backward()
    trained.step()
    adagrad = "optimizer = torch.optim.Adagrad(net.parameters())"
    (left,) = script(adagrad, instead={"optim": trained.state_dict()})
    assert (left.key, left.optimizer) == ("optim", "Adagrad")
    load = "optimizer.load_state_dict(checkpoint['optim'])"
    assert script(adagrad, load=load, instead={"optim": trained.state_dict()}) == []


EARLIER = """
first = nn.Linear(4, 2)
before = torch.optim.SGD(first.parameters(), lr=0.1)
first(torch.ones(3, 4)).square().mean().backward()
before.step()
checkpoint = torch.load(FILE)
"""


def test_a_second_leg_in_the_same_process(script):
    assert len(script(EARLIER + ADAMW)) == 1
    assert script(EARLIER.replace("before.step()", "") + ADAMW) == []
    assert script(f"{EARLIER}for _ in range(3):\n    before.step()\n{ADAMW}") == []


def test_loaded(script):
    assert script(ADAMW, load="optimizer.load_state_dict(checkpoint['optim'])") == []


def test_fine_tuning_counts_from_0(script):
    assert script(ADAMW, "for epoch in range(5):\n    train()\n") == []
    assert script(ADAMW, "print(checkpoint['epoch'])\nfor epoch in range(0, 5):\n    train()\n") == []


@pytest.mark.parametrize(
    "build",
    [
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)",
        "optimizer = torch.optim.AdamW([net.weight])",
        "optimizer = torch.optim.Adagrad(net.parameters())",
        "optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)",  # of another stage
    ],
)
def test_another_optimizer(script, build):
    assert script(build) == []


LOWERED = """
for _ in range(3):
    optimizer.param_groups[0]["lr"] *= {factor}
    step()
"""


@pytest.mark.parametrize(("factor", "told"), [(0.9, 1), (0.8, 0), (1.0, 0)])
def test_a_rate_that_is_lowered_by_hand(script, tmp_path, factor, told):
    saved = torch.load(tmp_path / "last.pt")["optim"]
    saved["param_groups"][0]["lr"] = 0.02 * 0.9**12
    build = ADAMW.replace("())", "(), lr=0.02)")
    assert len(script(build, load=LOWERED.format(factor=factor), instead={"optim": saved})) == told
    load = "optimizer.load_state_dict(checkpoint['optim'])" + LOWERED.format(factor=factor)
    assert script(build, load=load, instead={"optim": saved}) == []


@pytest.mark.parametrize(("rate", "told"), [(0.00098, 1), (0.0005, 0)])
def test_a_rate_that_is_written_from_the_count(script, rate, told):
    build = ADAMW.replace("())", "(), lr=0.02)")
    write = f"optimizer.param_groups[0]['lr'] = {rate}"  # the file has 0.001
    assert len(script(build, load=write)) == told
    assert script(ADAMW.replace("())", f"(), lr={rate})")) == []  # of another stage


@pytest.mark.parametrize(
    "instead", [{"rng": torch.get_rng_state()}, {"schedule": {"last_epoch": 12, "base_lrs": [0.1]}}]
)
def test_everything_else_of_the_run_is_in_the_file(script, instead):
    (left,) = script(ADAMW, instead=instead)
    assert (left.key, left.others, left.tensors) == ("", tuple(instead), 2)


@pytest.mark.parametrize("instead", [{}, {"note": "the weights of March"}, {"mean": torch.zeros(3)}])
def test_weights_and_a_count_alone(script, instead):
    assert script(ADAMW, instead=instead) == []


SCHEDULED = "schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, {})"
TO_THE_END = "epochs = 20\n" + ADAMW + "\n" + SCHEDULED
FROM_THE_COUNT = "for epoch in range(checkpoint['epoch'], {}):\n    train()\n"


@pytest.mark.parametrize("end", ["20", "epochs", "epochs + 1", "min(checkpoint['epoch'] + 4, epochs)"])
def test_weights_alone_and_a_schedule_of_the_whole_run(script, end):
    (left,) = script(TO_THE_END.format("epochs"), FROM_THE_COUNT.format(end), instead={})
    assert (left.key, left.others, left.schedule, left.length) == ("", ("model",), "CosineAnnealingLR", 20)


@pytest.mark.parametrize(
    ("length", "end", "load"),
    [
        ("epochs - checkpoint['epoch']", "epochs", ""),
        ("epochs", "checkpoint['epoch'] + epochs", ""),  # of another stage, counted on
        ("epochs", "epochs", "schedule.last_epoch = checkpoint['epoch']"),
        ("epochs", "40", ""),
    ],
)
def test_near_miss_weights_alone_and_a_schedule(script, length, end, load):
    assert script(TO_THE_END.format(length), FROM_THE_COUNT.format(end), load, {}) == []


BROKEN_OFF = """
first = nn.Linear(4, 2)
before = torch.optim.AdamW(first.parameters())
planned = torch.optim.lr_scheduler.CosineAnnealingLR(before, 50)
for _ in range({steps}):
    first(torch.ones(3, 4)).square().mean().backward()
    before.step()
    planned.step()
checkpoint = torch.load(FILE)
"""


@pytest.mark.parametrize(("steps", "length", "told"), [(20, 50, 1), (50, 50, 0), (20, 30, 0)])
def test_a_schedule_that_an_earlier_leg_broke_off(script, steps, length, told):
    """50 is not the length that the source tells, but that of the leg before."""
    legs = BROKEN_OFF.format(steps=steps) + ADAMW + "\n" + SCHEDULED.format(length)
    assert len(script(legs, instead={})) == told


def test_an_optimizer_that_keeps_nothing(script):
    plain = "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)"
    assert script(plain, instead={"rng": torch.get_rng_state()}) == []
    assert len(script(plain.replace("0.1", "0.1, momentum=0.9"), instead={"rng": torch.get_rng_state()})) == 1


def test_near_miss_a_count_of_another_scope(script):
    loop = "def weights():\n    step = checkpoint['epoch']\nstep = 0\nwhile step < 20:\n    train()\n"
    assert script(ADAMW, loop) == []
    assert script(ADAMW, loop.replace("step = 0\n", "step = checkpoint['epoch']\n"))


TWICE = "it = 0\nif resume:\n    it, best = checkpoint['epoch'], 0\nwhile it < 20:\n    train()\n"
HANDED = "def run(it):\n    while it < 20:\n        train()\nrun(checkpoint['epoch'])\n"
RETURNED = """
def restored(checkpoint):
    first = checkpoint['epoch'] + 1
    return net, first
net, it = restored(checkpoint)
for epoch in range(it, 20):
    train()
"""


@pytest.mark.parametrize("loop", [TWICE, HANDED, RETURNED])
def test_a_name_that_stands_at_the_count(script, loop):
    assert [left.counter for left in script(f"it = 12\n{ADAMW}", loop)] == ["epoch"]
    assert [left.counter for left in script(f"it = 13\n{ADAMW}", loop)] == ["epoch"]


@pytest.mark.parametrize("loop", [TWICE, HANDED, RETURNED])
def test_near_miss_a_name_that_stands_elsewhere(script, loop):
    assert script(f"it = 1\n{ADAMW}", loop) == []
    assert script(f"it = 14\n{ADAMW}", loop) == []


def test_near_miss_a_count_of_one(script, tmp_path):
    short = {"optim": torch.load(tmp_path / "last.pt")["optim"], "epoch": 1}
    assert script(f"it = 1\n{ADAMW}", TWICE, instead=short) == []
    assert len(script(f"it = 2\n{ADAMW}", TWICE, instead=short)) == 1


WITH_STATE = "optimizer.load_state_dict(checkpoint['optim'])\n"
UNTIL = "self.epoch = checkpoint['epoch']\nwhile self.epoch < {}:\n    train()\n"


@pytest.mark.parametrize("loop", [FROM_THE_COUNT.format("epochs"), UNTIL.format("epochs")])
@pytest.mark.parametrize("before", [True, False])
def test_the_optimizer_goes_on_and_its_schedule_begins(script, loop, before):
    """The schedule is built before the state is loaded, or behind it."""
    schedule = SCHEDULED.format("epochs") + "\n"
    build = f"epochs = 20\n{ADAMW}\n" + (schedule if before else "")
    (left,) = script(build, loop, WITH_STATE + ("" if before else schedule))
    assert isinstance(left, ScheduleBeganAnew)
    assert (left.counter, left.count, left.schedule, left.length) == ("epoch", 12, "CosineAnnealingLR", 20)
    assert not left.saved


@pytest.mark.parametrize(
    ("length", "load"),
    [
        ("epochs", WITH_STATE + "schedule.last_epoch = checkpoint['epoch']"),  # it goes on
        ("epochs - checkpoint['epoch']", WITH_STATE),  # of what is left
        ("7", WITH_STATE),  # of something else
    ],
)
def test_near_miss_the_schedule(script, length, load):
    assert script(TO_THE_END.format(length), FROM_THE_COUNT.format("epochs"), load) == []
