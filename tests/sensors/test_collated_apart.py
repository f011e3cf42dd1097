"""Collate functions that put sequences into another order."""

from __future__ import annotations

import gc
import os
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from watching import seen

from flatline.events import CollatedApart

DRAW = torch.Generator().manual_seed(0)
LENGTHS = torch.randint(3, 15, (96,), generator=DRAW).tolist()
ITEMS = [(torch.randint(1, 50, (n,), generator=DRAW), int(torch.randint(0, 2, (1,), generator=DRAW))) for n in LENGTHS]


class Reader(nn.Module):
    """A bag of words."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 8, padding_idx=0), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.embed(x).mean(1))


def longest_first(items):
    return sorted(items, key=lambda item: len(item[0]), reverse=True)


def sorted_apart(items):
    labels = torch.tensor([label for _, label in items])
    return pad_sequence([x for x, _ in longest_first(items)], batch_first=True), labels


def sorted_together(items):
    items = longest_first(items)
    return pad_sequence([x for x, _ in items], batch_first=True), torch.tensor([label for _, label in items])


def as_they_come(items):
    return pad_sequence([x for x, _ in items], batch_first=True), torch.tensor([label for _, label in items])


def mixed(items):
    """Half of each row is another item's, and so is the label."""
    x, y = as_they_come(items)
    return torch.cat([x, x.flip(0)], 1), y


def number_first(items):
    """The numbers that are left in the order of the items are no labels."""
    x, y = sorted_together([(each, label) for each, label in items])
    return x, y, torch.tensor([label for _, label in items])


def trained(collate, items=ITEMS, workers=0, loss=functional.cross_entropy):
    torch.manual_seed(0)
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y, *_ in DataLoader(items, 16, shuffle=True, collate_fn=collate, num_workers=workers):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()


def found(collate, **how):
    return seen(lambda: trained(collate, **how), CollatedApart)


def test_sequences_sorted_without_their_labels():
    (event,) = found(sorted_apart)
    assert (event.batches, event.rows) == (2, 32)
    assert 6 <= event.wrong < 32
    assert event.where.function == "sorted_apart"


def test_a_loader_that_only_its_iterator_holds_serves_every_batch():
    batches = []

    def collate(items):
        batches.append(len(items))
        return sorted_together(items)

    assert found(collate, items=ITEMS * 3) == []
    assert batches == [16] * 18


def test_the_function_is_let_go_with_its_loader():
    """It knows its loader, and warns of the line of torch's that calls it."""

    def run():
        def collate(items):
            assert loader is not None
            warnings.warn("collated", stacklevel=2)
            return sorted_together(items)

        loader, model = DataLoader(ITEMS, 16, collate_fn=collate), Reader()
        for x, y in loader:
            functional.cross_entropy(model(x), y).backward()
            if len(told) == 3:
                break
        return weakref.ref(loader), weakref.ref(collate)

    def act():
        gone.extend(run())
        gc.collect()
        assert [ref() for ref in gone] == [None, None]

    gone = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert seen(act, CollatedApart) == []
    assert {os.path.basename(each.filename) for each in told} == {"fetch.py"}


def test_near_miss_an_order_to_put_them_back():
    def collate(items):
        order = sorted(range(len(items)), key=lambda i: len(items[i][0]), reverse=True)
        x, y = sorted_apart(items)
        return x, y, torch.tensor(order).argsort()

    assert found(collate) == []
    assert found(lambda items: (*sorted_apart(items), {"places": list(range(len(items)))})) == []


def test_items_as_dictionaries_and_lists():
    items = [{"ids": x.tolist(), "label": y} for x, y in ITEMS]

    def collate(rows):
        return sorted_apart([(torch.tensor(row["ids"]), row["label"]) for row in rows])

    assert len(found(collate, items=items)) == 1


def test_labels_that_are_converted():
    def loss(scores, y):
        return functional.binary_cross_entropy_with_logits(scores[:, 0], y.float())

    assert len(found(sorted_apart, loss=loss)) == 1


@pytest.mark.parametrize("collate", [sorted_together, as_they_come, mixed, number_first])
def test_near_miss(collate):
    assert found(collate) == []


def test_near_miss_rows_that_are_alike():
    items = [(torch.full((n,), 3), y) for n, (_, y) in zip(LENGTHS, ITEMS, strict=True)]
    assert found(sorted_apart, items=items) == []


def test_the_function_is_called_as_before():
    calls = []

    def collate(items):
        calls.append(len(items))
        return as_they_come(items)

    loader = DataLoader(ITEMS, 16, collate_fn=collate)

    def run():
        model = Reader()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            for x, y in loader:
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()

    assert seen(run, CollatedApart) == []
    assert calls == [16] * 18
    assert loader.collate_fn is collate
