"""Loops that ask ``torch.autograd.grad`` for their gradients, and have no backward."""

from __future__ import annotations

import pytest
import torch
from tests.sensors.watching import seen
from torch import nn
from torch.nn import functional

from flatline.events import LossComputed, LossesRead, LossNotFinite, NumbersSampled, ParametersAudited

X, Y = torch.randn(16, 4), torch.arange(16) % 3
STEPS = 20


def loop(ask, *, steps=STEPS, scale=1.0, other=None):
    """Each step writes the gradients that were asked for into ``.grad``."""

    def run():
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            loss = functional.cross_entropy(model(scale * X).softmax(1), Y)
            for parameter, gradient in zip(model.parameters(), ask(loss, list(model.parameters())), strict=True):
                parameter.grad = gradient
            optimizer.step()
            if other is not None:
                other(model)

    return run


def test_losses_and_numbers_of_such_a_loop():
    found = seen(loop(torch.autograd.grad), LossComputed, NumbersSampled, LossesRead)
    losses = [event for event in found if isinstance(event, LossComputed)]
    samples = [event for event in found if isinstance(event, NumbersSampled)]
    read = [event for event in found if isinstance(event, LossesRead)]
    assert {(event.kind, event.fed_by, event.where.file == __file__) for event in losses} == {
        ("cross_entropy", "softmax", True)
    }
    assert samples[-1].first_loss == pytest.approx(samples[0].loss)
    assert sum(len(event.losses) for event in read) == STEPS


def test_a_loss_that_is_not_finite():
    found = seen(loop(torch.autograd.grad, scale=float("nan")), LossNotFinite)
    assert len(found) == 1


ASKED = {
    "second derivatives": lambda loss, weights: torch.autograd.grad(loss, weights, create_graph=True),
    "of every row": lambda loss, weights: torch.autograd.grad(loss.expand(2), weights, torch.ones(2)),
    "one of many": lambda loss, weights: [
        torch.autograd.grad(loss, [weight], retain_graph=True)[0] for weight in weights
    ],
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_no_step_of_training_is_left_alone(name):
    found = seen(loop(ASKED[name]), LossComputed)
    assert bool(found) is (name == "one of many")  # half of the parameters are asked for


def test_beside_a_backward_nobody_looks():
    """First-order meta-learning: an inner gradient is no step."""

    def backward(model):
        functional.mse_loss(model(X), X[:, :3]).backward()

    found = seen(loop(torch.autograd.grad, other=backward), LossComputed)
    assert [event.kind for event in found if event.step > 1].count("cross_entropy") == 0


def test_after_a_backward_what_they_reached_is_not_known():
    """A script that trained another model before: nobody may say that no loss reaches this one."""

    def run():
        other = nn.Linear(4, 3)
        functional.mse_loss(other(X), X[:, :3]).backward()
        loop(torch.autograd.grad)()

    facts = [each for event in seen(run, ParametersAudited) for each in event.optimizers if each.steps >= 2]
    assert facts
    assert not any(each.seen for each in facts)
