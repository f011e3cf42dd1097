"""When is a worker_init_fn one that gives every worker the same seed?"""

from __future__ import annotations

import functools
import random
from types import SimpleNamespace

import pytest
import torch

from flatline.sensors.workers import leaves_alone, seeded_alike

SEED = 3
args = SimpleNamespace(seed=7)
settings = {"train": {"seed": 5}}


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


def by_option(worker_id):
    random.seed(args.seed)


def by_setting(worker_id):
    base = settings["train"]["seed"] + 1
    random.seed(base)


def seed_all(seed, offset=0):
    random.seed(seed + offset)


def by_helper(worker_id):
    seed_all(args.seed)


def by_helper_apart(worker_id):
    seed_all(args.seed, offset=worker_id)


def by_default(worker_id, seed=0):
    random.seed(seed)


def once_more_apart(worker_id):
    random.seed(SEED)
    random.seed(SEED + worker_id)


def default_apart(worker_id, seed=0):
    seed = seed + worker_id
    random.seed(seed)


def option_apart(worker_id):
    args.seed += worker_id
    random.seed(args.seed)


def setting_apart(worker_id):
    settings["train"]["seed"] = worker_id
    random.seed(settings["train"]["seed"])


class Pipeline:
    seed = 4

    def start(self, worker_id):
        random.seed(self.seed)

    def start_apart(self, worker_id):
        random.seed(self.seed + worker_id)


class Starter:
    def __init__(self, seed):
        self.seed = seed

    def __call__(self, worker_id):
        random.seed(self.seed)


def made_with(seed):
    def init(worker_id):
        random.seed(seed)

    return init


def made_apart(seed):
    return lambda worker_id: random.seed(seed + worker_id)


@pytest.mark.parametrize(
    "init",
    [
        by_option,
        by_setting,
        by_helper,
        by_default,
        functools.partial(by_default, seed=9),
        Pipeline().start,
        Starter(3),
        made_with(6),
    ],
)
def test_a_seed_that_is_held_elsewhere(init):
    assert seeded_alike(init, Drawn())[1] == "random"


@pytest.mark.parametrize(
    "init",
    [
        by_helper_apart,
        default_apart,
        option_apart,
        setting_apart,
        once_more_apart,
        Pipeline().start_apart,
        made_apart(6),
        functools.partial(by_number),
        Drawn(),
    ],
)
def test_a_seed_that_knows_the_worker(init):
    assert seeded_alike(init, Drawn()) is None


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


# --------------------------------------------------------------------------- what a worker_init_fn may reach


class Owner:
    rng = random.Random(0)

    def start(self, worker_id):
        self.rng.seed(worker_id)


owner, shared = Owner(), random.Random(0)


def asks_for_the_seed(worker_id):
    info = torch.utils.data.get_worker_info()
    random.seed(info.seed % 2**32)


def reseeds(worker_id):
    torch.utils.data.get_worker_info().dataset.rng = random.Random(worker_id)


def reseeds_by_name(worker_id):
    info = torch.utils.data.get_worker_info()
    getattr(info, "dataset").start(worker_id)  # noqa: B009


def of_an_owner(worker_id):
    owner.start(worker_id)


def of_a_global(worker_id):
    shared.seed(worker_id)


def by_helper_that_reseeds(worker_id):
    reseeds(worker_id)


def made_for(data):
    return lambda worker_id: data.start(worker_id + 1)


@pytest.mark.parametrize(
    "init",
    [
        None,
        by_torch,
        by_number,
        by_helper_apart,
        asks_for_the_seed,
        made_apart(3),
        functools.partial(by_default, seed=3),
        lambda worker_id: torch.manual_seed(worker_id + 1),
    ],
)
def test_leaves_the_data_alone(init):
    assert leaves_alone(init, "rng")


@pytest.mark.parametrize(
    "init",
    [
        reseeds,
        reseeds_by_name,
        of_an_owner,
        of_a_global,
        by_helper_that_reseeds,
        made_for(owner),
        owner.start,
        Starter(3),
        functools.partial(by_default, seed=owner),
        functools.partial(print),
    ],
)
def test_may_reach_the_data(init):
    assert not leaves_alone(init, "rng")
