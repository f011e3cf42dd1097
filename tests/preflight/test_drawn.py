"""Which sizes are numbers of samples: only what the script drew in no order."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from flatline.preflight.drawn import Drawn, random

ROWS = torch.randn(200, 4)


@pytest.fixture
def drawn(monkeypatch):
    from torch.nn.utils import rnn
    from torch.utils.data import dataloader

    for place, name in (
        (dataloader._BaseDataLoaderIter, "_next_index"),
        (torch.Tensor, "index_select"),
        (torch, "stack"),
        (torch, "gather"),
        (torch.Tensor, "gather"),
        (rnn, "pad_sequence"),
    ):
        monkeypatch.setattr(place, name, getattr(place, name))
    monkeypatch.setattr(torch.Tensor, "__getitem__", torch.Tensor.__getitem__)
    torch.manual_seed(0)
    made = Drawn(lambda: True)
    made.attach()
    return made


def test_shuffled_batches(drawn):
    next(iter(DataLoader(TensorDataset(ROWS), 40, shuffle=True)))
    assert drawn.sizes == {40}


def test_near_miss_batches_in_order(drawn):
    next(iter(DataLoader(TensorDataset(ROWS), 40)))
    assert drawn.sizes == set()


@pytest.mark.parametrize(
    "take", [lambda at: ROWS[at], lambda at: ROWS.index_select(0, at), lambda at: ROWS[at.numpy()]]
)
def test_random_rows(drawn, take):
    take(torch.randint(0, 200, (24,)))
    assert drawn.sizes == {24}


def test_windows_begun_anywhere(drawn):
    torch.stack([ROWS[at : at + 8] for at in torch.randint(0, 190, (16,)).tolist()])
    assert drawn.sizes == {16}


@pytest.mark.parametrize(
    "take",
    [
        lambda: ROWS[torch.arange(24)],
        lambda: ROWS[torch.arange(24).flip(0)],
        lambda: ROWS[(torch.arange(24) + 3) % 24],
        lambda: ROWS[:, torch.tensor([2, 0, 3, 1, 2, 0, 1])],
        lambda: ROWS[torch.rand(200) > 0.5],
        lambda: torch.stack([ROWS[at : at + 8] for at in range(16)]),
        lambda: torch.stack([torch.randn(4) for _ in range(16)]),
        lambda: ROWS[3],
    ],
    ids=["forwards", "backwards", "ring", "columns", "mask", "windows in order", "steps of a rollout", "one"],
)
def test_near_miss_an_order_of_their_own(drawn, take):
    take()
    assert drawn.sizes == set()


def test_what_was_padded(drawn):
    torch.nn.utils.rnn.pad_sequence([torch.ones(3), torch.ones(5)], batch_first=True)
    assert drawn.padded == {(2, 5)}


@pytest.mark.parametrize(
    "pick",
    [
        lambda x, d, at: torch.gather(x, d, at),  # noqa: PLW0108 - looked up when it is patched
        lambda x, d, at: x.gather(d, at),
        lambda x, d, at: torch.gather(x, dim=d, index=at),
    ],
)
def test_scores_picked_by_labels(drawn, pick):
    labels = torch.randint(0, 4, (200,))
    pick(ROWS, 1, labels[:, None])
    (found,) = drawn.gathered
    assert torch.equal(found, labels)


def test_up_and_down():
    assert random([5, 2, 8, 1, 9, 3])
    assert not random([5, 2, 8])
    assert not random([1, 2, 3, 4, 5, 0])
