"""Training and validation inputs that were each scaled by themselves."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from watching import seen, two_passes

from flatline.events import ScaledApart
from flatline.sensors.scaled_apart import own_scale

RAW = torch.randn(300, 5, generator=torch.Generator().manual_seed(0)) * 9 + 4
OTHERS = torch.randn(200, 5, generator=torch.Generator().manual_seed(1)) * 3 + 7


def scaled(x, by=None):
    by = x if by is None else by
    return (x - by.mean(0)) / by.std(0)


def learned(train, held_out):
    net = nn.Linear(5, 1)
    two_passes(net, train, held_out)


def lists(train, held_out):
    batch, part = train[:100], held_out[:100]
    learned(iter([batch] * 6), iter([part] * 2))


def tensors(train, held_out):
    learned(train.split(50), held_out.split(100))


def arrays(train, held_out):
    x, z = train.numpy().astype("float64"), held_out.numpy().astype("float64")
    learned([torch.tensor(x[i : i + 50], dtype=torch.float32) for i in range(0, 300, 50)], [torch.tensor(z).float()])


def loaders(train, held_out):
    sets = TensorDataset(train), TensorDataset(held_out)
    one, other = DataLoader(sets[0], 50, shuffle=True), DataLoader(sets[1], 100)
    learned((x for _ in range(2) for (x,) in one), (x for (x,) in other))


@pytest.mark.parametrize("feed", [tensors, arrays, loaders, lists])
def test_each_by_its_own(feed):
    (event,) = seen(lambda: feed(scaled(RAW), scaled(OTHERS)), ScaledApart)
    assert (event.rows, event.validation_rows, event.groups) == (300, 200, 5)


@pytest.mark.parametrize("feed", [tensors, loaders])
def test_near_miss_by_the_training_rows(feed):
    assert seen(lambda: feed(scaled(RAW), scaled(OTHERS, RAW)), ScaledApart) == []
    assert seen(lambda: feed(scaled(RAW), scaled(RAW.flip(1)[:200], RAW)), ScaledApart) == []


def test_near_miss_all_rows_together_and_then_divided():
    rows = scaled(torch.cat([RAW, OTHERS]))
    assert seen(lambda: tensors(rows[:300], rows[300:]), ScaledApart) == []


def test_near_miss_a_look_at_the_training_rows():
    assert seen(lambda: tensors(scaled(RAW), scaled(RAW)[:200]), ScaledApart) == []


def test_own_scale():
    pictures = torch.randn(80, 3, 4, 4) * 7 + 2
    channels = (pictures - pictures.mean((0, 2, 3), keepdim=True)) / pictures.std((0, 2, 3), keepdim=True)
    assert own_scale(channels) == 3
    assert own_scale((pictures - pictures.mean()) / pictures.std()) == 1
    assert own_scale(torch.randn(2000, 4)) == own_scale(pictures) == 0
    rows = torch.randn(200, 9)
    assert own_scale((rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True)) == 0


@pytest.mark.parametrize("unbiased", [False, True])
def test_near_miss_each_row_by_itself(unbiased):
    series = torch.randn(200, 64).cumsum(1)
    own = (series - series.mean(1, keepdim=True)) / series.std(1, keepdim=True, unbiased=unbiased)
    assert own_scale(own) == own_scale(own.unsqueeze(1)) == 0
