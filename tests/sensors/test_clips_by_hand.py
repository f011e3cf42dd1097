"""Gradients that the script clips itself."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from watching import seen

from flatline.events import ForwardObserved, OptimizerStepped

X = torch.randn(64, 12, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (64,), generator=torch.Generator().manual_seed(1))


def trained(change, steps=6, final=nn.Identity, killed=None):
    def run():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4), final())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(steps):
            if step == killed:
                nn.init.constant_(model[2].bias.data, -100.0)
            optimizer.zero_grad()
            loss = functional.mse_loss(model(X), X[:, :4]) if killed else functional.cross_entropy(model(X), Y)
            loss.backward()
            change([p.grad for p in model.parameters()])
            optimizer.step()

    return run


def to_one_norm(gradients, most=1e-3):
    norm = torch.stack([g.norm() for g in gradients]).norm()
    for gradient in gradients:
        gradient.mul_(min(1.0, most / (float(norm) + 1e-6)))


def test_a_norm_that_is_always_the_same():
    events = seen(trained(to_one_norm), OptimizerStepped)
    assert all(event.rescaled_by_hand for event in events)
    clips = [event.clip_by_hand for event in events]
    assert clips[0] is None  # one norm is not yet a threshold
    assert [clip.threshold for clip in clips[1:]] == pytest.approx([1e-3] * (len(clips) - 1), rel=0.01)
    assert all(0.05 < clip.norm < 5 for clip in clips[1:])


def halve(gradients):
    for gradient in gradients:
        gradient.div_(2)


def grow(gradients):
    norm = torch.stack([g.norm() for g in gradients]).norm()
    for gradient in gradients:
        gradient.mul_(50 / norm)


@pytest.mark.parametrize("change", [halve, grow, lambda gradients: to_one_norm(gradients, 1e6)])
def test_near_miss_another_change(change):
    assert {event.clip_by_hand for event in seen(trained(change), OptimizerStepped)} == {None}


def test_a_matrix_without_gradient_is_looked_at():
    """The answers died between two looks, which are far apart by then."""
    events = seen(trained(lambda gradients: None, steps=150, final=nn.ReLU, killed=100), ForwardObserved)
    late = [event for event in events if 100 < event.step < 130 and event.dead]
    assert late
    assert late[-1].dead[-1].dead == late[-1].dead[-1].units == 4
