"""Copies that can be run without the originals being touched."""

from __future__ import annotations

import functools
import random
import threading
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from flatline.sensors.replay.copying import Copier, Made, NotCopied, leaves


def copier(limit=1 << 20) -> Copier:
    return Copier(limit)


class Held:
    def __init__(self) -> None:
        self.rows, self.random, self.lock = [1], random.Random(3), threading.Lock()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.layers[1].weight = self.layers[0].weight  # tied
        self.register_buffer("seen", torch.zeros(1))
        self.held, self.plain, self.own = Held(), torch.ones(2), torch.Generator().manual_seed(1)
        self.act = self.twice
        self.last = self.layers[1]

    def twice(self, x):
        self.seen += 1
        self.held.rows.append(self.held.random.random())
        return x * 2 * self.plain.sum() + torch.rand((), generator=self.own)

    def forward(self, x):
        for layer in self.layers:
            x = self.act(layer(x))
        self.plain = x.detach()
        return x


def test_runs_alike_and_leaves_the_original_alone():
    model = Model()
    twin, x = copier().copy(model), torch.randn(2, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = twin(x)
    made.sum().backward()
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert (model.held.rows, model.plain.tolist()) == ([1], [1.0, 1.0])
    assert model(x).equal(made)


def test_ties_and_aliases_stay():
    twin = copier().copy(Model())
    assert twin.layers[0].weight is twin.layers[1].weight
    assert twin.last is twin.layers[1]
    assert twin.act.__self__ is twin


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.spectral_norm])
def test_hooks_of_torch_stay_and_others_do_not(norm):
    told = []
    model = norm(nn.Linear(3, 3))
    model.register_forward_hook(lambda *_: told.append(1))
    x = torch.randn(2, 3)
    twin = copier().copy(model.eval())
    assert twin(x).equal(twin(x))
    assert told == []
    assert model(x).equal(twin(x))


@pytest.mark.parametrize(
    "model", [nn.LSTM(3, 4, 2, batch_first=True), nn.TransformerEncoderLayer(4, 2), nn.BatchNorm1d(3)]
)
def test_layers_of_torch(model):
    x = torch.randn(5, 2, 3) if isinstance(model, nn.LSTM) else torch.randn(5, 2, 4)
    x = torch.randn(5, 3) if isinstance(model, nn.BatchNorm1d) else x
    twin = copier().copy(model.eval())
    assert leaves(twin(x))[0].equal(leaves(model(x))[0])


def test_containers():
    class Output(OrderedDict):
        pass

    @dataclass
    class Batch:
        x: torch.Tensor

    x = torch.ones(2)
    given = [(x, {"x": x}), deque([x]), Output(loss=x), defaultdict(list, a=[x]), Batch(x), functools.partial(max, 1)]
    twin = copier().copy(given)
    assert [type(each) for each in twin] == [type(each) for each in given]
    assert len(leaves(twin)) == len(leaves(given)) >= 5
    assert {id(leaf) for leaf in leaves(twin[0])} == {id(twin[0][0])} != {id(x)}
    assert twin[3]["b"] == []


def test_what_the_step_made_is_what_it_makes_again():
    original, again = torch.ones(2), torch.zeros(2)
    mine = copier()
    assert mine.copy(Made(1, lambda: None, original)).equal(original)
    mine.made[2] = again
    assert mine.copy((Made(2, lambda: original),))[0] is again
    with pytest.raises(NotCopied, match="is gone"):
        mine.copy(Made(3, lambda: None))


@pytest.mark.parametrize(
    ("thing", "why"),
    [
        (torch.empty(2, device="meta"), "a tensor is a Tensor|no values"),
        (nn.LazyLinear(3), "no values"),
        (nn.Linear(999, 999), "more than 1 MB"),
        (torch.jit.script(nn.Linear(2, 2)), "scripted"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_copied(thing, why):
    with pytest.raises(NotCopied, match=why):
        copier().copy(thing)
