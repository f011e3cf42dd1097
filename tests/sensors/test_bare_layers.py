"""Weights without a module: what they make of their inputs, in the order of the pass."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from watching import seen

from flatline.events import ActivationsSampled, NumbersSampled, RunEnded
from flatline.rules.weights.activation_scale_with_depth import ActivationScaleWithDepth
from flatline.testing import play

WIDE, DEEP = 32, 8


def drawn(scale, turned=False):
    sizes = [WIDE] * DEEP + [3]
    shapes = [(b, a) if turned else (a, b) for a, b in pairwise(sizes)]
    return [(torch.randn(*shape) * scale / WIDE**0.5).requires_grad_() for shape in shapes]


def products(x, weights):
    for w in weights[:-1]:
        x = (x @ w).relu()
    return x @ weights[-1]


def functions(x, weights):
    for w in weights[:-1]:
        x = F.linear(x, w, torch.zeros(WIDE)).relu()
    return F.linear(x, weights[-1])


def loop(scale, forward=products, shape=(64, WIDE), steps=40, rate=0.01):
    def run():
        torch.manual_seed(0)
        weights = drawn(scale, turned=forward is functions)
        optimizer = torch.optim.SGD(weights, lr=rate)
        inputs, labels = torch.randn(*shape), torch.arange(shape[0]) % 3
        for _ in range(steps):
            out = forward(inputs, weights)
            optimizer.zero_grad()
            F.cross_entropy(out if out.dim() == 2 else out.mean(1), labels).backward()
            optimizer.step()

    return run


@pytest.mark.parametrize("forward", [products, functions])
@pytest.mark.parametrize("shape", [(64, WIDE), (64, 5, WIDE)])
def test_layers_in_their_order(forward, shape):
    first, second, *_ = seen(loop(1.0, forward, shape), ActivationsSampled)
    assert (first.untrained, second.untrained) == (True, False)
    assert [layer.layer for layer in first.layers] == [f"parameter {n}" for n in range(DEEP)]
    assert all(0.5 < layer.gain < 1.5 and layer.fan_in == WIDE for layer in first.layers)
    assert first.layers[0].std == pytest.approx(1.0, rel=0.2)
    assert first.layers[-1].std < first.layers[0].std


def found(scale, **more):
    return play(ActivationScaleWithDepth, *seen(loop(scale, **more), ActivationsSampled, NumbersSampled, RunEnded))


def test_bare_layers_that_grow_or_shrink():
    (grown,) = found(5.0, rate=0.0)
    assert "8 bare layers" in grown.message
    (shrunk,) = found(0.1)
    assert "the loss has not fallen" in shrunk.message


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.414])
def test_near_miss_bare_layers_that_keep_their_size(scale):
    assert found(scale) == []


def test_near_miss_weights_of_modules_are_read_there():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(w.detach()) for w in drawn(1.0)])

        def forward(self, x):
            return products(x, list(self.weights))

    def run():
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.randn(16, WIDE)).square().mean().backward()
            optimizer.step()

    assert "parameters" not in {event.model for event in seen(run, ActivationsSampled)}


def test_near_miss_one_product():
    def run():
        weight = torch.randn(WIDE, 3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.01)
        (torch.randn(16, WIDE) @ weight).square().mean().backward()
        optimizer.step()

    assert seen(run, ActivationsSampled) == []
