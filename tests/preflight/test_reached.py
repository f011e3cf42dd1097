"""Which weights a gradient comes to."""

import pytest
import torch
from torch import nn

from flatline.preflight.reached import Weights


@pytest.fixture
def trained(monkeypatch):
    for name in ("backward", "grad"):
        monkeypatch.setattr(torch.autograd, name, getattr(torch.autograd, name))
    weights, model = Weights(), nn.ModuleDict({"front": nn.Linear(3, 3), "back": nn.Linear(3, 1)})
    weights.attach()
    weights.follow(model)
    return weights, model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(weights, model, optimizer, hidden):
    optimizer.zero_grad()
    model["back"](hidden).sum().backward()
    optimizer.step()
    return weights.stepped(optimizer)


def test_what_is_cut_off(trained):
    weights, model, optimizer = trained
    assert all(
        step(weights, model, optimizer, model["front"](torch.ones(4, 3)).round().int().float()) for _ in range(3)
    )
    assert weights.severed() == {id(weight): 3 for weight in model["front"].parameters()}


def test_near_miss_what_learns(trained):
    weights, model, optimizer = trained
    step(weights, model, optimizer, model["front"](torch.ones(4, 3)))
    assert weights.severed() == {}


def test_near_miss_what_is_moved_by_hand(trained):
    weights, model, optimizer = trained
    step(weights, model, optimizer, torch.ones(4, 3))
    for weight in model["front"].parameters():
        weight.data.mul_(0.9)
    assert weights.severed() == {}


def test_near_miss_gradients_that_are_taken_away_again(trained):
    weights, model, optimizer = trained
    model["back"](model["front"](torch.ones(4, 3))).sum().backward()
    optimizer.zero_grad()
    weights.stepped(optimizer)
    assert weights.severed() == {}


def test_gradients_by_hand_need_no_backward(trained):
    weights, model, optimizer = trained
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    assert weights.stepped(optimizer) is False
    assert weights.severed() == {}


def test_what_waits_for_its_rate(trained):
    weights, model, optimizer = trained
    weights.stepped(optimizer)
    assert weights.waiting() == set()
    optimizer.param_groups[0]["lr"] = 0.0
    assert weights.waiting() == {id(weight) for weight in model.parameters()}
