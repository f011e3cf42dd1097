"""Penalties that a loss subtracts, read from real graphs."""

from __future__ import annotations

import pytest
import torch
from tests.sensors.watching import seen
from torch import nn
from torch.nn import functional

from flatline.events import PenaltySubtracted


def told(loss_of, steps=6, **settings):
    """What is told of a loss over the model, its scores and its labels."""

    def run():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, **settings)
        for step in range(steps):
            x, y = torch.randn(16, 6), torch.randint(0, 4, (16,))
            optimizer.zero_grad()
            loss_of(net, net(x), y, step).backward()
            optimizer.step()

    return [(event.kind, event.tensors) for event in seen(run, PenaltySubtracted)]


def cross_entropy(scores, y):
    return functional.cross_entropy(scores, y)


def from_parts(net, scores, y, step):
    log_z = torch.logsumexp(scores, -1)
    log_p = scores.gather(1, y[:, None])[:, 0] - log_z
    return -(log_p + 1e-3 * log_z.pow(2)).mean()


def from_parts_right(net, scores, y, step):
    log_z = torch.logsumexp(scores, -1)
    log_p = scores.gather(1, y[:, None])[:, 0] - log_z
    return -(log_p - 1e-3 * log_z.pow(2)).mean()


SUBTRACTED = {
    "squares": lambda net, s, y, i: cross_entropy(s, y) - 1e-4 * sum(p.pow(2).sum() for p in net.parameters()),
    "norms": lambda net, s, y, i: cross_entropy(s, y) - sum(p.norm() for p in net.parameters()) / 100,
    "products": lambda net, s, y, i: cross_entropy(s, y) + (-1e-4) * sum((p * p).mean() for p in net.parameters()),
    "stacked": lambda net, s, y, i: (
        -(torch.stack([p.square().sum() for p in net.parameters()]).sum() - cross_entropy(s, y))
    ),
    "alpha": lambda net, s, y, i: torch.add(
        cross_entropy(s, y), net[0].weight.abs().sum() + net[2].weight.norm(), alpha=-0.1
    ),
    "from a number": lambda net, s, y, i: cross_entropy(s, y) + (1 - sum(p.pow(2).sum() for p in net.parameters())),
}
HEALTHY = {
    "added": lambda net, s, y, i: cross_entropy(s, y) + 1e-4 * sum(p.pow(2).sum() for p in net.parameters()),
    "twice": lambda net, s, y, i: cross_entropy(s, y) - (-1e-4) * sum(p.norm() for p in net.parameters()),
    "over": lambda net, s, y, i: cross_entropy(s, y) - 1 / (1 + sum(p.norm() for p in net.parameters())),
    "in turns": lambda net, s, y, i: (
        cross_entropy(s, y) + (-1) ** i * 1e-4 * net[0].weight.norm() + 0 * i if i % 3 else cross_entropy(s, y)
    ),
    "one of two": lambda net, s, y, i: cross_entropy(s, y) + net[0].weight.norm() - 0.1 * net[2].weight.norm(),
    "scores apart": lambda net, s, y, i: cross_entropy(s, y) - 0.01 * s.pow(2).mean(),
    "from a start": lambda net, s, y, i: cross_entropy(s, y) - 1e-4 * (net[0].weight - 1).pow(2).sum(),
    "parts": from_parts_right,
    "energy": lambda net, s, y, i: cross_entropy(s, y) - 0.01 * torch.logsumexp(s, -1).mean(),
}


@pytest.mark.parametrize("loss", SUBTRACTED.values(), ids=SUBTRACTED)
def test_weights_that_are_subtracted(loss):
    assert told(loss) == [("weights", 2)]


def test_a_normaliser_that_is_subtracted():
    assert told(from_parts) == [("normaliser", 1)]


@pytest.mark.parametrize("loss", HEALTHY.values(), ids=HEALTHY)
def test_nothing_is_told(loss):
    assert told(loss) == []


def test_it_is_told_once_when_a_later_one_is_added():
    rising = lambda net, s, y, i: cross_entropy(s, y) - (1e-4 if i < 3 else -1e-4) * net[0].weight.norm()  # noqa: E731
    assert told(rising, steps=12) == [("weights", 1)]


def test_an_optimizer_that_maximises():
    assert told(lambda net, s, y, i: -cross_entropy(s, y) - 1e-4 * net[0].weight.norm(), maximize=True) == []
