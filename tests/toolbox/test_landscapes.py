"""Landscapes of functions that are known."""

from __future__ import annotations

import math

import pytest
import torch
from toolbox_state import everything, loop, same
from torch import nn

from flatline.toolbox import (
    SAM,
    filter_normalised,
    loss_plane,
    loss_slice,
    mode_connectivity,
    sharpness,
    supervised,
)

cross_entropy = supervised(nn.functional.cross_entropy)


class Point(nn.Module):
    def __init__(self, *at):
        super().__init__()
        self.at = nn.Parameter(torch.tensor([at], dtype=torch.float64))


def bowl(model, curvature):
    return 0.5 * (model.at**2 * torch.tensor(curvature, dtype=torch.float64)).sum()


def test_filters_are_as_long_as_those_of_the_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Linear(4, 6))
    model[2].weight.data[2] = 0
    direction = filter_normalised(model, torch.Generator().manual_seed(1))
    for parameter, part in zip(model.parameters(), direction, strict=True):
        if parameter.dim() == 1:
            assert not part.any()
        else:
            for ours, theirs in zip(part, parameter, strict=True):
                assert ours.norm().item() == pytest.approx(theirs.norm().item(), rel=1e-5)


def test_slice_of_a_quadratic():
    model = Point(1.0, 2.0)
    along = [torch.tensor([[3.0, -1.0]], dtype=torch.float64)]
    result = loss_slice(model, [4.0, 2.0], bowl, distance=2.0, points=5, direction=along)
    assert result.positions == (-2.0, -1.0, 0.0, 1.0, 2.0)
    expected = [0.5 * (4 * (1 + 3 * t) ** 2 + 2 * (2 - t) ** 2) for t in result.positions]
    assert result.losses.tolist() == pytest.approx(expected)


def test_plane_of_a_quadratic():
    model = Point(1.0, 2.0)
    axes = tuple([torch.tensor([axis], dtype=torch.float64)] for axis in ([1.0, 0.0], [0.0, 1.0]))
    result = loss_plane(model, [4.0, 2.0], bowl, points=3, directions=axes)
    expected = [[0.5 * (4 * (1 + a) ** 2 + 2 * (2 + b) ** 2) for b in (-1, 0, 1)] for a in (-1, 0, 1)]
    assert result.losses.tolist() == expected


def test_the_middle_is_the_models_own_loss_and_scale_does_not_matter():
    """Li et al.: after rescaling filters between two ReLU layers the function, and so the picture, is the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    batch = torch.randn(16, 4), torch.arange(16) % 3
    first = loss_slice(model, batch, cross_entropy, points=5)
    assert first.losses[2].item() == pytest.approx(cross_entropy(model, batch).item())
    model[0].weight.data *= 10
    model[2].weight.data /= 10
    again = loss_slice(model, batch, cross_entropy, points=5)
    assert again.losses.tolist() == pytest.approx(first.losses.tolist(), rel=1e-4)


def test_sharpness_of_a_quadratic_by_hand():
    model = Point(1.0, 2.0)
    gradient = torch.tensor([4.0, 4.0], dtype=torch.float64)
    up = torch.tensor([1.0, 2.0]) + 0.1 * gradient / gradient.norm()
    expected = 0.5 * (4 * up[0] ** 2 + 2 * up[1] ** 2) - 6
    assert sharpness(model, [4.0, 2.0], bowl, rho=0.1) == pytest.approx(expected.item())
    assert sharpness(Point(0.0, 0.0), [4.0, 2.0], bowl) == 0.0


def test_sharpness_is_what_sam_climbs():
    model, losses = Point(1.0, 2.0), []
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.0, rho=0.3)

    def closure():
        optimizer.zero_grad()
        loss = bowl(model, [4.0, 2.0])
        loss.backward()
        losses.append(loss.item())
        return loss

    optimizer.step(closure)
    assert sharpness(model, [4.0, 2.0], bowl, rho=0.3) == pytest.approx(losses[1] - losses[0])


def ring(model, _):
    """Zero on a circle of radius 1, with a hill in the middle."""
    return (model.at.square().sum() - 1).square()


def test_straight_line_over_a_hill_and_a_curve_around_it():
    model = Point(0.3, 0.1)
    ends = Point(-1.0, 0.0).state_dict(), Point(1.0, 0.0).state_dict()
    straight = mode_connectivity(model, *ends, None, ring, points=11)
    expected = [((2 * t - 1) ** 2 - 1) ** 2 for t in straight.positions]
    assert straight.losses == pytest.approx(expected)
    assert (straight.barrier, straight.bend) == (pytest.approx(1.0), None)
    ends = Point(-1.0, 0.0).state_dict(), Point(math.cos(0.3), math.sin(0.3)).state_dict()
    curve = mode_connectivity(model, *ends, None, ring, steps=300, lr=0.05)
    assert curve.barrier < 0.15 < mode_connectivity(model, *ends, None, ring).barrier
    assert curve.losses[0] == pytest.approx(0, abs=1e-12)
    assert "curve" in str(curve)
    assert model.at.tolist() == [[0.3, 0.1]]


def test_barrier_is_measured_from_the_line_between_the_ends():
    result = mode_connectivity(Point(0.0), Point(0.0).state_dict(), Point(2.0).state_dict(), [1.0], bowl)
    assert result.losses[-1] == 2.0
    assert result.barrier == 0.0


def test_two_trainings_of_one_network():
    torch.manual_seed(0)
    batch = torch.randn(64, 2), torch.randint(0, 2, (64,))
    ends = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(150):
            optimizer.zero_grad()
            cross_entropy(model, batch).backward()
            optimizer.step()
        ends.append({name: value.clone() for name, value in model.state_dict().items()})
    straight = mode_connectivity(model, *ends, batch, cross_entropy, points=11)
    curve = mode_connectivity(model, *ends, batch, cross_entropy, points=11, steps=150)
    assert curve.barrier < straight.barrier / 2


@pytest.mark.parametrize("probe", [loss_slice, loss_plane, sharpness])
def test_restores(probe):
    model, optimizer, batch = loop()
    before = everything(model, optimizer)
    few = {} if probe is sharpness else {"points": 3}
    found = probe(model, batch, cross_entropy, **few)
    assert same(before, everything(model, optimizer))
    again = probe(model, batch, cross_entropy, **few)
    assert found == again if probe is sharpness else torch.equal(found.losses, again.losses)
    ends = [loop(seed)[0].state_dict() for seed in (1, 2)]
    before = everything(model, optimizer)
    mode_connectivity(model, *ends, batch, cross_entropy, points=3, steps=2)
    assert same(before, everything(model, optimizer))


def test_near_miss_frozen_parameters_stay():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    assert len(loss_slice(model, torch.ones(1, 2), lambda m, x: m(x).sum(), points=3).directions[0]) == 2


def test_bad_input():
    model = Point(1.0)
    for bad in ({"points": 4}, {"points": 1}, {"distance": 0.0}):
        with pytest.raises(ValueError, match="an odd number"):
            loss_slice(model, [1.0], bowl, **bad)
    with pytest.raises(ValueError, match="for each trainable parameter"):
        loss_slice(model, [1.0], bowl, direction=[torch.ones(3)])
    with pytest.raises(ValueError, match="rho must be positive"):
        sharpness(model, [1.0], bowl, rho=0.0)
    with pytest.raises(ValueError, match="second state dict does not fit the model at 'at'"):
        mode_connectivity(model, model.state_dict(), {}, [1.0], bowl)
