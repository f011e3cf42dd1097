"""One batch that was taken before the loop, and learned from to the end."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from watching import seen

from flatline.events import OneBatchTaken
from flatline.sensors.lone_batch import MEANT


def made(rows=600):
    x = torch.randn(rows, 6)
    return x, x.argmax(1)


def learn(net, batch, *, validate=True, steps=40, then=None):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    held = made(50)[0]
    for step in range(steps):
        x, y = batch
        optimizer.zero_grad()
        cross_entropy(net(x), y).backward()
        optimizer.step()
        if validate and step % 10 == 9:
            with torch.no_grad():
                net(held)
        batch = then() if then else batch


def test_an_iterator_that_is_kept_and_never_asked_again():
    def act():
        batches = iter(DataLoader(TensorDataset(*made()), batch_size=20, shuffle=True))
        learn(torch.nn.Linear(6, 6), next(batches))
        del batches

    (event,) = seen(act, OneBatchTaken)
    assert (event.rows, event.length, event.validations, event.step) == (20, 30, 3, 40)
    assert event.where.function == "act"


def test_a_loop_as_long_as_the_loader():
    def act():
        loader, net = DataLoader(TensorDataset(*made()), batch_size=20), torch.nn.Linear(6, 6)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x, y = next(iter(loader))
        net.eval()
        for _ in range(len(loader)):
            net.train()
            cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    (event,) = seen(act, OneBatchTaken)
    assert (event.length, event.validations) == (30, 0)


def test_near_miss_a_few_rows_that_the_first_batch_draws():
    def act():
        learn(torch.nn.Linear(6, 6), next(iter(DataLoader(TensorDataset(*made()), batch_size=20, shuffle=True))))

    assert seen(act, OneBatchTaken) == []


def test_near_miss_the_length_is_only_told():
    def act():
        loader, net = DataLoader(TensorDataset(*made()), batch_size=20, shuffle=True), torch.nn.Linear(6, 6)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x, y = next(iter(loader))
        batches = len(loader)
        for step in range(40):
            cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 20 == 19:
                print(f"{step}: {len(x)} of {20 * len(loader)}", batches)

    assert seen(act, OneBatchTaken) == []


def test_near_miss_the_next_batches_follow():
    def act():
        batches = iter(DataLoader(TensorDataset(*made(1000)), batch_size=20))
        learn(torch.nn.Linear(6, 6), next(batches), then=lambda: next(batches))

    assert seen(act, OneBatchTaken) == []


@pytest.mark.parametrize("rows", [20, 50])
def test_near_miss_a_batch_that_is_validated_with(rows):
    """All rows are learned from at once; as many are in the one batch that is taken for validation."""

    def act():
        batches = iter(DataLoader(TensorDataset(*made()), batch_size=20))
        held, net = next(batches), torch.nn.Linear(6, 6)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x, y = made(rows)
        for step in range(40):
            cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 9:
                with torch.no_grad():
                    net(held[0])
        del batches

    assert seen(act, OneBatchTaken) == []


@pytest.mark.parametrize(
    "words", [("over", "fit"), ("single", "_batch"), ("Sani", "ty check"), ("few", "-shot"), ("label", "led")]
)
def test_words_of_a_file_that_means_it(words):
    """In two parts, as this file means nothing of the kind."""
    assert MEANT.search("".join(words))
