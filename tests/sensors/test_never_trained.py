"""Bodies that are frozen as they were built."""

import copy
import io

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import BodyNeverTrained


def body():
    return nn.Sequential(
        nn.Linear(20, 32),
        nn.LayerNorm(32),
        nn.ReLU(),
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Linear(32, 32),
        nn.LayerNorm(32),
    )


def frozen(part):
    return part.requires_grad_(False)


def train(net, steps=4, then=None):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
        if then is not None and step == 1:
            then()


def told(build, then=None):
    def act():
        torch.manual_seed(0)
        net = build()
        train(net, then=then and (lambda: then(net)))

    return seen(act, BodyNeverTrained)


def test_a_body_as_it_was_built():
    (found,) = told(lambda: nn.Sequential(frozen(body()), nn.Linear(32, 4)))
    assert (found.matrices, found.norms, found.replaced, found.trainable) == (3, 2, False, 132)
    assert (found.frozen, found.model, found.step) == (2912, "Sequential", 1)


def test_a_head_that_was_replaced():
    def build():
        net = nn.Sequential(body(), nn.Linear(32, 10))
        frozen(net)[1] = nn.Linear(32, 4)
        return net

    (found,) = told(build)
    assert found.replaced


def test_a_stack_of_copies_of_one_layer():
    layer = nn.TransformerEncoderLayer
    (found,) = told(
        lambda: nn.Sequential(
            frozen(nn.Linear(20, 16)),
            frozen(nn.TransformerEncoder(layer(16, 2, 32, batch_first=True), 2)),
            nn.Linear(16, 2),
        )
    )
    assert (found.matrices, found.norms) == (9, 4)


def pickled(part):
    file = io.BytesIO()
    torch.save(part, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def loaded(part):
    fresh = body()
    fresh.load_state_dict(part.state_dict())
    return fresh


@pytest.mark.parametrize("given", [pickled, loaded, copy.deepcopy])
def test_near_miss_weights_that_came_from_elsewhere(given):
    assert told(lambda: nn.Sequential(frozen(given(body())), nn.Linear(32, 4))) == []


def test_near_miss_a_body_that_was_trained_here():
    def act():
        first = nn.Sequential(body(), nn.Linear(32, 4))
        train(first, steps=30)
        train(nn.Sequential(frozen(first[0]), nn.Linear(32, 4)))

    assert seen(act, BodyNeverTrained) == []


def norms_alone():
    net = frozen(body())
    net[1].requires_grad_(True)
    return nn.Sequential(net, nn.Linear(32, 4))


@pytest.mark.parametrize(
    "build",
    [
        norms_alone,
        lambda: nn.Sequential(frozen(nn.Linear(20, 64)), nn.ReLU(), nn.Linear(64, 4)),  # one layer of random features
        lambda: nn.Sequential(nn.Linear(20, 20), frozen(body())),  # what trains runs before
        lambda: nn.Sequential(body(), nn.Linear(32, 4)),
    ],
)
def test_near_miss_parts_that_are_frozen_on_purpose(build):
    assert told(build) == []


def test_near_miss_a_stage_that_unfreezes():
    def build():
        return nn.Sequential(frozen(body()), nn.Linear(32, 4))

    assert told(build, then=lambda net: net.requires_grad_(True)) == []
