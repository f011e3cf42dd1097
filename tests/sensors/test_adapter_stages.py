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
