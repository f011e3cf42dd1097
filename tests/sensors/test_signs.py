"""Losses over pairs, and what they are told."""

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import SignsMissing

A, B = (torch.randn(32, 8, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
LABELS = torch.arange(32) % 2


def trained(loss, target, *, single=False):
    def run():
        torch.manual_seed(0)
        net = nn.Linear(8, 1 if single else 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            if isinstance(loss, (nn.HingeEmbeddingLoss, nn.SoftMarginLoss)):
                loss(net(A)[:, 0], target).backward()
            else:
                one, other = (net(A)[:, 0], net(B)[:, 0]) if single else (net(A), net(B))
                loss(one, other, target).backward()
            optimizer.step()

    return run


@pytest.mark.parametrize(
    ("loss", "single"),
    [
        (nn.CosineEmbeddingLoss(), False),
        (nn.MarginRankingLoss(margin=0.5), True),
        (nn.HingeEmbeddingLoss(), True),
        (nn.SoftMarginLoss(), True),
    ],
)
def test_zero_for_no(loss, single):
    events = seen(trained(loss, LABELS.float(), single=single), SignsMissing)
    assert [(event.loss, event.zeros, event.targets) for event in events] == [(type(loss).__name__, 16, 32)] * 3


@pytest.mark.parametrize("target", [2 * LABELS - 1, torch.ones(32), LABELS - (torch.arange(32) % 3 == 0).long()])
def test_near_miss_signs(target):
    """With 1 and -1, with 1 alone, with all three."""
    events = seen(trained(nn.CosineEmbeddingLoss(), target), SignsMissing)
    assert {event.zeros for event in events} == {0}


def test_near_miss_another_loss():
    assert seen(trained(nn.TripletMarginLoss(), A @ torch.randn(8, 4)), SignsMissing) == []
