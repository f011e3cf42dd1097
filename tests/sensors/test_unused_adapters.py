"""Adapters that an optimizer holds, and that no model calls."""

from __future__ import annotations

import pytest
import torch
from tests.sensors.watching import seen
from torch import nn

from flatline.events import AdaptersUnused


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()).relu())


class Around(nn.Module):
    """Around the layer that it adapts, with modules of its own."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.down, self.up = (
            nn.Linear(layer.in_features, 2, bias=False),
            nn.Linear(2, layer.out_features, bias=False),
        )

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


class Beside(nn.Module):
    """Two matrices for a layer that it does not know."""

    def __init__(self, layer):
        super().__init__()
        self.a = nn.Parameter(torch.randn(2, layer.in_features))
        self.b = nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, x):
        return x @ self.a.T @ self.b.T


class Unequal(Beside):
    def __init__(self, layer):
        super().__init__(layer)
        self.b = nn.Parameter(torch.zeros(layer.out_features + 1, 2))


def train(net, optimizer, steps=24):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.randn(8, 12)), torch.randint(0, 3, (8,))).backward()
        optimizer.step()


def frozen(make):
    """A frozen model, its adapters, and an optimizer of both and of the head."""
    net = Net().requires_grad_(False)
    net.head.requires_grad_(True)
    adapters = [make(net.first), make(net.second)]
    tensors = [p for adapter in adapters for p in adapter.parameters() if p.requires_grad]
    return net, adapters, torch.optim.SGD([*net.head.parameters(), *tensors], lr=0.01)


@pytest.mark.parametrize(("make", "kept"), [(Around, True), (Around, False), (Beside, True), (Beside, False)])
def test_never_called(make, kept):
    def script():
        net, adapters, optimizer = frozen(make)
        holder.append(net)
        holder.extend(adapters if kept else ())
        del adapters
        train(net, optimizer)

    holder = []
    (told,) = seen(script, AdaptersUnused)
    assert (told.adapter, told.adapters, told.tensors, told.held) == (make.__name__, 2, 4, 6)
    assert (told.layers, told.kept, told.steps) == (("first", "second"), kept, 24)
    assert told.frozen == 12 * 16 + 16 + 16 * 12 + 12
    assert told.where.function == "frozen"


def put_in(net, adapters, optimizer):
    net.first, net.second = adapters
    train(net, optimizer)


def put_in_later(net, adapters, optimizer):
    train(net, optimizer)
    net.first, net.second = adapters
    train(net, optimizer)


def one_of_two_is_chosen(net, adapters, optimizer):
    net.first = adapters[0]
    train(net, optimizer)


@pytest.mark.parametrize("act", [put_in, put_in_later, one_of_two_is_chosen])
def test_called(act):
    assert seen(lambda: act(*frozen(Around)), AdaptersUnused) == []


def test_other_shapes_than_any_layer():
    def script():
        net, _, optimizer = frozen(Unequal)
        train(net, optimizer)

    assert seen(script, AdaptersUnused) == []


class Flagged(Net):
    """Knows its adapters, and leaves them out on purpose."""

    use_adapters = False

    def add(self, adapters):
        self.adapters = nn.ModuleList(adapters)

    def forward(self, x):
        h = self.first(x)
        h = h + self.adapters[0](x) if self.use_adapters else h
        return self.head(self.second(h.relu()).relu())


@pytest.mark.parametrize("make", [Around, Beside])
def test_left_out_by_a_flag(make):
    def script():
        net = Flagged().requires_grad_(False)
        net.head.requires_grad_(True)
        net.add([make(net.first), make(net.second)])
        tensors = [p for adapter in net.adapters for p in adapter.parameters() if p.requires_grad]
        train(net, torch.optim.SGD([*net.head.parameters(), *tensors], lr=0.01))

    assert seen(script, AdaptersUnused) == []


def test_nothing_of_a_module_is_called_to_remember_it():
    class Unhashable(nn.Module):
        __hash__ = None

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    assert seen(Unhashable, AdaptersUnused) == []


def test_unfrozen_in_a_later_stage():
    def script():
        net = Net().requires_grad_(False)
        net.head.requires_grad_(True)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        train(net, optimizer)
        net.second.requires_grad_(True)
        train(net, optimizer)

    assert seen(script, AdaptersUnused) == []


def rebinds(net):
    for layer in (net.first, net.second):
        layer = Around(layer)  # noqa: PLW2901


def sets(net):
    for name in ("first", "second"):
        layer = Around(getattr(net, name))
        setattr(net, name, layer)


class Hung(Around):
    def __init__(self, layer):
        super().__init__(layer)
        layer.register_forward_hook(lambda _, inputs, output: output + self.up(self.down(inputs[0])))


def hangs(net):
    for layer in (net.first, net.second):
        Hung(layer)


def counts(net):
    for layer in (net.first, net.second):
        layer = Around(layer)  # noqa: PLW2901
        print(sum(p.numel() for p in layer.parameters()))


def with_head(inject):
    net = Net().requires_grad_(False)
    inject(net)
    net.head.requires_grad_(True)
    train(net, torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01))


def test_given_to_the_variable_of_the_loop_alone():
    (told,) = seen(lambda: with_head(rebinds), AdaptersUnused)
    assert (told.adapter, told.adapters, told.held, told.layers) == ("Around", 2, 2, ("first", "second"))
    assert (told.statement, told.steps) == ("layer = Around(layer)", 24)


@pytest.mark.parametrize("inject", [sets, counts, hangs])
def test_put_in_or_read(inject):
    assert seen(lambda: with_head(inject), AdaptersUnused) == []


def test_nothing_is_frozen_around_which_they_are():
    def script():
        net = Net()
        rebinds(net)
        train(net, torch.optim.SGD(net.parameters(), lr=0.01))

    assert seen(script, AdaptersUnused) == []
