"""Gradients of the step before that are still there: left over, or kept on purpose."""

from __future__ import annotations

import pytest
import torch
from tests.sensors.watching import seen
from torch import nn

from flatline.events import OptimizerStepped

X = torch.randn(16, 4)


class Compressed(torch.optim.SGD):
    """Takes the largest of each gradient, and leaves the rest of it for the next step."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            rest = parameter.grad.view(-1)
            largest = rest.abs().topk(1).indices
            parameter.view(-1)[largest] -= 0.1 * rest[largest]
            rest[largest] = 0


def momentum(parameter):
    parameter.grad.mul_(0.9)


def anew(parameter):
    parameter.grad = 0.9 * parameter.grad


LOOPS = {
    "never zeroed": (torch.optim.SGD, None, lambda net: None, True),
    "never zeroed, and clipped": (torch.optim.Adam, None, lambda net: nn.utils.clip_grad_norm_(net.parameters(), 1e-3), True),
    "a momentum kept in them": (torch.optim.SGD, momentum, lambda net: None, False),
    "a momentum, in new tensors": (torch.optim.SGD, anew, lambda net: None, False),
    "error feedback": (Compressed, None, lambda net: None, False),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_leftovers(name):
    kind, after, clip, told = LOOPS[name]

    def run():
        net = nn.Linear(4, 1)
        optimizer = kind(net.parameters(), lr=0.01)
        for _ in range(8):
            net(X).square().mean().backward()
            clip(net)
            optimizer.step()
            for parameter in net.parameters() if after is not None else ():
                after(parameter)

    steps = seen(run, OptimizerStepped)
    assert [step.leftover for step in steps[1:5]] == [told] * 4
