"""The items of a validation pass: are they the ones of the pass before?"""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split
from watching import seen

from flatline.events import ItemsRedrawn

X = torch.randn(96, 3, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(96) % 4


class Pictures(Dataset):
    def __init__(self, first, last, noise=0.0, labels=Y):
        self.x, self.y, self.noise = X[first:last], labels[first:last], noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        return self.x[at] + self.noise * torch.randn(3, 6), self.y[at]


class Made(Pictures):
    def __getitem__(self, at):
        return torch.randn(3, 6), torch.randint(4, ())


class Moving(Pictures):
    """Normalised by what was seen so far: no chance."""

    seen = 0

    def __getitem__(self, at):
        Moving.seen += 1
        return self.x[at] / (1 + Moving.seen), self.y[at]


def sharing(other):
    same = Pictures(0, 48, 0.3)
    same.x = other.x
    return same


def flipped(items):
    x, y = (torch.stack(part) for part in zip(*items, strict=True))
    keep = torch.rand(len(x), 1, 1) < 0.5
    return torch.where(keep, x, x.flip(-1)), y


def trained(train, *held_out, epochs=4, views=1):
    """One epoch after the other, and a look at each loader held out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(18, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for x, y in train:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        for loader in held_out:
            for _ in range(views):
                for x, _ in loader:
                    model(x).detach().argmax(1)


def found(*loaders, **how):
    return seen(lambda: trained(*loaders, **how), ItemsRedrawn)


def halves(noise):
    return random_split(Pictures(0, 96, noise), [0.5, 0.5], torch.Generator().manual_seed(0))


def shuffling(dataset):
    return DataLoader(dataset, 16, shuffle=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_set_that_draws_anew(workers):
    (event,) = found(shuffling(Pictures(0, 48, 0.3)), DataLoader(Pictures(48, 96, 0.3), 16, num_workers=workers))
    assert (event.dataset, event.changed, event.rows, event.passes) == ("Pictures", 16, 16, 3)


def test_both_parts_of_one_data_set():
    train, valid = halves(0.3)
    (event,) = found(shuffling(train), DataLoader(valid, 24))
    assert event.dataset == "Pictures"


def test_a_function_that_puts_batches_together():
    plain = Pictures(0, 48), Pictures(48, 96)
    train = DataLoader(plain[0], 16, shuffle=True, collate_fn=flipped)
    (event,) = found(train, DataLoader(plain[1], 24, collate_fn=flipped))
    assert 4 <= event.changed < 16


QUIET = {
    "chance in validation alone": lambda: (shuffling(Pictures(0, 48)), DataLoader(Pictures(48, 96, 0.3), 16)),
    "what training makes of them": lambda: (shuffling(Moving(0, 48)), DataLoader(Moving(48, 96), 16)),
    "training rows in another data set": lambda: (
        shuffling(first := Pictures(0, 48, 0.3)),
        DataLoader(sharing(first), 16),
    ),
    "items as they are": lambda: (shuffling(Pictures(0, 48, 0.3)), DataLoader(Pictures(48, 96), 16)),
    "tensors": lambda: (shuffling(Pictures(0, 48, 0.3)), DataLoader(TensorDataset(X, Y), 16)),
    "the score on the training data": lambda: (shuffling(data := Pictures(0, 48, 0.3)), DataLoader(data, 16)),
    "a part of the training data": lambda: (
        shuffling(data := Pictures(0, 48, 0.3)),
        DataLoader(Subset(data, range(20)), 16),
    ),
    "parts that overlap": lambda: (
        shuffling(Subset(data := Pictures(0, 96, 0.3), range(60))),
        DataLoader(Subset(data, range(50, 96)), 16),
    ),
    "made anew, labels and all": lambda: (shuffling(Pictures(0, 48)), DataLoader(Made(48, 96), 16)),
    "another order": lambda: (shuffling(Pictures(0, 48)), shuffling(Pictures(48, 96, 0.3))),
    "one label": lambda: (
        shuffling(Pictures(0, 48)),
        DataLoader(Pictures(48, 96, 0.3, labels=torch.zeros_like(Y)), 16),
    ),
    "spoiled on purpose": lambda: (
        shuffling(Pictures(0, 48)),
        DataLoader(Pictures(48, 96, 0.3), 16),
        DataLoader(Pictures(48, 96), 16),
    ),
}


@pytest.mark.parametrize("kind", QUIET)
def test_near_miss(kind):
    assert not found(*QUIET[kind]())


def test_near_miss_several_views_of_each_item():
    """The answers for several views are averaged."""
    assert not found(shuffling(Pictures(0, 48)), DataLoader(Pictures(48, 96, 0.3), 16), views=3)


def test_near_miss_a_second_loader_that_is_learned_from():
    """Two loaders in step: only the newest is known to be learned from, the other's passes hold steps."""

    class Both:
        def __iter__(self):
            first = DataLoader(Pictures(0, 48, 0.3), 16)
            self.second = getattr(self, "second", None) or DataLoader(Pictures(48, 96), 16)
            self.first = getattr(self, "first", None) or first
            for (x, y), (other, _) in zip(self.first, self.second, strict=True):
                yield torch.cat([x, other]), torch.cat([y, y])

    assert not found(Both())
