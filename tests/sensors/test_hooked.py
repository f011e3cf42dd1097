"""Hooks on gradients: what is seen of them, and that they run as before."""

import functools

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import NumbersSampled


def factor_of(hook, steps=4):
    def loop():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        model[0].weight.register_hook(hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()

    events = seen(loop, NumbersSampled)
    return next(layer.hook for layer in events[-1].layers if layer.name == "0.weight")


def damp(gradient):
    return gradient * 1e-4


def in_place(gradient):
    gradient.mul_(1e-4)


class Damper:
    def __call__(self, gradient):
        return gradient * 1e-4


SCALING = {"a function": damp, "partial": functools.partial(damp), "in place": in_place, "an object": Damper()}


@pytest.mark.parametrize("hook", SCALING.values(), ids=SCALING)
def test_a_hook_that_scales(hook):
    facts = factor_of(hook)
    assert facts.factor == pytest.approx(1e-4, rel=1e-3)
    assert facts.name in ("damp", "in_place", "Damper")


ROWS = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0])[:, None]
OTHERS = {
    "some rows": lambda gradient: gradient * ROWS,
    "nothing is left": torch.zeros_like,
    "clipped by its norm": lambda gradient: gradient / gradient.norm() * 1e-4,
}


@pytest.mark.parametrize("hook", OTHERS.values(), ids=OTHERS)
def test_near_miss_hooks_that_do_something_else(hook):
    assert factor_of(hook) is None


def test_a_hook_that_only_looks_on():
    assert factor_of(lambda gradient: None).factor == 1.0


def test_hooks_run_in_their_order_and_can_be_taken_off():
    model, order = nn.Linear(4, 1), []
    handles = [model.weight.register_hook(lambda gradient, at=at: order.append(at)) for at in range(3)]

    def loop():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()

    seen(loop, NumbersSampled)
    assert order == [0, 1, 2] * 3
    assert len(model.weight._backward_hooks) == 3
    handles[1].remove()
    assert len(model.weight._backward_hooks) == 2
