"""Where the root of a backward is one loss function of torch, times a constant: its curve is that of the loss."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from flatline.sensors.graph import walk
from flatline.sensors.live import LiveSensors
from flatline.sensors.losses import backward_facts, read

X, LABELS = torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
WHOLE = {
    "cross entropy": lambda net: F.cross_entropy(net(X), LABELS),
    "divided": lambda net: F.cross_entropy(net(X), LABELS) / 4,
    "mse": lambda net: F.mse_loss(net(X), X[:, :3]),
    "nll": lambda net: F.nll_loss(net(X).log_softmax(1), LABELS),
}
PARTS = {
    "two": lambda net: F.cross_entropy(net(X), LABELS) + F.mse_loss(net(X), X[:, :3]),
    "with a penalty": lambda net: F.cross_entropy(net(X), LABELS) + 0.1 * net.weight.square().sum(),
    "by a policy": lambda net: -(net(X).log_softmax(1)[:, 0] * X[:, 0]).mean(),
    "masked": lambda net: (F.cross_entropy(net(X), LABELS, reduction="none") * (LABELS > 0)).sum() / 5,
    "a power": lambda net: F.mse_loss(net(X), X[:, :3]).sqrt(),
}


def whole(make) -> bool:
    sensors = LiveSensors(lambda event: None, wants=lambda event: False, budget=0.01, on_broken=lambda *_: None)
    loss = make(torch.nn.Linear(4, 3))
    graph = walk(loss.grad_fn)
    found = read(graph, sensors.models, step=1, where=None)
    return backward_facts(graph, found, where=None, scale=1.0).whole


@pytest.mark.parametrize("name", WHOLE)
def test_a_loss_of_torch_alone(name):
    assert whole(WHOLE[name])


@pytest.mark.parametrize("name", PARTS)
def test_more_than_that(name):
    assert not whole(PARTS[name])
