"""A code for a missing number, among the targets of a squared error."""

import pytest
import torch
from torch.nn.functional import mse_loss, smooth_l1_loss
from watching import seen

from flatline.events import MissingTaught
from flatline.sensors.sentinels import is_code


def plain(answers, targets):
    return mse_loss(answers, targets)


def by_hand(answers, targets):
    return ((answers - targets) ** 2).mean()


def picked(answers, targets):
    kept = targets > -900
    return mse_loss(answers[kept], targets[kept])


def masked(answers, targets):
    kept = (targets > -900).float()
    return (mse_loss(answers, targets, reduction="none") * kept).sum() / kept.sum()


def masked_by_hand(answers, targets):
    return ((answers - targets) ** 2 * (targets > -900)).mean()


def learned(loss, *, code=-999.0, share=0.1, targets=lambda x: x[:, :1].sin()):
    def act():
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
        for _ in range(12):
            x = torch.randn(32, 4)
            y = torch.where(torch.rand(32, 1) < share, torch.full((32, 1), code), targets(x))
            optimizer.zero_grad()
            loss(net(x), y).backward()
            optimizer.step()

    return seen(act, MissingTaught)


@pytest.mark.parametrize("loss", [plain, by_hand])
@pytest.mark.parametrize("code", [-999.0, 9999.0, -99.9])
def test_a_code_that_the_loss_counts(loss, code):
    (event,) = learned(loss, code=code)
    assert event.code == pytest.approx(code)
    assert event.times >= 2
    assert -1.0 <= event.low < event.high <= 1.0


@pytest.mark.parametrize("loss", [picked, masked, masked_by_hand, smooth_l1_loss])
def test_near_miss_the_loss_leaves_it_out_or_bounds_it(loss):
    assert learned(loss) == []


@pytest.mark.parametrize(
    "targets",
    [
        lambda x: x[:, :1] * 1000,  # as far out as others
        lambda x: x[:, :1].abs().round(),  # counts
        lambda x: x[:, :1].mul(0.0),
    ],
)
def test_near_miss_other_targets(targets):
    assert learned(plain, targets=targets) == []


def test_near_miss_the_others_lie_far_from_the_first_answers():
    assert learned(masked, targets=lambda x: 285 + 9 * x[:, :1].sin()) == []


def test_near_miss_a_reward():
    assert learned(plain, code=-100.0) == []


def test_what_is_a_code():
    assert all(map(is_code, (-999.0, 9999.0, -99.0, -32768.0, -999.25, 99999.0)))
    assert not any(map(is_code, (-9.0, -100.0, 1000.0, 99.5, 0.999, 998.0)))
