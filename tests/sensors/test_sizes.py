"""What the function of a LambdaLR was made for."""

from __future__ import annotations

import math
from functools import partial
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import ScheduleObserved
from flatline.sensors.sizes import size_of

EPOCHS = 6


def warmed(warm, total):
    def factor(step):
        if step < warm:
            return step / warm
        return max(0.0, (total - step) / (total - warm))

    return factor


class Cosine:
    def __init__(self, warm, end):
        self.warm, self.end = warm, end

    def __call__(self, step):
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(step, self.end) / self.end))

    def half(self, step):
        return 0.5 * (1 + math.cos(math.pi * step / self.end))


def poly(step, power=2, span=400):
    return (1 - min(step, span) / span) ** power


INNER = warmed(5, 80)
CONFIG = SimpleNamespace(lr=0.1, epochs=50)


@pytest.mark.parametrize(
    ("function", "length", "spelled", "again"),
    [
        (warmed(150, 1500), 1500, "total=1500", False),
        (Cosine(10, 900), 900, "end=900", False),
        (Cosine(10, 900).half, 900, "end=900", True),
        (poly, 400, "span=400", False),
        (partial(poly, span=700), 700, "span=700", False),
        (lambda step: 1 - step / (EPOCHS * 100), 600, "EPOCHS=6, 100 batches each", False),
        (lambda epoch: max(0.0, 1 - epoch / CONFIG.epochs), 50, "epochs=50", False),
        (lambda step: 0.5 * INNER(step), 80, "total=80", False),
    ],
)
def test_the_number_at_which_it_ends(function, length, spelled, again):
    assert size_of(function, 100) == (length, spelled, again)


def drawn(step, total=100):
    return max(0.0, 1 - step / total) * torch.rand(()).item()


def told(step, total=100):
    print(step)
    return max(0.0, 1 - step / total)


def kept(seen, total=100):
    return lambda step: seen.append(step) or max(0.0, 1 - step / total)


def counted(total=100):
    count = 0

    def factor(step):
        nonlocal count
        count += 1
        return max(0.0, 1 - count / total)

    return factor


def table(values, size):
    return lambda step: values[step] if step < size else 1 / 0


@pytest.mark.parametrize(
    "function",
    [
        lambda epoch: 0.95**epoch,
        lambda step: min((step + 1) ** -0.5, (step + 1) * 400**-1.5),
        lambda step: min(1.0, step / 500),
        lambda epoch: 0.1 ** (epoch // 30),
        lambda epoch: 1.0,
        float,
        table([1.0] * 50, 50),
        drawn,
        told,
        kept([]),
        counted(),
    ],
)
def test_no_end_and_effects(function, capsys):
    assert size_of(function, 100) is None
    assert capsys.readouterr().out == ""


def horizons(function, calls, batches=40):
    def act():
        loader = torch.utils.data.DataLoader(torch.randn(batches, 2))
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, function)
        for x in loader:
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
            if calls == "batch":
                schedule.step()
        schedule.step()

    return {(each.horizon, each.spelled) for each in seen(act, ScheduleObserved) if each.ended}


def test_it_is_told_with_the_schedule():
    assert horizons(warmed(4, 40), "epoch") == {(40, "total=40")}
    assert horizons(Cosine(4, 40).half, "epoch") == {(40, "end=40")}


def test_near_miss_a_cycle_within_the_epoch():
    assert {horizon for horizon, _ in horizons(Cosine(4, 10).half, "batch")} == {None}


class Job:
    """It holds the model, too, and its function does not ask for that."""

    def __init__(self, total):
        self.total, self.model, self.save = total, nn.Linear(2, 2), print

    def rate_at(self, step):
        return step / 10 if step < 10 else 0.5 * (1 + math.cos(math.pi * (step - 10) / (self.total - 10)))

    def asks(self, step):
        self.save(step)
        return 1 - step / self.total


def test_a_method_of_an_object_that_holds_much():
    assert size_of(Job(300).rate_at, None).length == 300


def test_near_miss_a_method_that_calls_what_its_object_holds():
    assert size_of(Job(300).asks, None) is None


def samples(batches, *, passes=2):
    """What the schedule is told of the samples of a run, of a loader or of batches made by hand."""

    def act():
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        for x in (x for _ in range(passes) for x in batches):
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
            schedule.step()

    return {each.samples for each in seen(act, ScheduleObserved) if each.ended}


def test_the_samples_of_a_run_are_counted():
    assert samples(torch.utils.data.DataLoader(torch.randn(50, 2), batch_size=8)) == {100}
    assert samples(torch.utils.data.DataLoader(torch.randn(50, 2), batch_size=8, drop_last=True)) == {100}
    assert samples(torch.randn(48, 2).split(8)) == {96}


def test_near_miss_a_pass_that_is_left_or_batches_of_several_sizes():
    assert samples(Left(torch.utils.data.DataLoader(torch.randn(50, 2), batch_size=8))) == {None}
    assert samples([torch.randn(rows, 2) for rows in (8, 8, 7, 8)]) == {None}


class Left:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return islice(iter(self.loader), 4)


def rates(scheduler, *given):
    """What a schedule starts from, and the highest rate that it came to."""

    def act():
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.02)
        schedule = scheduler(optimizer, *given)
        for _ in range(20):
            optimizer.step()
            schedule.step()

    return {(each.base_lr, each.highest_lr) for each in seen(act, ScheduleObserved) if each.ended}


def test_the_rate_that_a_function_is_multiplied_with():
    assert rates(torch.optim.lr_scheduler.LambdaLR, lambda step: 0.5 if step == 10 else 0.1) == {(0.02, 0.01)}
    assert rates(torch.optim.lr_scheduler.MultiplicativeLR, lambda step: 0.5) == {(None, 0.02)}
    assert rates(torch.optim.lr_scheduler.StepLR, 5) == {(None, 0.02)}
