"""Sine layers behind sine layers, in real graphs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import WavesStacked


class Sine(nn.Module):
    """sin(w0 * layer(x)), with the initialisation of SIREN or of torch."""

    def __init__(self, entering, leaving, *, bound=None, wave=torch.sin):
        super().__init__()
        self.layer, self.wave = nn.Linear(entering, leaving), wave
        if bound is not None:
            nn.init.uniform_(self.layer.weight, -bound, bound)

    def forward(self, x):
        return self.wave(30.0 * self.layer(x))


def told(net, *, before=None):
    def run():
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
        if before is not None:
            net.load_state_dict(before)
        for _ in range(3):
            x = 2 * torch.rand(64, 2) - 1
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

    return seen(run, WavesStacked)


def siren(bound, wave=torch.sin):
    torch.manual_seed(0)
    layers = [Sine(2, 64, bound=0.5, wave=wave), *(Sine(64, 64, bound=bound, wave=wave) for _ in range(2))]
    return nn.Sequential(*layers, nn.Linear(64, 1))


@pytest.mark.parametrize("wave", [torch.sin, torch.cos])
def test_phases_that_are_told_once(wave):
    (event,) = told(siren(None, wave))
    assert all(8 < phase < 16 for phase in event.phases)
    assert len(event.phases) == 2


def test_the_initialisation_of_siren():
    (event,) = told(siren(math.sqrt(6 / 64) / 30))
    assert event.phases == pytest.approx((1.0, 1.0), abs=0.2)


def test_loaded_weights():
    assert told(siren(None), before=siren(None).state_dict()) == []


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(Sine(2, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)),  # random Fourier features
        nn.Sequential(Sine(2, 64), nn.Linear(64, 1)),
        nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1)),
    ],
)
def test_sines_that_read_no_other(net):
    assert told(net) == []
