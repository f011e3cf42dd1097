"""Layers whose units are copies of each other."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from watching import seen

from flatline.events import UnitsFollowed


def net(begin=None, activation=nn.Tanh):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), activation(), nn.Linear(16, 8), activation(), nn.Linear(8, 4))
    for parameter in model.parameters() if begin is not None else ():
        nn.init.constant_(parameter, begin)
    return model


def trained(model, *, steps=6, optimizer=torch.optim.SGD, lr=0.1):
    def run():
        held = optimizer(model.parameters(), lr=lr)
        x, y = torch.randn(32, 12), torch.randint(0, 4, (32,))
        for _ in range(steps):
            held.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            held.step()

    return run


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_one_number_everywhere(optimizer):
    (event,) = seen(trained(net(0.1), optimizer=optimizer), UnitsFollowed)
    assert [(each.name, each.units, each.zero) for each in event.layers] == [
        ("0.weight", 16, False),
        ("2.weight", 8, False),
    ]
    assert all(each.gradient > 0 for each in event.layers)
    assert event.learning


def test_zeros_everywhere():
    (event,) = seen(trained(net(0.0)), UnitsFollowed)
    assert [each.name for each in event.layers] == ["0.weight", "2.weight", "4.weight"]
    assert all(each.zero and each.gradient == 0 for each in event.layers)
    assert not event.learning


def test_filters_of_a_convolution():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4))
    nn.init.constant_(model[0].weight, 0.1)
    nn.init.constant_(model[0].bias, 0.0)
    nn.init.constant_(model[3].weight, 0.1)

    def run():
        held = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            held.zero_grad()
            functional.cross_entropy(model(torch.randn(16, 1, 6, 6)), torch.randint(0, 4, (16,))).backward()
            held.step()

    (event,) = seen(run, UnitsFollowed)
    assert [(each.name, each.units) for each in event.layers] == [("0.weight", 8)]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_one_layer_of_zeros_parts(place, optimizer):
    model = net()
    nn.init.zeros_(model[place].weight)
    assert seen(trained(model, optimizer=optimizer), UnitsFollowed) == []


def test_nothing_is_said_of_random_frozen_or_resting_layers():
    frozen = net(0.1)
    frozen.requires_grad_(False)
    frozen[4] = nn.Linear(8, 4)
    assert seen(trained(net()), UnitsFollowed) == []
    assert seen(trained(frozen), UnitsFollowed) == []
    assert seen(trained(net(0.1), lr=0.0), UnitsFollowed) == []
    assert seen(trained(net(0.1), steps=3), UnitsFollowed) == []


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_units_of_two_weights(optimizer):
    """Two inputs are enough to tell that nothing parts the units."""
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 4))
    nn.init.constant_(model[0].weight, 0.7)
    nn.init.zeros_(model[0].bias)
    nn.init.constant_(model[2].weight, 0.1)

    def run():
        held = optimizer(model.parameters(), lr=0.01)
        x, y = torch.randn(32, 2), torch.randint(0, 4, (32,))
        for _ in range(6):
            held.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            held.step()

    (event,) = seen(run, UnitsFollowed)
    assert ("0.weight", 16) in [(each.name, each.units) for each in event.layers]
