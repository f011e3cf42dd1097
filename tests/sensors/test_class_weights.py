"""Weights of classes, and how frequent the classes are."""

from __future__ import annotations

import pytest
import torch
from tests.sensors.watching import seen
from torch import nn
from torch.nn import functional

from flatline.events import ClassesWeighed

TORCH = torch.Generator().manual_seed(3)
X = torch.randn(64, 4, generator=TORCH)
RARE = (torch.arange(64) % 16 == 0).long()
THREE = torch.tensor([0.6, 0.3, 0.1])
LOSSES = {
    "pos_weight": (1, lambda out: functional.binary_cross_entropy_with_logits(out[:, 0], RARE.float(), pos_weight=torch.tensor(0.06)), 2),
    "of each class": (3, lambda out: functional.cross_entropy(out, RARE * 2, weight=THREE), 3),
    "of maps": (3, lambda out: functional.cross_entropy(out.view(16, 4, 3).transpose(1, 2), RARE.view(16, 4), weight=THREE), 3),
    "of samples": (1, lambda out: functional.binary_cross_entropy_with_logits(out[:, 0], RARE.float(), weight=torch.rand(64)), 0),
    "of tasks": (2, lambda out: functional.binary_cross_entropy_with_logits(out, RARE[:, None].expand(64, 2).float(), pos_weight=THREE[:2]), 0),
    "soft targets": (1, lambda out: functional.binary_cross_entropy_with_logits(out[:, 0], RARE * 0.9, pos_weight=torch.tensor(2.0)), 0),
    "none": (3, lambda out: functional.cross_entropy(out, RARE), 0),
    "two losses": (3, lambda out: functional.cross_entropy(out, RARE, weight=THREE) + functional.cross_entropy(out, RARE), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_weights_and_counts(name):
    width, loss, classes = LOSSES[name]

    def run():
        net = nn.Linear(4, width)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(40):
            optimizer.zero_grad()
            loss(net(X)).backward()
            optimizer.step()

    found = seen(run, ClassesWeighed)
    assert [len(event.weights) for event in found] == ([classes] if classes else [])
    if found:
        looks = 9 if 0 in found[0].counts else 6
        assert (sum(found[0].counts), found[0].counts[0]) == (64 * looks, 60 * looks)


def test_near_miss_weights_of_each_batch():
    def run():
        net = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(40):
            optimizer.zero_grad()
            functional.cross_entropy(net(X), RARE, weight=THREE + step).backward()
            optimizer.step()

    assert seen(run, ClassesWeighed) == []
