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


def test_a_state_that_every_fold_begins_with():
    def act():
        model = small()
        kept = model.state_dict()
        for _ in range(3):
            model.load_state_dict(kept)
            steps(model)

    assert [event.steps for event in seen(act, StateAliased)] == [3, 6]


def written(change, count=4):
    """A state dict by which a model is written to, and which is then put in as a matter of form."""

    def act():
        model = small()
        state = model.state_dict()
        for _ in range(count):
            change(state)
            model.load_state_dict(state)
            steps(model)

    return seen(act, StateAliased)


def by_slices(state):
    state["0.weight"][...] = 0.1
    state["2.weight"][:] = 0.2
    state["0.bias"][0] = 1.0
    state["2.bias"][0] = 1.0


def by_lists(state):
    torch._foreach_mul_([t for t in state.values() if t.is_floating_point()], 0.9)


def a_statistic(state):
    state["1.running_mean"] = torch.randn(8)


@pytest.mark.parametrize("change", [by_slices, by_lists, a_statistic])
def test_near_miss_of_a_live_handle(change):
    assert written(change) == []


def test_near_miss_of_frozen_weights_and_of_assigned_ones():
    def frozen():
        model = small()
        for p in model[:2].parameters():
            p.requires_grad_(False)
        kept = model[:2].state_dict()
        steps(model)
        model[:2].load_state_dict(kept)

    def assigned():
        model = small()
        given = {name: t.clone() for name, t in model.state_dict().items()}
        for _ in range(3):
            model.load_state_dict(given, assign=True)
            steps(model)
            given = {name: t.clone() for name, t in model.state_dict().items()}

    assert seen(frozen, StateAliased) == seen(assigned, StateAliased) == []


def test_near_miss_of_a_twin_with_the_same_tensors():
    def act():
        model, twin = small(), small()
        twin[0], twin[1], twin[2] = model
        shared = model.state_dict()
        for _ in range(3):
            twin.load_state_dict(shared)
            steps(model)

    assert seen(act, StateAliased) == []
