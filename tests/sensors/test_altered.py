"""A loader that is restarted for each step: what is the model called with?"""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from watching import seen

from flatline.events import BatchesServed

DRAW = torch.Generator().manual_seed(0)
ROWS = torch.randn(128, 6, generator=DRAW)


def noise(like):
    return torch.randn(like.shape, generator=DRAW)


def altered(made, *, restarts=True):
    """Whether each step after the first was with the batch alone; ``made`` gives the inputs of the step."""
    loader = DataLoader(TensorDataset(ROWS), 32)

    def run():
        net, batches = None, iter(loader)
        for _ in range(4):
            (x,) = next(iter(loader) if restarts else batches)
            inputs = made(x)
            if net is None:
                net = torch.nn.Linear(inputs[0].shape[1], 6)
                optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
            optimizer.zero_grad()
            sum((net(each) - x).square().mean() for each in inputs).backward()
            optimizer.step()

    return [event.altered for event in seen(run, BatchesServed)][1:]


@pytest.mark.parametrize(
    "made",
    [
        lambda x: [x],
        lambda x: [x + 0.4 * noise(x)],
        lambda x: [0.6 * x + 0.8 * noise(x)],
        lambda x: [torch.where(noise(x) > 0.5, torch.zeros(()), x)],
        lambda x: [torch.cat([x + noise(x), noise(x)[:, :1]], 1)],
        lambda x: [x + 0.1 * noise(x), x + 0.1 * noise(x)],
    ],
)
def test_made_of_the_batch(made):
    assert altered(made) == [True] * 3


@pytest.mark.parametrize(
    "made",
    [
        lambda x: [x, noise(x)],
        lambda x: [ROWS[torch.randint(128, (32,), generator=DRAW)]],
        lambda x: [noise(x) + 4],
        lambda x: [x.mean() + noise(x)[:16].repeat(2, 1)],
    ],
)
def test_near_miss_other_inputs(made):
    assert True not in altered(made)


def test_near_miss_a_loader_that_goes_on():
    assert True not in altered(lambda x: [x + 0.4 * noise(x)], restarts=False)
