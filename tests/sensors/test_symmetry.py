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


def factors(fill=None, *, width=8, read=lambda p, q: (p * q).sum(-1), steps=8, decay=0.0, held=False):
    """Two tables that are multiplied; of the first ten rows only, if ``held``."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Embedding(40, width), nn.Embedding(20, width)])
    for table in model if fill is not None else ():
        nn.init.constant_(table.weight, fill)

    def run():
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=decay)
        for _ in range(steps):
            p, q, y = torch.randint(0, 10 if held else 40, (32,)), torch.randint(0, 10, (32,)), torch.randn(32)
            optimizer.zero_grad()
            functional.mse_loss(read(model[0](p), model[1](q)), y).backward()
            optimizer.step()

    return model, run


@pytest.mark.parametrize("held", [False, True])
def test_columns_of_tables_that_are_multiplied(held):
    _, run = factors(0.1, held=held)
    (event,) = seen(run, UnitsFollowed)
    assert [(each.units, each.columns) for each in event.layers] == [(8, True), (8, True)]
    assert all(each.gradient > 0 for each in event.layers)


def test_columns_of_factors_that_no_module_holds():
    torch.manual_seed(0)
    u, v = (torch.full((n, 6), 0.3, requires_grad=True) for n in (30, 20))
    y = torch.randn(30, 20)

    def run():
        optimizer = torch.optim.SGD([u, v], lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            ((u @ v.t() - y) ** 2).mean().backward()
            optimizer.step()

    (event,) = seen(run, UnitsFollowed)
    assert [(each.units, each.columns) for each in event.layers] == [(6, True), (6, True)]


def test_columns_that_part_or_rest_are_not_told():
    mix = torch.randn(8)
    for fill, read in ((None, lambda p, q: (p * q).sum(-1)), (1.0, lambda p, q: (p * q) @ mix)):
        assert seen(factors(fill, read=read)[1], UnitsFollowed) == []
    assert seen(factors(0.1, width=1)[1], UnitsFollowed) == []


def test_columns_of_a_table_that_is_not_used():
    model, run = factors()
    model.append(nn.Embedding(12, 8))
    with torch.no_grad():
        model[2].weight.copy_(torch.arange(12.0)[:, None].expand(12, 8))
    model[2].weight.grad = torch.zeros(12, 8)
    assert seen(run, UnitsFollowed) == []


def test_columns_of_a_layer_belong_to_its_inputs():
    """A head of zeros behind inputs that are all alike: its own units are its rows, and they part."""
    head = nn.Linear(8, 4)
    nn.init.zeros_(head.weight)

    def run():
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        for _ in range(6):
            x = torch.randn(32, 1).expand(32, 8)
            optimizer.zero_grad()
            functional.cross_entropy(head(x), torch.randint(0, 4, (32,))).backward()
            optimizer.step()

    assert seen(run, UnitsFollowed) == []
