"""Numbers of the images that a model learns from and is validated on, beside a naive count."""

import pytest
import torch
from torch import nn
from watching import seen, two_passes

from flatline.events import ImagesCompared

GENERATOR = torch.Generator().manual_seed(0)
TRAIN = [torch.randn(6, 3, 12, 12, generator=GENERATOR) * 2 - 0.5 for _ in range(3)]
SHOWN = torch.rand(5, 3, 12, 12, generator=GENERATOR)


def learned(train, *shown, double=False):
    net = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(train[0].shape[1] * 4, 2))
    net = net.double() if double else net
    two_passes(net, train, shown)


def test_every_channel_is_measured():
    events = seen(lambda: learned(TRAIN, SHOWN, SHOWN), ImagesCompared)
    assert [event.step for event in events] == [3, 6]
    for channel in range(3):
        assert events[0].validation.means[channel] == pytest.approx(SHOWN[:, channel].mean().item(), rel=1e-4)
        assert events[0].validation.deviations[channel] == pytest.approx(
            SHOWN[:, channel].std(correction=0).item(), rel=1e-4
        )
        assert events[0].train[0].means[channel] == pytest.approx(TRAIN[0][:, channel].mean().item(), rel=1e-4)
    assert (events[0].validation.low, events[0].validation.high) == (SHOWN.min().item(), SHOWN.max().item())


def test_near_miss_what_is_no_image():
    rows = [x.flatten(1)[:, :12].reshape(6, 3, 2, 2) for x in TRAIN]
    assert seen(lambda: learned(rows, rows[0]), ImagesCompared) == []
    assert seen(lambda: learned([x.double() for x in TRAIN], SHOWN.double(), double=True), ImagesCompared)
    assert seen(lambda: learned(TRAIN), ImagesCompared) == []
