"""The clipper against torch's own function and NumPy's percentile."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from flatline.toolbox import GradientClipper


def with_gradients(*values):
    parameters = [torch.zeros(len(value), requires_grad=True) for value in values]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = torch.tensor(value)
    return parameters


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_clips_like_torch(norm_type):
    values = [[3.0, -4.0], [12.0]]
    ours, theirs = with_gradients(*values), with_gradients(*values)
    norm = GradientClipper(1.0, norm_type=norm_type)(ours)
    assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(theirs, 1.0, norm_type))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))
    assert float(norm) == {1.0: 19.0, 2.0: 13.0, math.inf: 12.0}[norm_type]


def test_counts_and_suggests():
    clipper, norms = GradientClipper(50.5, window=60), [float(n) for n in range(1, 101)]
    for norm in norms:
        clipper(with_gradients([norm]))
    assert (clipper.steps, clipper.clipped, clipper.rate) == (100, 50, 0.5)
    assert clipper.norms == norms[40:]
    for percentile in (90.0, 95.0, 99.0):
        assert clipper.suggest(percentile) == pytest.approx(float(numpy.percentile(norms[40:], percentile)))


def test_near_miss_measures_only():
    clipper = GradientClipper(math.inf)
    (parameter,) = with_gradients([1e6])
    clipper([parameter])
    assert float(parameter.grad) == 1e6
    assert clipper.rate == 0.0


def test_near_miss_a_norm_that_is_not_finite():
    clipper = GradientClipper(1.0)
    for norm in [0.5] * 30 + [math.nan, math.inf]:
        clipper(with_gradients([norm]))
    assert clipper.non_finite == 2
    assert clipper.suggest() == 0.5


def test_nothing_yet():
    clipper = GradientClipper(1.0)
    assert (clipper.clipped, clipper.norms, math.isnan(clipper.rate)) == (0, [], True)
    with pytest.raises(ValueError, match="ask later"):
        clipper.suggest()


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_bad_thresholds(bad):
    with pytest.raises(ValueError, match=r"math\.inf to measure only"):
        GradientClipper(bad)
