"""When is a worker_init_fn one that gives every worker the same seed?"""

from __future__ import annotations

import random

import pytest
import torch

from flatline.sensors.workers import seeded_alike

SEED = 3


class Drawn:
    def __getitem__(self, index):
        return index + random.random()


class Helped:
    def __getitem__(self, index):
        return jitter(index)


class Still:
    def __getitem__(self, index):
        return index


class ByIndex:
    def __getitem__(self, index):
        random.seed(index)
        return random.random()


def jitter(value):
    return value + random.gauss(0, 1)


def constant(worker_id):
    random.seed(1234)


def by_global(worker_id):
    random.seed(SEED + 1)


def by_number(worker_id):
    random.seed(1234 + worker_id)


def by_torch(worker_id):
    random.seed(torch.initial_seed())


def by_local(worker_id):
    seed = worker_id
    random.seed(seed)


def fresh(worker_id):
    random.seed()


def other(worker_id):
    torch.manual_seed(0)


@pytest.mark.parametrize("init", [constant, by_global])
@pytest.mark.parametrize("dataset", [Drawn(), Helped()])
def test_one_seed_for_all(init, dataset):
    text, generator, place = seeded_alike(init, dataset)
    assert text.startswith("random.seed(")
    assert generator == "random"
    assert place.function == init.__name__


def test_torch():
    class Noisy:
        def __getitem__(self, index):
            return torch.randn(3)

    assert seeded_alike(other, Noisy())[1] == "torch"


@pytest.mark.parametrize("init", [by_number, by_torch, by_local, fresh, other, print, None])
def test_not_one_seed(init):
    assert seeded_alike(init, Drawn()) is None


@pytest.mark.parametrize("dataset", [Still(), ByIndex()])
def test_nothing_drawn_from_it(dataset):
    assert seeded_alike(constant, dataset) is None
