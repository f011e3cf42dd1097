"""Models that shift their tokens, or what is made of them, by one place."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from watching import seen

from flatline.events import LossComputed

TOKENS = (torch.arange(6)[:, None] * 3 + torch.arange(8) * 5) % 11


class Net(nn.Module):
    def __init__(self, tokens=lambda ids: ids, vectors=lambda hidden: hidden):
        super().__init__()
        self.tokens, self.vectors = tokens, vectors
        self.words, self.places = nn.Embedding(12, 8), nn.Parameter(torch.randn(8, 8))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 12)

    def forward(self, ids):
        return self.head(self.norm(self.vectors(self.words(self.tokens(ids))) + self.places))


class TimeFirst(Net):
    def forward(self, ids):
        hidden = self.words(ids)
        hidden = torch.cat([torch.zeros_like(hidden[:1]), hidden[:-1]])
        return self.head(self.norm(hidden + self.places[: len(ids), None]))


class Delayed(nn.Module):
    """Dropout, and then a shift."""

    def __init__(self, share):
        super().__init__()
        self.drop = nn.Dropout(share)

    def forward(self, hidden):
        return functional.pad(self.drop(hidden)[:, :-1], (0, 0, 1, 0))


def begin(ids):
    return torch.cat([torch.full_like(ids[:, :1], 11), ids[:, :-1]], 1)


SHIFTED = {
    "tokens are padded": (Net(lambda ids: functional.pad(ids[:, :-1], (1, 0), value=11)), TOKENS),
    "a token goes ahead": (Net(begin), TOKENS),
    "vectors are padded": (Net(vectors=lambda hidden: functional.pad(hidden[:, :-1], (0, 0, 1, 0))), TOKENS),
    "scaled vectors": (Net(vectors=lambda hidden: 3 * functional.pad(hidden[:, :-1], (0, 0, 1, 0))), TOKENS),
    "one token in each row": (Net(begin), torch.arange(6)[:, None].expand(6, 8).contiguous()),
    "after a dropout": (Net(vectors=Delayed(0.3)), TOKENS),
    "time goes first": (TimeFirst(), TOKENS.t().contiguous()),
}
PLAIN = {
    "nothing is shifted": (Net(), TOKENS),
    "a dropout": (Net(vectors=nn.Dropout(0.3)), TOKENS),
    "the other way": (Net(lambda ids: functional.pad(ids[:, 1:], (0, 1), value=11)), TOKENS),
    "some tokens are masked": (Net(lambda ids: torch.where(ids == 3, 11, ids)), TOKENS),
}


def told(model, tokens):
    def run():
        for _ in range(2):
            functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()

    return [(event.target.equals_input, event.target.in_place) for event in seen(run, LossComputed)]


@pytest.mark.parametrize("name", SHIFTED)
def test_labels_of_a_model_that_shifts_inside_are_of_the_next_position(name):
    assert [equal for equal, _ in told(*SHIFTED[name])] == [False, False]


@pytest.mark.parametrize("name", PLAIN)
def test_labels_of_other_models_are_their_own(name):
    assert told(*PLAIN[name]) == [(True, True)] * 2


class Queried(Net):
    """Positions ask, and the tokens before them answer: no layer is given the tokens themselves."""

    def forward(self, ids):
        hidden = self.words(torch.cat([torch.zeros_like(ids[:, :1]), ids], 1))
        weights = (self.places @ hidden[:, :-1].transpose(1, 2)).tril().softmax(-1)
        return self.head(weights @ hidden[:, :-1])


def test_where_it_does_not_show():
    assert told(Queried(), TOKENS) == [(True, False)] * 2
