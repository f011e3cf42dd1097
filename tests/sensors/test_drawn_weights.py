import pytest
import torch
from torch import nn

from flatline.sensors.drawn import drawn_alone

INITIALISED = {
    "normal": lambda weight: nn.init.normal_(weight, std=0.02),
    "uniform": lambda weight: nn.init.uniform_(weight, -0.1, 0.1),
    "Xavier": nn.init.xavier_normal_,
    "Kaiming": nn.init.kaiming_uniform_,
}


@pytest.mark.parametrize("name", INITIALISED)
def test_initialisers(name):
    torch.manual_seed(0)
    assert drawn_alone(INITIALISED[name](torch.empty(200, 16)))


def test_a_row_for_padding():
    torch.manual_seed(0)
    assert drawn_alone(nn.Embedding(100, 16, padding_idx=0).weight)


def test_near_miss_vectors_that_mean_something():
    torch.manual_seed(0)
    basis = torch.randn(8, 16)
    assert not drawn_alone(basis[torch.randint(0, 8, (200,))] + 0.5 * torch.randn(200, 16))


def test_near_miss_tails_direction_zeros_and_few():
    torch.manual_seed(0)
    assert not drawn_alone(torch.randn(200, 16) ** 3)
    assert not drawn_alone(torch.randn(200, 16) + 0.3)
    assert not drawn_alone(torch.zeros(200, 16))
    assert not drawn_alone(torch.randn(4, 4))
    assert not drawn_alone(torch.full((200, 16), torch.nan))
