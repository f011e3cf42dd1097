"""Adapters put in for a second stage, with an optimizer of their own, and whether a loss comes by them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from watching import seen

from flatline.events import ParametersAudited, RunEnded
from flatline.rules.optimization.adapter_not_wired import AdapterNotWired
from flatline.testing import play


class LowRank(nn.Module):
    def __init__(self, inner, *, wired):
        super().__init__()
        self.inner, self.wired = inner.requires_grad_(False), wired
        self.down = nn.Linear(inner.in_features, 3, bias=False)
        self.up = nn.Linear(3, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    @property
    def weight(self):
        return self.inner.weight + self.up.weight @ self.down.weight if self.wired else self.inner.weight

    @property
    def bias(self):
        return self.inner.bias

    def forward(self, x):
        return self.inner(x) + (self.up(self.down(x)) if self.wired else 0.0)


class Net(nn.Module):
    def __init__(self, called):
        super().__init__()
        self.one, self.two, self.head, self.called = nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 1), called

    def forward(self, x):
        for layer in (self.one, self.two):
            x = F.silu(layer(x) if self.called else F.linear(x, layer.weight, layer.bias))
        return self.head(x)


def stages(*, called, wired):
    def fit(net, steps):
        optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.randn(8, 12)).square().mean().backward()
            optimizer.step()

    def run():
        net = Net(called)
        fit(net, 12)
        net.one, net.two = LowRank(net.one, wired=wired), LowRank(net.two, wired=wired)
        fit(net, 8)

    return play(AdapterNotWired, *seen(run, ParametersAudited, RunEnded))


@pytest.mark.parametrize("called", [True, False])
def test_adapters_that_no_loss_reaches(called):
    (finding,) = stages(called=called, wired=False)
    assert "no loss reaches any of the 2 adapters" in finding.message


@pytest.mark.parametrize("called", [True, False])
def test_near_miss_adapters_in_use(called):
    assert stages(called=called, wired=True) == []


class Side(nn.Module):
    def __init__(self, *, conv):
        super().__init__()
        kind = (lambda a, b: nn.Conv1d(a, b, 1)) if conv else nn.Linear
        self.down, self.up = kind(16, 4), kind(4, 16)

    def forward(self, x):
        return self.up(F.silu(self.down(x)))


def beside(*, conv, returns):
    """Adapters apart from their model, as hooks call them."""

    def hook(side):
        def add(module, inputs, output):
            total = output + side(output)
            return total if returns else None

        return add

    def run():
        layers = [nn.Conv1d(16, 16, 3, padding=1) if conv else nn.Linear(16, 16) for _ in range(2)]
        net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 if conv else 16, 3))
        batch = torch.randn(8, 16, 8) if conv else torch.randn(8, 16)
        net[:-1].requires_grad_(False)
        sides = [Side(conv=conv) for _ in layers]
        for layer, side in zip(layers, sides, strict=True):
            layer.register_forward_hook(hook(side))
        optimizer = torch.optim.Adam([*net[-1].parameters(), *(p for side in sides for p in side.parameters())], 1e-3)
        for _ in range(12):
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()

    return run


@pytest.mark.parametrize("conv", [False, True])
def test_hooks_that_drop_what_adapters_make(conv):
    found = seen(beside(conv=conv, returns=False), ParametersAudited, RunEnded)
    astray = [event for event in found if isinstance(event, ParametersAudited)][-1].astray
    assert sorted({p.name for p in astray if "down.weight" in p.name}) == ["Side#2.down.weight", "Side.down.weight"]
    assert all(p.ran and not p.reached for p in astray)


@pytest.mark.parametrize("conv", [False, True])
def test_near_miss_hooks_that_return_it(conv):
    (*_, last) = seen(beside(conv=conv, returns=True), ParametersAudited)
    assert last.astray == ()
