"""What outliers.py tells of a batch at which the loss jumped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flatline.sensors import outliers
from flatline.sensors.graph import walk
from flatline.sensors.loop import Loop
from flatline.sensors.outliers import Outliers
from flatline.sensors.patching import Patches


def watching():
    told = []
    loop = Loop(told.append, wants=lambda event: True, budget=1.0, patches=Patches(on_broken=lambda *_: None))
    return Outliers(loop), loop, told


def train(batches, *, closely=lambda step: True, targets=None):
    """A regression on these batches; some of the steps are looked at closely."""
    torch.manual_seed(0)
    model, (outliers, loop, told) = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), watching()
    loop.optimizers[1] = object()
    for step, x in enumerate(batches, start=1):
        y = targets[step - 1] if targets else torch.ones(len(x), 1)
        loss = nn.functional.mse_loss(model(x), y)
        loop.steps = step - 1
        if closely(step):
            outliers.after_graph(walk(loss.grad_fn), None)
        loop.last_loss_step = step
        outliers.add(step, loss.item(), loss)
    outliers.finish()
    return told


def batches(count=40, seed=1):
    torch.manual_seed(seed)
    return [torch.randn(16, 4) for _ in range(count)]


def test_one_row_of_one_batch():
    data = batches()
    data[29][7, 2] = -3e4
    (told,) = train(data)
    assert (told.step, told.what, told.largest, told.rows, told.off, told.of) == (30, "inputs", 3e4, (7,), 1, 16)
    assert 2.0 < told.least <= told.usual < 6.0
    assert (told.batches, told.later) == (29, outliers.LATER)
    assert told.loss > 1e3 * told.usual_loss


def test_on_a_step_that_is_not_looked_at():
    data = batches()
    data[29] *= 1e4
    (told,) = train(data, closely=lambda step: step < 10 or step > 32)
    assert (told.step, told.batches, told.off) == (30, 9, 16)


def test_targets():
    asked = [torch.randn(16, 1) for _ in range(40)]
    asked[25][3] = 1e5
    (told,) = train(batches(), targets=asked)
    assert (told.step, told.what, told.rows) == (26, "targets", (3,))


def thrown(by, at=(25, 33), spread=1.0):
    """A regression whose weights are thrown far away before some steps, and put back after them."""
    torch.manual_seed(0)
    model, (outliers, loop, told) = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), watching()
    loop.optimizers[1] = object()
    for step, x in enumerate(batches(), start=1):
        model[2].weight.data.mul_(by if step in at else 1)
        loss = nn.functional.mse_loss(model(x), spread * torch.randn(16, 1))
        model[2].weight.data.div_(by if step in at else 1)
        loop.steps = step - 1
        outliers.after_graph(walk(loss.grad_fn), None)
        outliers.add(step, loss.item(), loss)
    outliers.finish()
    return told


def test_answers_beyond_all_targets_of_ordinary_batches():
    told = thrown(300)
    assert [event.step for event in told] == [25, 33]
    assert all(event.off > event.high - event.low > 1 for event in told)
    assert told[0].off == pytest.approx(told[0].loss ** 0.5)


def test_answers_that_are_off_and_not_beyond_the_targets():
    assert thrown(300, at=()) == []
    assert thrown(40, spread=30.0) == []


def test_larger_from_now_on():
    data = batches()
    assert train([x * (1e4 if step >= 29 else 1) for step, x in enumerate(data)]) == []


def test_ordinary_batches():
    assert train(batches()) == []


def test_seen_before():
    data = batches()
    data[4] *= 1e4
    data[29] *= 1e4
    (told,) = train(data)
    assert (told.step, told.batches, told.alike) == (30, 28, 1)


def test_one_batch_in_three_is_so():
    data = [x * (1e4 if step % 3 == 2 else 1) for step, x in enumerate(batches())]
    assert train(data) == []


def test_all_rows_of_one_batch_by_a_few_times():
    data = batches()
    data[29] *= 30
    (told,) = train(data)
    assert 3 * told.usual < told.largest < 100
    assert told.off > 8


def test_outliers_set_aside():
    assert outliers.ordinary([3.0, 2.0, 4.0, 900.0, 2.5]) == [2.0, 2.5, 3.0, 4.0]
    assert outliers.ordinary([3.0, 2.0, 4.0, 30.0, 2.5]) == [2.0, 2.5, 3.0, 4.0, 30.0]
    assert len(outliers.ordinary([3.0, 2.0, 900.0, 800.0, 2.5])) == 5


def test_the_first_losses_have_no_past():
    data = batches()
    data[8] *= 1e4
    assert train(data) == []


def first_ones(data, *, rate=0.1, clip=None):
    """Learns by SGD from the first batches on; all of them are looked at closely."""
    torch.manual_seed(0)
    model, (outliers, loop, told) = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)), watching()
    loop.optimizers[1], optimizer = object(), torch.optim.SGD(model.parameters(), rate)
    for step, x in enumerate(data, start=1):
        loss = nn.functional.mse_loss(model(x), torch.ones(len(x), 1))
        outliers.after_graph(walk(loss.grad_fn), None)
        if loss.isfinite():
            loop.last_loss, loop.last_loss_step = loss.item(), step
            outliers.add(step, loss.item(), loss)
        optimizer.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        loop.steps = step
    outliers.finish()
    return told


def test_among_the_first_ones_and_all_is_lost():
    data = batches()
    data[3][7, 2] = data[6][1, 0] = 1e5
    (told,) = first_ones(data)
    assert (told.step, told.lost, told.largest, told.rows, told.alike) == (4, True, 1e5, (7,), 1)
    assert told.batches + told.later >= outliers.EARLY_LATER
    assert told.least <= told.usual < 6.0


def test_among_the_first_ones_and_it_learns_on():
    data = batches()
    data[3][7, 2] = 1e5
    assert first_ones(data, clip=1.0) == []


def test_a_rate_too_high_for_ordinary_batches():
    assert first_ones(batches(), rate=1e4) == []


def test_larger_from_the_first_ones_on():
    assert first_ones([x * (1e5 if step >= 4 else 1) for step, x in enumerate(batches())]) == []


def test_losses_below_zero_have_no_limit():
    watch, loop, _ = watching()
    loop.optimizers[1] = object()
    for step in range(40):
        watch.add(step, -1.0, torch.tensor(-1.0))
    assert watch.limit == float("inf")


def test_the_limit_follows_the_losses():
    watch, loop, _ = watching()
    loop.optimizers[1] = object()
    for step in range(80):
        watch.add(step, 2.0 if step < 40 else 1.0, torch.tensor(1.0))
    assert watch.limit == outliers.JUMP
    loop.optimizers[2] = object()
    watch.add(80, 5.0, torch.tensor(5.0))
    assert 5.0 not in watch.recent


def test_what_a_layer_made_is_no_batch():
    x = torch.randn(5, 4)
    root = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))(x).sum()
    ((_, tensor),) = outliers.batch_of(walk(root.grad_fn))
    assert tensor.equal(x)
