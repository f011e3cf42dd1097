"""A head that a load left at random, though the checkpoint has it under another name."""

from __future__ import annotations

import pytest
import torch
from tests.sensors.watching import seen
from torch import nn

from flatline.events import HeadLeftOut

ROWS = 40
WAY = torch.randn(8, 4, generator=torch.Generator().manual_seed(2))


class Old(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        return self.fc(self.body(x))


class New(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.heads = nn.ModuleDict({"main": nn.Sequential(nn.Dropout(0.1), nn.Linear(16, 4))})

    def forward(self, x):
        return self.heads["main"](self.body(x))


class Own(nn.Linear):
    """A layer of the user's, whose forward may do anything."""


class NewOwn(New):
    def __init__(self):
        super().__init__()
        self.heads["main"] = Own(16, 4)


def train(model, steps=6, change=None, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        x = torch.randn(ROWS, 8)
        labels = (x @ WAY).argmax(1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels if change is None else change[labels]).backward()
        optimizer.step()
    return model


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    return train(Old(), steps=300).state_dict()


def loosely(model, state):
    model.load_state_dict(state, strict=False)


def with_another_head(model, state):
    """Several parts fit the head; the trial tells which."""
    aux = {"aux.weight": torch.randn(4, 16), "aux.bias": torch.zeros(4)}
    model.load_state_dict({**aux, **state}, strict=False)


@pytest.mark.parametrize("load", [loosely, with_another_head])
def test_left_out(load, trained):
    def script():
        torch.manual_seed(1)
        model = New()
        load(model, trained)
        train(model)

    (told,) = seen(script, HeadLeftOut)
    assert (told.model, told.head, told.stored, told.tensors) == ("New", "heads.main.1", "fc", 2)
    assert told.samples == 3 * ROWS
    assert told.agrees > 0.7 > 0.5 > told.agrees_now
    assert told.loss < told.loss_now


def test_filtered(trained, tmp_path):
    torch.save(trained, tmp_path / "old.pt")

    def script():
        model = New()
        state = torch.load(tmp_path / "old.pt")
        own = model.state_dict()
        own.update({key: value for key, value in state.items() if key in own})
        model.load_state_dict(own)
        train(model)

    (told,) = seen(script, HeadLeftOut)
    assert (told.head, told.stored) == ("heads.main.1", "fc")


def test_another_order_of_classes(trained):
    def script():
        model = New()
        model.load_state_dict(trained, strict=False)
        train(model, change=torch.tensor([2, 3, 1, 0]))

    (told,) = seen(script, HeadLeftOut)
    assert told.agrees < 0.4


def complete(model, state):
    model.load_state_dict({name.replace("fc", "heads.main.1"): value for name, value in state.items()})


def dropped_on_purpose(model, state):
    model.load_state_dict({name: value for name, value in state.items() if not name.startswith("fc")}, strict=False)


def of_another_shape(model, state):
    model.load_state_dict({**state, "fc.weight": torch.zeros(5, 16), "fc.bias": torch.zeros(5)}, strict=False)


def asserted(model, state):
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert all(name.startswith("heads.") for name in missing)
    assert unexpected


def asked_before_it_raises(model, state):
    result = model.load_state_dict(state, strict=False)
    if set(result.unexpected_keys) != {"fc.weight", "fc.bias"}:
        raise KeyError(result)


@pytest.mark.parametrize("load", [complete, dropped_on_purpose, of_another_shape, asserted, asked_before_it_raises])
def test_nothing_to_try(load, trained):
    def script():
        model = New()
        load(model, trained)
        train(model)

    assert seen(script, HeadLeftOut) == []


def frozen(model):
    model.body.requires_grad_(False)
    return torch.optim.SGD(model.parameters(), lr=0.1)


def not_held(model):
    return torch.optim.SGD(model.heads.parameters(), lr=0.1)


@pytest.mark.parametrize("make", [frozen, not_held])
def test_a_classifier_that_is_learned_anew_on_a_body_that_stays(make, trained):
    def script():
        model = New()
        model.load_state_dict(trained, strict=False)
        optimizer = make(model)
        train(model, optimizer=optimizer)

    assert seen(script, HeadLeftOut) == []


def test_a_hook_on_all_modules_is_not_called_for_a_trial(trained):
    def script():
        model = New()
        model.load_state_dict(trained, strict=False)
        hook = nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(type(module)))
        train(model)
        hook.remove()

    called: list[type] = []
    assert seen(script, HeadLeftOut) == []
    assert called.count(New) == 6
    assert called.count(nn.Dropout) == 6


def test_layers_without_a_shape_yet_are_passed_by(trained):
    def script():
        model = nn.Sequential(nn.Linear(8, 16), nn.LazyLinear(4))
        model.load_state_dict({"0.weight": torch.zeros(16, 8), "fc.weight": torch.zeros(4, 16)}, strict=False)
        model(torch.zeros(2, 8))
        train(model)

    assert seen(script, HeadLeftOut) == []


def test_no_layer_of_the_users_is_called(trained):
    def script():
        model = NewOwn()
        model.load_state_dict(trained, strict=False)
        train(model)

    assert seen(script, HeadLeftOut) == []


def test_the_weights_are_those_without_a_trial(trained):
    def script():
        torch.manual_seed(4)
        model = New()
        model.load_state_dict(trained, strict=False)
        ends.append(train(model).state_dict())

    ends: list[dict[str, torch.Tensor]] = []
    script()
    assert len(seen(script, HeadLeftOut)) == 1
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
