"""Orders under which labels belong to their inputs again."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from flatline.sensors.repaired import repaired

ROWS = 600
LABELS = np.random.default_rng(0).integers(0, 4, ROWS)
INPUTS = np.eye(4)[LABELS].repeat(2, 1) + np.random.default_rng(1).normal(0, 0.5, (ROWS, 8))
TARGETS = INPUTS @ np.arange(8) + np.random.default_rng(2).normal(0, 1, ROWS)


class At:
    """Orders that no function has for a variable."""

    one, other = (np.random.default_rng(seed).permutation(ROWS) for seed in (3, 4))


class Stored(Dataset):
    """Lists of a class of the user's."""

    def __init__(self, inputs, labels):
        self.inputs, self.labels, self.root = list(inputs), labels.tolist(), "data"

    def __len__(self):
        return len(self.labels)


def tensors(inputs, labels):
    return TensorDataset(torch.as_tensor(inputs).float(), torch.as_tensor(labels))


def found(dataset, **variables):
    """As a script sees it that has these variables."""
    frame = None

    def running(**held):
        nonlocal frame
        frame = sys._getframe()
        named = held.get("order"), held.get("names"), held.get("first"), held.get("second"), held.get("rows")
        order, names, first, second, rows = named  # noqa: RUF059
        return repaired(dataset, frame)

    return running(**variables)


@pytest.mark.parametrize("make", [tensors, Stored])
def test_one_side_in_another_order(make):
    told = found(make(INPUTS[At.one], LABELS), order=At.one)
    assert told.order == "`order`"
    assert told.right > 0.6
    assert found(make(INPUTS, LABELS[At.one]), order=torch.as_tensor(At.one)).order == "`order`"
    assert found(make(INPUTS[At.one], LABELS), order=At.other) is None
    assert found(make(INPUTS[At.one], LABELS[At.one]), order=At.one) is None


def test_targets_that_are_measured():
    assert found(tensors(INPUTS[At.one], TARGETS), order=At.one.tolist()).right > 0.5
    assert found(tensors(INPUTS, TARGETS), order=At.one) is None


def test_the_first_part_of_what_was_moved():
    inputs, labels = torch.as_tensor(INPUTS[At.one]).float(), torch.as_tensor(LABELS)
    assert found(TensorDataset(inputs[:480], labels[:480]), order=At.one).rows < 480
    assert found(Subset(Stored(INPUTS[At.one], LABELS), range(300)), order=At.one) is not None


def test_each_side_in_an_order_of_its_own():
    told = found(tensors(INPUTS[At.one], LABELS[At.other]), first=At.one, second=At.other)
    assert told.order == "`first` and `second`"


def test_files_in_the_order_of_text():
    as_text = sorted(range(ROWS), key=lambda at: f"patch_{at}.npy")
    assert found(tensors(INPUTS[as_text], LABELS)).order == "text, 10 before 2"
    names = [f"{at:x}-{At.one[at]}" for at in range(ROWS)]
    by_name = sorted(range(ROWS), key=names.__getitem__)
    assert found(tensors(INPUTS[by_name], LABELS), names=names).order == "`names`"


def test_what_other_values_sort():
    times = np.random.default_rng(5).random(ROWS)
    assert found(tensors(INPUTS[np.argsort(times)], LABELS), first=times).order == "`first`"
    rows = [{"t": float(each), "name": "x"} for each in times]
    assert found(tensors(INPUTS[np.argsort(times)], LABELS), rows=rows).order == "`rows['t']`"


def test_names_in_two_lists():
    names = [f"u{at}" for at in At.one]
    later = [names[at] for at in At.other]
    assert found(tensors(INPUTS, LABELS[At.other]), first=names, second=later).order == "`first` and `second`"


def test_near_miss_nothing_belongs_together():
    noise = np.random.default_rng(6).normal(0, 1, (ROWS, 8))
    scores = LABELS + np.random.default_rng(7).normal(0, 0.1, ROWS)
    ranks = np.argsort(np.argsort(noise[:, 0]))
    assert found(tensors(noise, LABELS), order=At.one, first=scores, second=ranks) is None
    assert found(tensors(noise, LABELS), first=np.argsort(np.argsort(scores)), second=ranks) is None
    signs, part = (scores > np.median(scores)).astype(int), slice(0, 300)
    assert found(tensors(noise[part], signs[part]), first=np.argsort(np.argsort(scores)), second=ranks) is None
    assert found(tensors(noise, scores), first=np.argsort(np.argsort(scores)), second=ranks) is None


def test_near_miss_rows_in_an_order_of_their_own():
    """Whatever goes up or down seems to belong together."""
    steps = np.arange(ROWS) / ROWS
    drifting = np.random.default_rng(8).normal(0, 0.3, (ROWS, 8)) + steps[:, None]
    assert found(tensors(drifting[At.one], (steps > 0.5).astype(int)), order=At.one) is None


@pytest.mark.parametrize(
    "dataset", [None, [1, 2], TensorDataset(torch.randn(900, 3)), tensors(INPUTS[:40], LABELS[:40])]
)
def test_near_miss_nothing_to_pair(dataset):
    assert found(dataset, order=At.one) is None
