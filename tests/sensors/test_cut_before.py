"""Layers that were cut off in a pass before the last one: their output is kept for the others."""

from __future__ import annotations

import pytest
import torch
from tests.sensors.watching import seen
from torch import nn

from flatline.events import ParametersAudited


class Cached(nn.Module):
    """Two heads read what the trunk gave for the first of them."""

    def __init__(self, keep):
        super().__init__()
        self.trunk, self.heads = nn.Linear(4, 8), nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 3)])
        self.keep, self.kept = keep, None

    def forward(self, x, head):
        if head == 0:
            self.kept = self.keep(self.trunk(x))
        return self.heads[head](self.kept * 2)


@pytest.mark.parametrize(("keep", "cut"), [(torch.Tensor.detach, "before heads.0"), (lambda features: features, "")])
def test_a_trunk_whose_output_is_kept(keep, cut):
    model = Cached(keep)

    def run():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            x = torch.randn(6, 4)
            (model(x, 0).square().mean() + model(x, 1).square().mean()).backward()
            optimizer.step()

    audited = seen(run, ParametersAudited)[-1]
    facts = {p.name: p for p in audited.parameters}
    assert (facts["trunk.weight"].reached, facts["trunk.weight"].cut) == (not cut, cut)
