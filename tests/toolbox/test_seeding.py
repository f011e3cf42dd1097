"""One seed."""

from __future__ import annotations

import os
import random

import numpy
import pytest
import torch

from flatline.toolbox import seed_everything, worker_init_fn


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    strict = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(strict[0])
    torch.backends.cudnn.benchmark = strict[1]


def draws():
    return random.random(), numpy.random.rand(), float(torch.rand(()))


def test_everything_is_seeded_like_each_library_alone():
    generator = seed_everything(7)
    random_, numpy_ = random.Random(7).random(), numpy.random.RandomState(7).rand()
    assert draws()[:2] == (random_, numpy_)
    seed_everything(7)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(7)))
    assert torch.equal(torch.rand(3, generator=generator), torch.rand(3, generator=torch.Generator().manual_seed(7)))


def test_other_seeds_give_other_numbers():
    found = [(seed_everything(seed), draws())[1] for seed in (0, 1, 2**32 - 1)]
    assert len(set(found)) == 3


def test_strict_refuses_what_is_not_deterministic():
    seed_everything(3, strict=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.benchmark
    assert os.environ["PYTHONHASHSEED"] == "3"


def test_near_miss_not_strict_leaves_algorithms_alone():
    seed_everything(3)
    assert not torch.are_deterministic_algorithms_enabled()
    assert os.environ["PYTHONHASHSEED"] == "0"


class Draws(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor([random.random(), numpy.random.rand(), float(torch.rand(()))])


def test_workers_draw_different_numbers_and_the_same_again():
    epochs = []
    for _ in range(2):
        generator = seed_everything(5)
        loader = torch.utils.data.DataLoader(
            Draws(), batch_size=2, num_workers=2, generator=generator, worker_init_fn=worker_init_fn
        )
        epochs += [torch.cat(list(loader)), torch.cat(list(loader))]
    assert torch.equal(epochs[0], epochs[2])
    assert torch.equal(epochs[1], epochs[3])
    assert len(set(torch.cat(epochs[:2]).flatten().tolist())) == 24


@pytest.mark.parametrize("seed", [-1, 2**32, True])
def test_bad_seeds(seed):
    with pytest.raises(ValueError, match=r"seed % 2\*\*32"):
        seed_everything(seed)
