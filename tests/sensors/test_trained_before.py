"""Which weights were trained for long before an optimizer came?"""

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import ParametersAudited


def train(optimizer, *layers, count):
    """Steps on random numbers."""
    for _ in range(count):
        optimizer.zero_grad()
        nn.Sequential(*layers)(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()


def trained_before(run):
    """Shapes of the weights that the newest audit tells so."""
    (*_, last) = seen(run, ParametersAudited)
    return {p.shape for p in last.parameters if p.trained_before and len(p.shape) > 1}


@pytest.mark.parametrize("kept", [True, False])
def test_weights_of_an_optimizer_that_is_gone_or_idle(kept):
    def run():
        body, old, new = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 2)
        first = torch.optim.Adam([*body.parameters(), *old.parameters()])
        train(first, body, old, count=120)
        held = [first] if kept else []
        del first
        train(torch.optim.Adam([*body.parameters(), *new.parameters()]), body, new, count=20)
        del held

    assert (6, 6) in trained_before(run) <= {(6, 6), (3, 6)}


@pytest.mark.parametrize(("before", "between"), [(20, 0), (120, 1)])
def test_weights_of_one_that_stepped_a_little_or_goes_on(before, between):
    def run():
        body, old, new = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 2)
        first = torch.optim.Adam([*body.parameters(), *old.parameters()])
        train(first, body, old, count=before)
        second = torch.optim.Adam([*body.parameters(), *new.parameters()])
        for _ in range(20):
            train(second, body, new, count=1)
            train(first, body, old, count=between)

    assert trained_before(run) == set()
