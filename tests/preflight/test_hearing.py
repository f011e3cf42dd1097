"""What a loss cannot fall below, against the loss of the best scores there are."""

import math

import pytest
import torch
from torch.nn import functional

from flatline.preflight.hearing import Loss

torch.manual_seed(0)
CLASSES = torch.randint(0, 7, (40,))
SHARES = torch.softmax(torch.randn(40, 7), 1)
GREY = torch.rand(40, 5)


def best(shares):
    return shares.clamp(min=1e-30).log()


@pytest.mark.parametrize(
    ("name", "scores", "target", "settings"),
    [
        ("cross_entropy", best(torch.nn.functional.one_hot(CLASSES, 7) * 0.9 + 0.1 / 7), CLASSES, {"label_smoothing": 0.1}),
        ("cross_entropy", best(SHARES), SHARES, {}),
        ("cross_entropy", best(SHARES * 0.8 + 0.2 / 7), SHARES, {"label_smoothing": 0.2}),
        ("binary_cross_entropy_with_logits", torch.logit(GREY), GREY, {}),
        ("binary_cross_entropy", GREY, GREY, {}),
    ],
)  # fmt: skip
def test_the_best_scores_cost_the_floor(name, scores, target, settings):
    loss = Loss(name, scores, target, (), settings)
    assert loss.floor() == pytest.approx(float(loss.again(target)), rel=1e-4)
    assert loss.floor() > 0.1


def test_there_is_none_under_plain_classes_or_in_other_forms():
    scores = torch.randn(40, 7)
    assert Loss("cross_entropy", scores, CLASSES, (), {}).floor() == pytest.approx(0.0, abs=1e-6)
    assert Loss("cross_entropy", scores, SHARES, (), {"reduction": "sum"}).floor() == 0.0
    assert Loss("cross_entropy", scores, SHARES, (), {"weight": torch.ones(7)}).floor() == 0.0
    assert Loss("mse_loss", scores, scores, (), {}).floor() == 0.0


def test_a_loss_again_with_other_targets():
    scores = torch.zeros(40, 7)
    loss = Loss("cross_entropy", scores, CLASSES, (), {})
    assert float(loss.again(CLASSES.flip(0))) == pytest.approx(math.log(7))
    assert torch.equal(loss.again(CLASSES), functional.cross_entropy(scores, CLASSES))
