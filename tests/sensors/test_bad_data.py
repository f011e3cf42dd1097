"""Data that are not finite, found in the frames of a script."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from flatline.sensors.bad_data import bad_data


def rows(bad=True, kind=torch):
    x = torch.randn(200, 10, generator=torch.Generator().manual_seed(0))
    if bad:
        x[120, 4] = float("inf")
        x[150] = float("nan")
    return x if kind is torch else x.numpy()


def in_frame(data):
    return bad_data(sys._getframe())


TOLD = "data holds 11 numbers that are not finite, among 2,000, first in row 120"


@pytest.mark.parametrize(
    "make",
    [
        rows,
        lambda: rows(kind=np),
        lambda: TensorDataset(rows(), torch.zeros(200)),
        lambda: DataLoader(Subset(TensorDataset(torch.zeros(200), rows()), range(50)), 8),
    ],
    ids=["tensor", "array", "data set", "loader of a part"],
)
def test_found(make, users):
    assert in_frame(make()) == TOLD


@pytest.mark.parametrize(
    "make",
    [
        lambda: rows(bad=False),
        lambda: rows()[100:160],
        lambda: torch.full((200, 3), float("nan")),
        lambda: rows().requires_grad_(),
        lambda: rows().requires_grad_() * 2,
        lambda: torch.arange(200),
        lambda: torch.tensor(float("nan")),
        lambda: [rows()],
        lambda: None,
    ],
    ids=["finite", "a batch", "made by a broken model", "weights", "results", "whole", "a number", "a list", "nothing"],
)
def test_near_miss(make, users):
    assert in_frame(make()) == ""


def test_no_frame():
    assert bad_data(None) == ""


@pytest.fixture
def users(monkeypatch):
    """The frames of this file count as the user's; those of the test runner do not."""
    monkeypatch.setattr("flatline.sensors.bad_data.is_users", lambda file: file == __file__)
