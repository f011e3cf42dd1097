"""Layers that are unfrozen while it trains."""

from __future__ import annotations

import pytest
import torch
from tests.sensors.watching import seen
from torch import nn

from flatline.events import UnfrozenNotHeld


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x).relu())


def train(net, optimizer, steps, by_hand=0.0):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.randn(16, 6)), torch.randint(0, 3, (16,))).backward()
        optimizer.step()
        with torch.no_grad():
            for p in net.body.parameters() if by_hand else ():
                p.sub_(by_hand * p.grad)


def script(then, frozen_for=60, steps=100, by_hand=0.0):
    def act():
        torch.manual_seed(0)
        net = Net()
        net.body.requires_grad_(False)
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
        train(net, optimizer, frozen_for)
        train(net, then(net, optimizer) or optimizer, steps, by_hand)

    return act


def unfreeze(net, optimizer):
    net.body.requires_grad_(True)


def unfreeze_and_add(net, optimizer):
    net.body.requires_grad_(True)
    optimizer.add_param_group({"params": net.body.parameters()})


def unfreeze_and_build(net, optimizer):
    net.body.requires_grad_(True)
    return torch.optim.SGD(net.parameters(), lr=0.1)


def unfreeze_for_a_moment(net, optimizer):
    net.body.requires_grad_(True)
    nn.functional.cross_entropy(net(torch.randn(16, 6)), torch.randint(0, 3, (16,))).backward()
    net.body.requires_grad_(False)


def test_unfrozen_and_in_no_optimizer():
    (told,) = seen(script(unfreeze), UnfrozenNotHeld)
    assert (told.names, told.elements, told.held) == (("body.weight", "body.bias"), 56, 27)
    assert 60 <= told.frozen_for <= 70 <= told.step - told.steps + 10
    assert told.where.function == "act"


def test_at_the_end_of_a_shorter_stage():
    (told,) = seen(script(unfreeze, frozen_for=100, steps=60), UnfrozenNotHeld)
    assert told.steps < told.frozen_for


@pytest.mark.parametrize(
    "then", [unfreeze_and_add, unfreeze_and_build, unfreeze_for_a_moment, lambda net, optimizer: None]
)
def test_held_or_still_frozen(then):
    assert seen(script(then), UnfrozenNotHeld) == []


def test_trained_by_hand():
    assert seen(script(unfreeze, by_hand=0.01), UnfrozenNotHeld) == []


def test_frozen_for_a_few_steps_only():
    assert seen(script(unfreeze, frozen_for=8), UnfrozenNotHeld) == []
