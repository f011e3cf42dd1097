"""Inputs from one loader, labels from another: do both ask for the same samples?"""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from watching import seen

from flatline.events import PairingProbed
from flatline.sensors.origins import Origins

X = torch.randn(2000, 12, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def loader(*columns, seed=None):
    generator = torch.Generator().manual_seed(seed) if seed is not None else None
    return DataLoader(TensorDataset(*columns), batch_size=64, shuffle=True, generator=generator)


def probed(inputs, labels, classify=True):
    def loop():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2 if classify else 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for (x, *_), (*_, y) in zip(inputs, labels, strict=True):
                scores = model(x)
                loss = functional.cross_entropy(scores, y) if classify else functional.mse_loss(scores[:, 0], y.float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return seen(loop, PairingProbed)


@pytest.mark.parametrize("classify", [True, False])
def test_two_loaders_that_shuffle_on_their_own(classify):
    events = probed(loader(X, seed=1), loader(Y, seed=2), classify)
    assert events
    inputs, labels = events[-1].apart
    assert inputs != labels
    assert all(0 <= index < 2000 for index in (*inputs, *labels))


def test_near_miss_one_order_for_both():
    other = Y[torch.randperm(2000, generator=torch.Generator().manual_seed(5))]
    events = probed(loader(X, seed=1), loader(other, seed=1))
    assert events
    assert {event.apart for event in events} == {None}


def test_near_miss_labelled_and_unlabelled_samples():
    """The loader of the labels has inputs of its own, and the model was given those of the other one first."""
    events = probed(loader(X, seed=1), loader(X, Y, seed=2))
    assert {event.apart for event in events} <= {None}


def test_near_miss_tensors_of_no_loader_and_of_streams():
    origins = Origins()
    origins.add(1, (None, None), [X[:8]])
    origins.add(2, (4, 5), [Y[:8]])
    assert origins.apart(X[:8], Y[:8]) is None
    assert origins.apart(X[8:16], Y[:8]) is None
    origins.add(1, (0, 1), [X[:8]])
    assert origins.apart(X[:8], Y[:8].float()) == ((0, 1), (4, 5))
    origins.clear()
    assert origins.apart(X[:8], Y[:8]) is None
