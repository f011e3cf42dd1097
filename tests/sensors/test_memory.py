"""Watching keeps nothing of the user's alive."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import flatline


def train(steps):
    """A model with every kind of layer that some sensor follows, and its optimizer; weak references to what must go."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(8 * 36, 4)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    batch = torch.randn(4, 3, 8, 8)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), torch.randint(0, 4, (4,)))
        loss.backward()
        optimizer.step()
        scheduler.step()
    things = [model, optimizer, scheduler, batch, loss, *model.modules(), *model.parameters()]
    return [weakref.ref(thing) for thing in things]


def test_models_optimizers_and_batches_are_let_go():
    with flatline.watch() as run:
        references = train(12)
        gc.collect()
        assert [type(thing).__name__ for ref in references if (thing := ref()) is not None] == []
        assert run._session.notes == []


def with_a_hook_that_knows_the_model(steps):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 2))
    model[1].register_forward_hook(lambda layer, args, output: None if model.training else output)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    return model


def test_a_model_that_its_own_layer_knows_is_let_go():
    with flatline.watch():
        model = weakref.ref(with_a_hook_that_knows_the_model(12))
        gc.collect()
        assert model() is None


def test_a_layer_that_is_replaced_is_let_go():
    with flatline.watch():
        model = with_a_hook_that_knows_the_model(12)
        layer = weakref.ref(model[1])
        model[1] = nn.Identity()
        assert layer() is None


def test_a_loss_that_is_scaled_and_not_used_is_let_go():
    with flatline.watch() as run:
        model, scaler = nn.Linear(4, 2), torch.amp.GradScaler("cpu")
        loss = model(torch.randn(8, 4)).square().mean()
        kept, scaled = weakref.ref(loss), scaler.scale(loss)
        del loss, scaled
        assert kept() is None
        (scaler.scale(model(torch.randn(8, 4)).sum()) + scaler.scale(model(torch.randn(8, 4)).sum())).backward()
        assert run._session.sensors.loop.last_loss is None
        assert run._session.notes == []


def fed(steps):
    """From a loader with a collate function of its own; weak references to what serves the data."""
    data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
    loader = DataLoader(data, 8, shuffle=True)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps // len(loader)):
        passing = iter(loader)
        for x, y in passing:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [weakref.ref(thing) for thing in (data, loader, passing, x, y)]


@pytest.mark.parametrize("steps", [8, 40, 120])
def test_loaders_their_iterators_and_data_are_let_go(steps):
    with flatline.watch() as run:
        references = fed(steps)
        gc.collect()
        assert [type(thing).__name__ for ref in references if (thing := ref()) is not None] == []
        assert run._session.notes == []


def test_a_model_that_is_replaced_is_not_judged_any_more():
    """Folds, one after the other under one name; a layer of the first never moved."""
    with flatline.watch() as run:
        for _ in range(3):
            model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
            nn.init.constant_(model[0].bias, -50.0)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
            for _ in range(12):
                optimizer.zero_grad()
                model(torch.randn(8, 4)).pow(2).mean().backward()
                optimizer.step()
    assert "O2" not in [finding.code for finding in run.findings]


def small_optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


def test_an_optimizer_that_is_collected_while_the_others_are_read():
    """The collector runs wherever something is allocated: here somewhere in the midst of 4,000 optimizers."""
    thresholds = gc.get_threshold()
    try:
        with flatline.watch() as run:
            kept = [small_optimizer() for _ in range(4000)]
            gc.collect()
            gc.set_threshold(1_000_000)
            dead = small_optimizer()
            dead.itself = dead
            del dead
            gc.set_threshold(gc.get_count()[0] + 1000)
            kept.append(small_optimizer())
            assert run._session.notes == []
    finally:
        gc.set_threshold(*thresholds)
