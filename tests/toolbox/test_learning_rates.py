"""The sweep of learning rates."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from toolbox_state import everything, loop, same
from torch import nn

from flatline.toolbox import lr_range_test, supervised

cross_entropy = supervised(nn.functional.cross_entropy)


class Point(nn.Module):
    def __init__(self, start=1.0):
        super().__init__()
        self.at = nn.Parameter(torch.tensor(start, dtype=torch.float64))


def bowl(model, curvature):
    return 0.5 * curvature * model.at**2


def test_losses_are_those_of_the_closed_form():
    """SGD on a x^2 / 2 multiplies x by 1 - lr a."""
    model, (low, high, steps) = Point(), (1e-3, 1.0, 30)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    result = lr_range_test(model, optimizer, [2.0], bowl, start_lr=low, end_lr=high, steps=steps, smoothing=0.5)
    lrs = [low * math.exp(math.log(high / low) * i / (steps - 1)) for i in range(steps)]
    x = list(itertools.accumulate(lrs, lambda x, lr: x * (1 - 2 * lr), initial=1.0))[:steps]
    assert result.lrs == pytest.approx(lrs)
    assert result.losses == pytest.approx([v * v for v in x])
    shares = [[0.5 ** (t - i) for i in range(t + 1)] for t in range(steps)]
    smooth = [sum(w * v * v for w, v in zip(ws, x, strict=False)) / sum(ws) for ws in shares]
    assert result.smoothed == pytest.approx(smooth)
    assert result.suggestion == pytest.approx(lrs[smooth.index(min(smooth))] / 10)


def test_curve_is_that_of_torch_lr_finder():
    finder = pytest.importorskip("torch_lr_finder")
    torch.manual_seed(0)
    model, other = nn.Linear(4, 3), nn.Linear(4, 3)
    other.load_state_dict(model.state_dict())
    data = torch.utils.data.TensorDataset(torch.randn(40, 4), torch.arange(40) % 3)
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    theirs = finder.LRFinder(other, torch.optim.Adam(other.parameters(), lr=1e-5), nn.CrossEntropyLoss(), device="cpu")
    theirs.range_test(loader, end_lr=10, num_iter=50, smooth_f=0, diverge_th=1e9)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    settings = {"start_lr": 1e-5, "end_lr": 10, "steps": 50, "smoothing": 0.0, "diverge": 1e9}
    ours = lr_range_test(model, optimizer, loader, cross_entropy, **settings)
    assert list(ours.losses) == theirs.history["loss"]
    assert list(ours.lrs) == pytest.approx(theirs.history["lr"])


def test_suggests_a_rate_that_trains_and_restores():
    model, optimizer, batch = loop()
    before = everything(model, optimizer)
    result = lr_range_test(model, optimizer, [batch], cross_entropy)
    assert result.suggestion is not None
    assert 1e-5 < result.suggestion < 1
    assert "a decade below" in str(result)
    assert len(result.lrs) == len(result.losses) == len(result.smoothed) <= 100
    assert same(before, everything(model, optimizer))


def test_stops_when_it_diverges():
    model = Point()
    result = lr_range_test(model, torch.optim.SGD(model.parameters(), lr=1.0), [4.0], bowl, smoothing=0.0)
    assert len(result.lrs) < 100
    assert result.losses[-1] > 4 * min(result.losses)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_stops_at_a_loss_that_is_not_finite(bad):
    model = Point()
    batches = [1.0, 1.0, bad, 1.0]
    result = lr_range_test(model, torch.optim.SGD(model.parameters(), lr=1.0), batches, bowl, start_lr=0.1, end_lr=0.2)
    assert len(result.losses) == 3
    assert not math.isfinite(result.losses[-1])


def test_groups_keep_their_ratios():
    model, other, seen = Point(), Point(), []
    groups = [{"params": [model.at], "lr": 0.1}, {"params": [other.at], "lr": 0.01}]
    optimizer = torch.optim.SGD(groups)

    def watched(model, batch):
        seen.append([group["lr"] for group in optimizer.param_groups])
        return bowl(model, batch) + bowl(other, batch)

    lr_range_test(model, optimizer, [1.0], watched, steps=5, end_lr=0.1)
    assert [b / a for a, b in seen] == pytest.approx([0.1] * 5)
    assert seen[-1][0] == pytest.approx(0.1)
    assert (model.at.item(), other.at.item()) == (1.0, 1.0)


def test_rates_that_are_tensors():
    model = Point()
    rate = torch.tensor(1e-3)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=False, foreach=False)
    lr_range_test(model, optimizer, [1.0], bowl, steps=5, end_lr=1.0)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(1e-3)


def test_near_miss_pure_noise_gives_no_suggestion():
    model, batch = nn.Linear(4, 3), (torch.randn(8, 4), torch.arange(8) % 3)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    result = lr_range_test(model, optimizer, [batch], cross_entropy)
    assert result.suggestion is None
    assert "overfit one batch first" in result.reason


def test_near_miss_a_generator_that_ends():
    model = Point()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ValueError, match="pass a DataLoader or a list"):
        lr_range_test(model, optimizer, (c for c in (1.0, 1.0)), bowl)
    assert model.at.item() == 1.0


@pytest.mark.parametrize("bad", [{"start_lr": 0.0}, {"start_lr": 2.0, "end_lr": 1.0}, {"steps": 1}, {"smoothing": 1.0}])
def test_bad_ranges(bad):
    model = Point()
    with pytest.raises(ValueError, match="need 0 < start_lr < end_lr"):
        lr_range_test(model, torch.optim.SGD(model.parameters(), lr=1.0), [1.0], bowl, **bad)
