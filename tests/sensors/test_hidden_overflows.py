"""Sums of squares that overflow float16, seen in real passes and graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from watching import seen

from flatline.events import OverflowHidden

LOUD = 9_600.0


def by_rsqrt(x):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def by_root(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


def by_norm(x):
    return x / x.norm(dim=-1, keepdim=True)


def in_float32(x):
    return (x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Net(nn.Module):
    """A normalisation of the input, or of what the first layer makes of it."""

    def __init__(self, norm, *, inside, dtype=torch.float16):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64, bias=False), nn.Linear(64, 4)
        self.norm, self.inside, self.dtype = norm, inside, dtype

    def forward(self, x):
        if self.inside:
            return self.last(self.norm(2 * LOUD * self.first(x)))
        return self.last(functional.relu(self.first(self.norm(x.to(self.dtype)))))


def told(net, *, loud, dtype=torch.float16):
    torch.manual_seed(0)

    def run():
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                scores = net(loud * torch.randn(32, 64))
            functional.cross_entropy(scores.float(), torch.randint(0, 4, (32,))).backward()
            optimizer.step()

    return seen(run, OverflowHidden)


@pytest.mark.parametrize("norm", [by_rsqrt, by_root, by_norm])
def test_before_the_first_layer(norm):
    events = told(Net(norm, inside=False), loud=LOUD)
    assert [event.place for event in events] == ["before first"] * 4
    assert all(event.share > 0.8 for event in events)
    assert all(event.largest > LOUD for event in events)


@pytest.mark.parametrize("norm", [by_rsqrt, by_root, by_norm])
def test_where_the_loss_reaches(norm):
    events = told(Net(norm, inside=True), loud=1.0)
    assert events  # one, where the gradients are nan at once
    assert all(event.share > 0.9 for event in events)


def far_away(x):
    """Distances of points that stand far off on purpose, in what falls with them."""
    return (-(x[..., None] - torch.ones(4, dtype=x.dtype)).pow(2).sum(1).sqrt()).exp().repeat(1, 16)


@pytest.mark.parametrize("inside", [False, True])
def test_near_miss_a_root_that_divides_nothing(inside):
    assert told(Net(far_away, inside=inside), loud=LOUD) == []


@pytest.mark.parametrize(
    "norm", [in_float32, nn.RMSNorm(64, elementwise_affine=False), nn.LayerNorm(64), nn.Identity()]
)
def test_squares_that_float32_holds(norm):
    assert told(Net(norm, inside=True), loud=0.02) == []
    assert told(Net(in_float32, inside=False), loud=LOUD) == []


@pytest.mark.parametrize("norm", [by_rsqrt, by_root])
def test_numbers_of_usual_size(norm):
    assert told(Net(norm, inside=False), loud=1.0) == []
    assert told(Net(norm, inside=True), loud=1e-4) == []


def test_bfloat16():
    assert told(Net(by_rsqrt, inside=False, dtype=torch.bfloat16), loud=LOUD, dtype=torch.bfloat16) == []


@pytest.mark.parametrize("zeros", [torch.zeros_like, lambda x: x / LOUD * (torch.rand(len(x), 1) > 0.5)])
def test_zeros_of_another_making(zeros):
    """A state that begins at 0, and samples that are masked."""
    assert told(Net(zeros, inside=False), loud=LOUD) == []
