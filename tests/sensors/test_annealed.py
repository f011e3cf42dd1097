"""A constant that multiplies the scores of a cross entropy."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from watching import seen

from flatline.events import LossComputed


def factors(scale, *, steps=300, loss=functional.cross_entropy):
    """Step and factor, as they were told of a run whose scores go through ``scale``."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)

    def run():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(steps):
            optimizer.zero_grad()
            loss(scale(model(torch.randn(16, 8)), step), torch.randint(0, 4, (16,))).backward()
            optimizer.step()

    return [(event.step, event.factor) for event in seen(run, LossComputed)]


@pytest.mark.parametrize(
    "scale",
    [
        lambda scores, step: scores / 0.99**step,
        lambda scores, step: scores * (1 / 0.99**step),
        lambda scores, step: scores.t().div(0.99**step).t(),
        lambda scores, step: scores * torch.tensor(0.5) / (0.5 * 0.99**step),
    ],
)
def test_a_factor_that_grows_is_looked_at_again(scale):
    told = factors(scale)
    assert all(factor == pytest.approx(0.99 ** -(step - 1), rel=1e-4) for step, factor in told)
    assert told[-1][0] > 150


def test_a_factor_that_stands_or_is_none():
    assert {factor for _, factor in factors(lambda scores, _: scores, steps=20)} == {1.0}
    assert {factor for _, factor in factors(lambda scores, _: scores / 0.25, steps=20)} == {4.0}
    temperature = nn.Parameter(torch.tensor(2.0))
    assert {factor for _, factor in factors(lambda scores, _: scores * temperature, steps=20)} == {1.0}
