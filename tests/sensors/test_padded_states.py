"""Recurrent layers that read padding to its end, and what the model takes of them."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from watching import seen

from flatline.events import PaddedStateTaken

LENGTHS = torch.arange(16) % 6 + 2


def last(net, ids, vectors):
    return net.rnn(vectors)[0][:, -1]


def state(net, ids, vectors):
    return net.rnn(vectors)[1][-1]


def at_the_end(net, ids, vectors):
    return net.rnn(vectors)[0][torch.arange(16), LENGTHS - 1]


def mean(net, ids, vectors):
    return net.rnn(vectors)[0].mean(1)


def packed(net, ids, vectors):
    return net.rnn(pack_padded_sequence(vectors, LENGTHS, batch_first=True, enforce_sorted=False))[1][-1]


class Net(nn.Module):
    def __init__(self, take, *, dropout=0.0):
        super().__init__()
        self.take, self.words, self.drop = take, nn.Embedding(20, 6), nn.Dropout(dropout)
        self.rnn, self.head = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, ids):
        return self.head(self.take(self, ids, self.drop(self.words(ids))))


def padded(*, steps=60, left=False):
    ids = torch.randint(1, 20, (16, steps))
    ids[torch.arange(steps)[None] >= LENGTHS[:, None]] = 0
    return ids.flip(1) if left else ids


def learned(net, *, ids=padded, steps=40):
    def act():
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
        for _ in range(steps):
            optimizer.zero_grad()
            net(ids()).square().mean().backward()
            optimizer.step()

    return act


@pytest.mark.parametrize("take", [last, state])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_state_behind_the_padding(take, dropout):
    (event,) = seen(learned(Net(take, dropout=dropout)), PaddedStateTaken)
    assert (event.layer, event.kind, event.length, event.rows, event.of) == ("rnn", "GRU", 60, 16, 16)
    assert min(event.left, event.reached) < 0.001


def test_vectors_with_time_first():
    class Series(Net):
        def forward(self, ids):
            return self.head(self.rnn(self.words(ids).detach().mul(ids[..., None] > 0).transpose(0, 1))[0][-1])

    net = Series(last)
    net.rnn = nn.GRU(6, 8)
    assert len(seen(learned(net), PaddedStateTaken)) == 1


@pytest.mark.parametrize("take", [at_the_end, mean, packed])
def test_near_miss_other_states_are_taken(take):
    assert seen(learned(Net(take)), PaddedStateTaken) == []


def test_near_miss_the_way_back_ends_at_the_begin():
    net = Net(lambda net, ids, vectors: net.rnn(vectors)[1].sum(0))
    net.rnn = nn.GRU(6, 8, batch_first=True, bidirectional=True)
    assert seen(learned(net), PaddedStateTaken) == []


def test_near_miss_padding_on_the_left():
    assert seen(learned(Net(last), ids=lambda: padded(left=True)), PaddedStateTaken) == []


def test_near_miss_little_padding():
    assert seen(learned(Net(last), ids=lambda: padded(steps=9)), PaddedStateTaken) == []


def test_near_miss_a_token_that_stands_elsewhere_too():
    ids = torch.randint(0, 3, (16, 60))
    assert seen(learned(Net(last), ids=lambda: ids), PaddedStateTaken) == []


def test_near_miss_a_run_that_has_only_begun():
    assert seen(learned(Net(last), steps=8), PaddedStateTaken) == []
