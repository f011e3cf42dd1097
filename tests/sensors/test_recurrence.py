"""A weight that is applied to its own result."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import RecurrenceSampled, RecurrentGradientsSampled


def grown(weight, *, positions=20, activation=torch.relu, turned=False):
    def run():
        state = torch.ones(4, len(weight))
        for _ in range(positions):
            state = activation(state @ (weight.t() if turned else weight))
        state.sum().backward()

    return run


def scaled(factor):
    return nn.Parameter(factor * torch.eye(6))


@pytest.mark.parametrize("turned", [False, True])
def test_sizes_of_the_state(turned):
    (event,) = seen(grown(scaled(1.5), turned=turned), RecurrenceSampled)
    assert (event.positions, event.shape, event.weight) == (20, (6, 6), "")
    assert event.sizes[0] == pytest.approx(1.5)
    assert event.sizes[-1] == pytest.approx(1.5**19)
    assert len(event.sizes) == 9


def test_a_layer_with_a_bias_and_a_name():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = nn.Linear(6, 6)

        def forward(self, x):
            for _ in range(12):
                x = torch.tanh(self.step(x))
            return x

    net = Net()
    (event,) = seen(lambda: net(torch.randn(4, 6)).sum().backward(), RecurrenceSampled)
    assert (event.weight, event.positions) == ("step.weight", 12)


def test_a_layer_used_side_by_side():
    layer = nn.Linear(6, 6)
    assert seen(lambda: sum(layer(torch.randn(4, 6)) for _ in range(20)).sum().backward(), RecurrenceSampled) == []


def test_few_positions():
    assert seen(grown(scaled(1.5), positions=6), RecurrenceSampled) == []


def test_a_state_that_is_zero_or_not_finite():
    assert seen(grown(scaled(0.0)), RecurrenceSampled) == []
    assert seen(grown(scaled(1e30)), RecurrenceSampled) == []


def test_gradients_that_come_to_the_positions():
    (event,) = seen(grown(scaled(1.5)), RecurrentGradientsSampled)
    assert (event.positions, event.shape, event.weight) == (20, (6, 6), "")
    assert event.gradients[-1] == pytest.approx(1.0)
    assert event.gradients[0] == pytest.approx(1.5**19)
    assert len(event.gradients) == 9


def test_gradients_of_a_layer_on_input_and_state():
    layer = nn.Linear(10, 6)

    def run():
        state = torch.zeros(4, 6)
        for _ in range(12):
            state = torch.tanh(layer(torch.cat([torch.randn(4, 4), state], 1)))
        state.sum().backward()

    (event,) = seen(run, RecurrentGradientsSampled)
    assert event.positions == 12
    assert event.gradients[0] < event.gradients[-1]


def test_gradients_are_the_same_as_without():
    weight, other = scaled(1.1), scaled(1.1)
    grown(other)()
    seen(grown(weight), RecurrentGradientsSampled)
    assert torch.equal(weight.grad, other.grad)


def test_no_gradients_over_few_positions_or_none_behind_a_cut():
    assert seen(grown(scaled(1.5), positions=6), RecurrentGradientsSampled) == []

    def cut():
        state = torch.ones(4, 6)
        for _ in range(20):
            state = torch.relu(state.detach() @ scaled(1.5))
        state.sum().backward()

    assert seen(cut, RecurrentGradientsSampled) == []
