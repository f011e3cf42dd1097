"""Do all workers of a stream serve one and the same batch?"""

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from watching import seen

from flatline.events import WorkersAlike
from flatline.sensors.worker_rounds import Rounds


class Whole(IterableDataset):
    def __iter__(self):
        yield from torch.arange(96.0).reshape(24, 4)


class SeededAlike(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        generator = torch.Generator().manual_seed(3)
        yield from torch.randn(48 // info.num_workers, 4, generator=generator)


class Split(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from torch.arange(96.0).reshape(24, 4)[info.id :: info.num_workers]


class SharedBeginning(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        rows = torch.arange(192.0).reshape(48, 4)
        yield from rows[:8]
        yield from rows[8 + info.id :: info.num_workers]


class DrawnByTorch(IterableDataset):
    def __iter__(self):
        yield from torch.randn(24, 4)


class Constant(IterableDataset):
    def __iter__(self):
        yield from torch.ones(24, 4)


def learned(dataset, *, learns=True):
    def act():
        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
        for x in DataLoader(dataset, batch_size=4, num_workers=2):
            if learns:
                optimizer.zero_grad()
                mse_loss(net(x), x[:, :1]).backward()
                optimizer.step()

    return seen(act, WorkersAlike)


@pytest.mark.parametrize(("dataset", "asks"), [(Whole(), False), (SeededAlike(), True)])
def test_each_worker_serves_the_same(dataset, asks):
    (event,) = learned(dataset)
    assert (event.workers, event.owner, event.rows, event.asks) == (2, type(dataset).__name__, 4, asks)
    assert event.where.function == "__iter__"


@pytest.mark.parametrize("dataset", [Split(), SharedBeginning(), DrawnByTorch(), Constant()])
def test_near_miss(dataset):
    assert learned(dataset) == []


def test_near_miss_nothing_is_learned_from_it():
    assert learned(Whole(), learns=False) == []


def test_four_rounds_are_compared():
    def after(*numbers):
        rounds = Rounds(2)
        for number in numbers:
            rounds.add(torch.full((3,), float(number)))
        return rounds.alike, rounds.done

    assert after(1, 1, 2, 2, 3, 3, 4, 4) == (True, True)
    assert after(1, 1, 2) == after(1, 1, 2, 2, 3, 3) == (False, False)
    assert after(1, 2) == after(1, 1, 2, 3) == after(1, 1, 1, 1, 1, 1, 1, 1) == (False, True)
