"""Numbers before the terms of a loss, read from real graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from watching import seen

from flatline.events import TermsWeighed


def weights(loss_of, steps=12):
    """Step and weights, as they were told of a run with that loss."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)

    def run():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(steps):
            optimizer.zero_grad()
            fit = functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 4, (16,)))
            loss_of(fit, model.weight.abs().mean(), step).backward()
            optimizer.step()

    return [(event.step, event.weights) for event in seen(run, TermsWeighed)]


@pytest.mark.parametrize(
    "loss",
    [
        lambda fit, penalty, step: fit + 0.1 * 1.01**step * penalty,
        lambda fit, penalty, step: (fit + penalty * torch.tensor(0.1 * 1.01**step)) / 4,
        lambda fit, penalty, step: sum([fit, 0.1 * 1.01**step * penalty]),
    ],
)
def test_a_weight_that_grows_is_looked_at_again(loss):
    told = weights(loss, steps=200)
    assert all(found == pytest.approx((0.1 * 1.01 ** (step - 1),), rel=1e-4) for step, found in told)
    assert told[-1][0] > 100


def test_no_number_before_a_term():
    assert weights(lambda fit, penalty, step: fit + penalty) == []
    assert weights(lambda fit, penalty, step: 2.0 * fit) == []
    learned = nn.Parameter(torch.tensor(2.0))
    assert weights(lambda fit, penalty, step: fit + learned * penalty) == []
