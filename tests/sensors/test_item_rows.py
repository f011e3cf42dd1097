"""The rows of two arrays that an item is made of."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from flatline.sensors.item_rows import rows_apart

ROWS = 1000
HOP = 10


class Windows(Dataset):
    def __init__(self, *, win=40, hop=HOP, rows=ROWS, items=None):
        self.x, self.y = torch.randn(rows, 3), torch.randint(0, 4, (rows,))
        self.win, self.hop = win, hop
        self.items = (rows - win) // hop + 1 if items is None else items
        self.starts = list(range(0, rows - win, hop))
        self.cfg = SimpleNamespace(stride=hop)

    def __len__(self):
        return self.items


class ByItem(Windows):
    def __getitem__(self, i):
        start = i * self.hop
        return self.x[start : start + self.win], self.y[i + self.win // 2]


class ByTable(Windows):
    """Of numpy, with the starts in a list, and labels of windows of their own."""

    def __getitem__(self, index):
        begin, size = self.starts[index], self.win
        signal, marks = self.x.numpy(), self.y
        window = torch.as_tensor(self.x[begin : begin + size])
        if self.win > 1000:
            window = window.flip(0)
        return window, marks[index : index + size].float().mean(), signal


class ByColumn(Windows):
    """Time goes along the second axis."""

    def __init__(self):
        super().__init__(items=96)
        self.x = np.zeros((3, ROWS), dtype="float32")
        self.y = np.zeros(ROWS, dtype="int64")

    def __getitem__(self, at):
        begin: int = at * self.cfg.stride
        return torch.from_numpy(self.x[:, begin : begin + 40]), int(self.y[at])


class Together(Windows):
    def __getitem__(self, i):
        start = i * self.hop
        return self.x[start : start + self.win], self.y[start + self.win // 2]


class Forecast(Windows):
    def __getitem__(self, i):
        return self.x[i : i + self.win], self.y[i + self.win + 60]


class LabelOfWindow(Windows):
    """One label for each window: another number of rows."""

    def __init__(self):
        super().__init__()
        self.y = torch.randint(0, 4, (self.items,))

    def __getitem__(self, i):
        start = i * self.hop
        return self.x[start : start + self.win], self.y[i]


class Drawn(Windows):
    """The start is drawn: nothing is known of it."""

    def __getitem__(self, i):
        start = int(torch.randint(0, 900, ()))
        return self.x[start : start + self.win], self.y[i]


class Branched(Windows):
    def __getitem__(self, i):
        start = i * self.hop
        row = i
        if self.hop > 1:
            row = start
        return self.x[start : start + self.win], self.y[row]


class Kinds(Windows):
    """A table that is looked up round and round is none of labels of rows."""

    def __getitem__(self, i):
        start = i * self.hop
        return self.x[start : start + self.win], self.y[i % 7]


class Ordered(Windows):
    """The order is an array of that length, too, and only says where to look."""

    def __init__(self, items=ROWS):
        super().__init__(items=items)
        self.order = np.random.default_rng(0).permutation(ROWS)

    def __getitem__(self, i):
        return self.x[self.order[i]], self.y[self.order[i]]


class OneOrdered(Ordered):
    def __getitem__(self, i):
        j = self.order[i]
        return self.x[j], self.y[i]


class Kept(Windows):
    """Rows of inputs that were chosen, beside labels that were not."""

    def __init__(self):
        super().__init__(items=700)
        self.keep = sorted(np.random.default_rng(0).permutation(ROWS)[:700].tolist())

    def __getitem__(self, i):
        return self.x[self.keep[i]], self.y[i]


class Computed(Windows):
    """A property runs code of the user's."""

    @property
    def step(self):
        raise AssertionError

    def __getitem__(self, i):
        start = i * self.step
        return self.x[start : start + self.win], self.y[i]


class Twice(Windows):
    """Each item is asked for many times: its first row is that of its window."""

    def __getitem__(self, i):
        start = i // 4 * self.hop
        return self.x[start : start + self.win], self.y[start // 10]


@pytest.mark.parametrize("dataset", [ByItem(), ByTable(items=90), ByColumn(), Subset(ByItem(), range(50))])
def test_labels_by_the_number_of_the_item(dataset):
    found = rows_apart(dataset)
    assert found.certain
    assert found.rows == ROWS
    assert found.share < 0.2
    assert found.first > found.second


def test_tells_where():
    found = rows_apart(ByItem())
    assert (found.text, found.inputs, found.labels) == ("self.y[i + self.win // 2]", "self.x", "self.y")
    assert (found.item, found.first, found.second) == (96, 960, 116)
    assert found.where.function == "__getitem__"


@pytest.mark.parametrize(
    "dataset",
    [
        Together(), Forecast(items=800), LabelOfWindow(), Drawn(), Branched(), Kinds(), Ordered(), ByItem(hop=1), ByItem(items=9),
        Computed(), Windows(), [1, 2, 3], Twice(items=384),
    ],
    ids=lambda dataset: type(dataset).__name__,
)  # fmt: skip
def test_near_misses(dataset):
    assert rows_apart(dataset) is None


@pytest.mark.parametrize("dataset", [OneOrdered(), Kept()])
def test_one_side_in_another_order_is_not_certain(dataset):
    found = rows_apart(dataset)
    assert not found.certain
    assert found.labels == "self.y"
