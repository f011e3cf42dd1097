"""State dicts that are kept without a copy."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import StateAliased
from flatline.sensors.own_state import writes_weights

KEEP = {
    "as it is": lambda state: state,
    "in a checkpoint": lambda state: {"model": state}["model"],
    "shallow copy": copy.copy,
    "detached": lambda state: {name: tensor.detach().cpu() for name, tensor in state.items()},
}
COPY = {
    "deep copy": copy.deepcopy,
    "cloned": lambda state: {name: tensor.clone() for name, tensor in state.items()},
}


def small():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def steps(model, count=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()


def found(keep, after=steps, into=None):
    def act():
        model = small()
        steps(model, 2)
        kept = keep(model.state_dict())
        after(model)
        (into or model).load_state_dict(kept)

    return seen(act, StateAliased)


@pytest.mark.parametrize("keep", KEEP.values(), ids=KEEP)
def test_given_back_after_some_steps(keep):
    (event,) = found(keep)
    assert (event.model, event.tensors, event.taken, event.steps) == ("Sequential", 6, 2, 3)
    assert event.where.function == "act"
    assert event.loaded.line == event.where.line + 2


@pytest.mark.parametrize("keep", COPY.values(), ids=COPY)
def test_near_miss_of_copies(keep):
    assert found(keep) == []


def test_near_miss_nothing_was_learned_since():
    assert found(KEEP["as it is"], after=lambda model: None) == []


def test_near_miss_of_another_model():
    assert found(KEEP["as it is"], into=small()) == []


def test_near_miss_of_a_newer_state():
    def fresh(model):
        steps(model)
        copied.update(model.state_dict())

    copied = {}
    assert found(lambda state: copied, after=fresh) == []


def test_near_miss_of_files_that_write_into_tensors(tmp_path):
    file = tmp_path / "average.py"
    file.write_text("for k in kept:\n    kept[k].mul_(0.9).add_(now[k], alpha=0.1)\n", encoding="utf-8")
    assert writes_weights(str(file))


def test_files_that_only_keep(tmp_path):
    file = tmp_path / "keep.py"
    file.write_text("kept = model.state_dict()\n", encoding="utf-8")
    assert not writes_weights(str(file))
