"""Samples that are one and the same, or nearly so, under other targets."""

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss
from watching import seen

from flatline.events import SamplesAlike
from flatline.sensors.sameness import Sameness


def run(inputs, targets, loss, *, other=None):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(inputs[0].numel(), 2 if loss is cross_entropy else 1))
    net = net if other is None else Beside(net)

    def act():
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for at in range(0, 40 * 20, 20):
            rows = [each[at : at + 20] for each in (inputs, *([other] if other is not None else []))]
            optimizer.zero_grad()
            loss(net(*rows), targets[at : at + 20]).backward()
            optimizer.step()

    torch.manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(0.01)
    return seen(act, SamplesAlike)


class Beside(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, other):
        return self.net(x) + 0 * other.sum()


@pytest.fixture
def raw():
    torch.manual_seed(1)
    return torch.rand(800, 8)


def test_scaled_twice(raw):
    labels = (raw[:, 0] > raw[:, 1]).long()
    (event,) = run((raw / 255 - 0.45) / 0.2, labels, cross_entropy)
    assert 0.002 < event.spread < 0.006
    assert event.common == pytest.approx(2.25, abs=0.02)
    assert event.told > event.commonest + 0.2
    assert event.equal == 0
    assert run((raw - 0.45) / 0.2, labels, cross_entropy) == []


def test_cast_to_whole_numbers(raw):
    targets = raw.sum(1, keepdim=True) - 4
    lost = (raw + 0.02).floor() * 2 - 1
    (event,) = run(lost, targets, mse_loss)
    assert 0.7 < event.equal < 0.98
    assert event.value == -1
    assert 0.6 < event.left < 1
    assert run(lost, targets, mse_loss, other=raw) == []
    assert run(raw, targets, mse_loss) == []


def test_near_miss_empty_rows_have_one_target():
    torch.manual_seed(0)
    rows = torch.zeros(20, 6)
    rows[:4] = torch.randn(4, 6)
    same = Sameness()
    for _ in range(8):
        same.add(rows, [*range(1, 5), *([0] * 16)], rows.sum(1, keepdim=True))
    assert same.equal == 0.8
    assert same.left == 0
    assert same.enough


def test_near_miss_few_rows_few_numbers_and_no_common_one():
    same = Sameness()
    for rows in (torch.zeros(20, 2), torch.zeros(3, 8)):
        same = Sameness()
        for _ in range(8):
            same.add(rows, [0.0] * len(rows), torch.randn(len(rows), 1))
        assert not same.enough
    other = Sameness()
    for content in range(8):
        other.add(torch.full((20, 8), float(9 * content)), [float(content)] * 20, torch.randn(20, 1))
    assert other.equal == 0
