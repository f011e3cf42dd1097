"""Measured targets that rise or fall through the data, row by row."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from watching import seen

from flatline.events import TargetsRanked

ROWS, BATCH = 320, 16
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, 6, generator=DRAW)
Y = X @ torch.randn(6, generator=DRAW) + torch.randn(ROWS, generator=DRAW)
ORDER = Y.argsort()
SORTED = X[ORDER], Y[ORDER]


class Recurrent(nn.Module):
    """Its rows are moments."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.GRU(6, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x)[0])


def trained(batches, model=None, loss=functional.mse_loss, epochs=4):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(epochs):
        for *inputs, y in batches():
            optimizer.zero_grad()
            loss(model(*inputs), y.reshape(-1, 1)).backward()
            optimizer.step()


def served(*columns, **how):
    loader = DataLoader(TensorDataset(*columns), BATCH, **how)
    return lambda: loader


def sliced(x, y):
    return lambda: ((x[at : at + BATCH], y[at : at + BATCH]) for at in range(0, len(y), BATCH))


def found(batches, **how):
    return seen(lambda: trained(batches, **how), TargetsRanked)


def squares(answer, target):
    return ((answer - target) ** 2).mean()


@pytest.mark.parametrize("loss", [squares, functional.l1_loss])
def test_losses_that_are_written_out(loss):
    events = found(served(*SORTED), loss=loss)
    assert [event.passes for event in events if event.position == 1] == [1, 2, 3, 4]
    assert events[0].target == pytest.approx(float(SORTED[1][:BATCH].mean()))


@pytest.mark.parametrize("loss", [functional.mse_loss, functional.huber_loss, functional.smooth_l1_loss])
@pytest.mark.parametrize("way", [served, sliced])
def test_rows_sorted_by_the_target(way, loss):
    events = found(way(*SORTED), loss=loss)
    assert all(event.rising and event.alone and event.length == ROWS // BATCH for event in events)
    begun = [(event.passes, event.position) for event in events if event.position == 1]
    assert begun == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert any(event.position >= 19 for event in events if event.passes == 1)
    assert events[0].target == pytest.approx(float(SORTED[1][:BATCH].mean()))


def test_a_shorter_last_batch():
    events = found(sliced(SORTED[0][:-6], SORTED[1][:-6]))
    assert [event.passes for event in events if event.position == 1] == [1, 2, 3, 4]


def test_targets_that_fall():
    assert not any(event.rising for event in found(served(X[ORDER.flip(0)], Y[ORDER.flip(0)])))


QUIET = {
    "another order": lambda: found(served(X, Y)),
    "shuffled": lambda: found(served(*SORTED, shuffle=True)),
    "a trend under noise": lambda: found(served(X, torch.linspace(0, 5, ROWS) + torch.rand(ROWS, generator=DRAW))),
    "sorted within each batch": lambda: found(served(X, Y.reshape(-1, BATCH).sort(1).values.reshape(-1)))[1:],
    "moments of a series": lambda: found(served(*SORTED), model=Recurrent()),
    "one batch": lambda: found(sliced(SORTED[0][:BATCH], SORTED[1][:BATCH]), epochs=1)[1:],
}


@pytest.mark.parametrize("kind", QUIET)
def test_near_miss(kind):
    assert QUIET[kind]() == []


class Second(nn.Module):
    """Uses its first input only."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 1)

    def forward(self, x, time):
        return self.head(x)


GRID = torch.cat([torch.linspace(-1, 1, ROWS)[:, None], X[:, 1:]], 1)
ACCOMPANIED = {
    "a grid": lambda: found(served(GRID, SORTED[1])),
    "a grid that falls": lambda: found(served(-GRID, SORTED[1])),
    "a second input": lambda: found(served(SORTED[0], torch.arange(ROWS), SORTED[1]), model=Second()),
    "lengths": lambda: found(served(X * (torch.arange(6) <= torch.arange(ROWS)[:, None] // 60), SORTED[1])),
}


@pytest.mark.parametrize("kind", ACCOMPANIED)
def test_near_miss_an_input_rises_as_well(kind):
    events = ACCOMPANIED[kind]()
    assert events
    assert not any(event.alone for event in events[-8:])
