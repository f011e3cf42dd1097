"""Attention that sees no later position, and labels that are the tokens in front of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from watching import seen

from flatline.events import LossComputed

TOKENS = (torch.arange(6)[:, None] * 3 + torch.arange(8) * 5) % 11
UPPER = torch.full((8, 8), -math.inf).triu(1)
ALONE = torch.tensor([-100, 1] * 4) > 0  # every other place
LATE = torch.arange(8) > 4


class Net(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend, self.words = attend, nn.Embedding(12, 8)
        self.places, self.head = nn.Parameter(torch.randn(8, 8)), nn.Linear(8, 12)

    def forward(self, ids):
        hidden = (self.words(ids) + self.places)[:, None]
        return self.head(self.attend(hidden, hidden, hidden)[:, 0])


class Autoencoder(Net):
    """A sequence in one vector, and the sequence again from it."""

    def __init__(self, attend):
        super().__init__(attend)
        self.head = nn.Linear(8, 8 * 12)

    def forward(self, ids):
        hidden = self.words(ids)[:, None]
        return self.head(self.attend(hidden, hidden, hidden)[:, 0, -1]).view(-1, 8, 12)


def fused(mask=None, **more):
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, mask, **more)


def by_hand(mask):
    return lambda q, k, v: (q @ k.mT + mask).softmax(-1) @ v


def twice(one, other):
    return lambda q, k, v: one(q, k, v) + other(q, k, v)


def told(attend, labels, kind=Net):
    net = kind(attend)

    def run():
        functional.cross_entropy(net(TOKENS).flatten(0, 1), labels.flatten()).backward()

    return [(event.target.equals_input, event.causal) for event in seen(run, LossComputed)]


@pytest.mark.parametrize(
    "attend",
    [
        fused(is_causal=True),
        fused(UPPER),
        fused(UPPER == 0),
        fused(UPPER.clamp(min=-1e9).expand(6, 1, 8, 8)),
        by_hand(UPPER),
        twice(by_hand(UPPER), fused(UPPER)),
    ],
)
def test_closed_to_later_positions(attend):
    assert told(attend, TOKENS) == [(True, True)]


@pytest.mark.parametrize(
    "attend",
    [
        fused(),
        fused(UPPER.T),
        fused(torch.zeros(8, 8)),
        by_hand(torch.zeros(8, 8)),
        by_hand(UPPER.roll(1, 1)),
        twice(by_hand(UPPER), fused()),
    ],
)
def test_near_miss_open_to_later_positions(attend):
    assert told(attend, TOKENS) == [(True, False)]


def test_labels_that_are_there_for_a_part():
    assert told(fused(UPPER), TOKENS.where(LATE, -100)) == [(True, True)]


def test_near_miss_labels_here_and_there_of_a_model_that_masks_tokens_itself():
    assert told(fused(UPPER), TOKENS.where(ALONE, -100)) == [(False, False)]


def test_near_miss_labels_of_the_next_position():
    labels = functional.pad(TOKENS[:, 1:], (0, 1), value=-100)
    assert told(fused(UPPER), labels) == [(False, False)]


@pytest.mark.parametrize("attend", [fused(is_causal=True), by_hand(UPPER)])
def test_near_miss_an_autoencoder_that_reads_from_left_to_right(attend):
    assert told(attend, TOKENS, Autoencoder) == [(True, False)]
