import pytest
import torch
from test_probes import asked
from torch import nn

from flatline.events import PaddingProbed
from flatline.preflight.padded import filled_tail, told_tail
from flatline.preflight.probes import Known

ROWS, LENGTH, WIDTH = 32, 20, 3


@pytest.fixture
def series():
    """Rows of numbers that are filled up with zeros, and how long each is."""
    torch.manual_seed(0)
    lengths = torch.randint(6, LENGTH, (ROWS,))
    real = (torch.arange(LENGTH) < lengths[:, None]).float()
    return torch.randn(ROWS, LENGTH, WIDTH) * real[..., None], lengths, real


class Recurrent(nn.Module):
    """What is made of series of numbers, with and without regard to their lengths."""

    def __init__(self, how):
        super().__init__()
        self.how, self.rnn, self.head = how, nn.GRU(WIDTH, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x, told):
        lengths = told if told.dim() == 1 else told.sum(1).long()
        return self.head(getattr(self, self.how)(x, lengths))

    def last(self, x, lengths):
        return self.rnn(x)[1][-1]

    def trimmed(self, x, lengths):
        return self.rnn(x[:, : int(lengths.max())])[1][-1]

    def mean(self, x, lengths):
        return self.rnn(x)[0].mean(1)

    def packed(self, x, lengths):
        parts = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.rnn(parts)[1][-1]

    def gathered(self, x, lengths):
        made = self.rnn(x[:, : int(lengths.max())])[0]
        return made[torch.arange(len(x)), lengths - 1]

    def masked(self, x, lengths):
        made = self.rnn(x)[0]
        real = torch.arange(x.shape[1]) < lengths[:, None]
        return (made * real[..., None]).sum(1) / lengths[:, None]


@pytest.mark.parametrize("told", [1, 2], ids=["lengths", "mask"])
@pytest.mark.parametrize("how", ["last", "trimmed", "mean"])
def test_padding_of_numbers_counts(series, how, told):
    probed = asked(Recurrent(how), series[0], series[told], kind=PaddingProbed)
    assert probed.proven
    assert probed.spread.effect > 0.1
    assert probed.recurrent or probed.half > 0.05 * probed.spread.effect


@pytest.mark.parametrize("told", [1, 2], ids=["lengths", "mask"])
@pytest.mark.parametrize("how", ["packed", "gathered", "masked"])
def test_near_miss_padding_of_numbers_is_left_out(series, how, told):
    assert asked(Recurrent(how), series[0], series[told], kind=PaddingProbed).spread.effect < 1e-3


def test_near_miss_positions_and_sizes_that_cutting_moves(series):
    class Even(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(WIDTH + 1, 2)

        def forward(self, x, real):
            place = torch.linspace(0, 1, x.shape[1])[None, :, None].expand(len(x), -1, 1)
            return self.head(torch.cat([x, place], 2) * real[..., None]).sum(1) / x.shape[1]

    assert asked(Even(), series[0], series[2], kind=PaddingProbed).spread.effect < 1e-3


def test_series_that_the_script_filled_up(series):
    class Alone(Recurrent):
        def forward(self, x):
            return self.head(self.last(x, None))

    known = Known(padded={(ROWS, LENGTH, WIDTH)})
    assert asked(Alone("last"), series[0], known=known, kind=PaddingProbed).proven
    assert "padding: no sequence has any at its end" in asked(Alone("last"), series[0])


def test_near_miss_numbers_that_count_something_else(series):
    x, lengths, _ = series
    assert told_tail(x, [torch.randint(0, 9, (ROWS,))]) is None
    assert told_tail(x, [lengths + 1 - 2 * (torch.arange(ROWS) % 2)]) is None
    assert told_tail(torch.zeros_like(x), [lengths]) is None
    assert told_tail(torch.randn_like(x), [lengths]) is None


def test_near_miss_marks_with_holes(series):
    x, _, _ = series
    assert told_tail(x, [(torch.rand(ROWS, LENGTH) < 0.5).float()]) is None


def test_near_miss_series_of_one_length():
    x = torch.randn(ROWS, LENGTH, WIDTH)
    assert filled_tail(x) is None
    x[:, -3:] = 0
    assert filled_tail(x) is None


def test_near_miss_samples_that_are_compared_with_each_other(series):
    class Pairs(Recurrent):
        def forward(self, x, told):
            made = super().forward(x, told)
            return made @ made.mT

    said = asked(Pairs("masked"), series[0], series[1])
    assert "padding: no output can be compared without it" in said
