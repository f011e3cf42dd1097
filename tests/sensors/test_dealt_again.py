"""Batches that are made by hand and come back: is their order drawn from one seed in every pass?"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from watching import seen

from flatline.events import OrderDealtAgain

X, Y = torch.randn(48, 5, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 3
SEED = 3


def by_generator(epoch):
    rng = np.random.default_rng(SEED)
    for rows in np.array_split(rng.permutation(48), 6):
        yield X[rows] + torch.tensor(rng.normal(size=(8, 5)), dtype=torch.float32), Y[rows]


def by_torch(epoch):
    torch.manual_seed(SEED)
    return [(X[rows], Y[rows]) for rows in torch.randperm(48).split(8)]


def with_the_epochs_own_seed(epoch):
    rng = np.random.default_rng(SEED + epoch)
    return [(X[rows], Y[rows]) for rows in np.array_split(rng.permutation(48), 6)]


def shards_by(epoch):
    """The same four in each epoch, in an order of its own."""
    torch.manual_seed(40 + epoch)
    return [(X[12 * at : 12 * at + 12], Y[12 * at : 12 * at + 12]) for at in torch.randperm(4).tolist()]


def in_one_order(epoch):
    return [(X[at : at + 8], Y[at : at + 8]) for at in range(0, 48, 8)]


def two_batches(epoch):
    torch.manual_seed(SEED)
    return [(X[rows], Y[rows]) for rows in torch.randperm(48).split(24)]


def training():
    model = nn.Linear(5, 3)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def train_by_generator():
    step = training()
    for epoch in range(8):
        for x, y in by_generator(epoch):
            step(x, y)


def train_by_torch():
    step = training()
    for epoch in range(8):
        for x, y in by_torch(epoch):
            step(x, y)


def train_with_the_epochs_own_seed():
    step = training()
    for epoch in range(8):
        for x, y in with_the_epochs_own_seed(epoch):
            step(x, y)


def train_in_one_order():
    step = training()
    for epoch in range(8):
        for x, y in in_one_order(epoch):
            step(x, y)


def train_on_shards():
    step = training()
    for epoch in range(12):
        for x, y in shards_by(epoch):
            step(x, y)


def train_on_two_batches():
    step = training()
    for epoch in range(8):
        for x, y in two_batches(epoch):
            step(x, y)


def train_in_line():
    step = training()
    for _ in range(8):
        torch.manual_seed(SEED)
        order = torch.randperm(48)
        for at in range(0, 48, 8):
            step(X[order[at : at + 8]], Y[order[at : at + 8]])


def one_order_for_each_model():
    for _ in range(3):
        torch.manual_seed(SEED)
        order, model = torch.randperm(48), nn.Linear(5, 3)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(6):
            for rows in order.split(8):
                optimizer.zero_grad()
                cross_entropy(model(X[rows]), Y[rows]).backward()
                optimizer.step()


@pytest.mark.parametrize(
    ("act", "seeding"),
    [
        (train_by_generator, "np.random.default_rng(SEED)"),
        (train_by_torch, "torch.manual_seed(SEED)"),
        (train_in_line, "torch.manual_seed(SEED)"),
    ],
)
def test_one_seed_for_every_pass(act, seeding):
    (told,) = seen(act, OrderDealtAgain)
    assert told.seeding == seeding
    assert told.period % 6 == 0
    assert told.where.file == __file__


@pytest.mark.parametrize(
    "act",
    [
        train_with_the_epochs_own_seed,
        train_in_one_order,
        train_on_two_batches,
        train_on_shards,
        one_order_for_each_model,
    ],
)
def test_near_misses(act):
    assert seen(act, OrderDealtAgain) == []
