"""One batch by heart."""

from __future__ import annotations

import math

import pytest
import torch
from toolbox_state import everything, loop, same
from torch import nn

from flatline.toolbox import entropy_floor, overfit_one_batch, supervised
from flatline.toolbox.overfitting import classify

cross_entropy = supervised(nn.functional.cross_entropy)


def small(*, head=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, head)), (torch.randn(6, 4), torch.arange(6) % head)


@pytest.mark.parametrize("own", [True, False])
def test_memorises_and_restores(own):
    model, optimizer, batch = loop()
    before = everything(model, optimizer)
    result = overfit_one_batch(model, batch, cross_entropy, optimizer if own else None, lr=0.02)
    assert result.passed, str(result)
    assert "memorised" in str(result)
    assert same(before, everything(model, optimizer))


def test_losses_are_those_of_a_plain_loop():
    model, batch = small()
    result = overfit_one_batch(
        model, batch, cross_entropy, torch.optim.SGD(model.parameters(), 0.1), steps=10, target=0
    )
    optimizer, expected = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert result.losses == tuple(expected)


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_starts_at_ln_c_with_a_head_of_zeros(classes):
    model, batch = small(head=classes)
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    result = overfit_one_batch(model, batch, cross_entropy, lr=1e-2)
    assert result.losses[0] == pytest.approx({2: 0.693147, 10: 2.302585, 1000: 6.907755}[classes], rel=1e-5)
    assert result.passed


@pytest.mark.parametrize("layer", [nn.Dropout(0.9), nn.AlphaDropout(0.9)])
def test_dropout_is_off(layer):
    model, batch = small()
    assert overfit_one_batch(nn.Sequential(layer, model), batch, cross_entropy, lr=1e-2).passed
    assert layer.training


def test_dropout_inside_attention_and_recurrent_layers_is_off_and_comes_back():
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 8, num_layers=2, dropout=0.9)
    head = nn.Linear(8, 2)
    model = nn.ModuleList([lstm, head])
    batch = torch.randn(5, 4), torch.arange(5) % 2

    def loss_fn(model, batch):
        assert model[0].dropout == 0
        return nn.functional.cross_entropy(model[1](model[0](batch[0])[0]), batch[1])

    assert overfit_one_batch(model, batch, loss_fn, lr=1e-2).passed
    assert lstm.dropout == 0.9


def test_weight_decay_is_off():
    model, batch = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=50.0)
    assert overfit_one_batch(model, batch, cross_entropy, optimizer).passed
    assert optimizer.param_groups[0]["weight_decay"] == 50.0


def test_stuck_when_the_optimizer_holds_other_weights():
    model, batch = small()
    optimizer = torch.optim.Adam(small()[0].parameters(), lr=1e-2)
    result = overfit_one_batch(model, batch, cross_entropy, optimizer, steps=50)
    assert (result.verdict, result.passed) == ("stuck", False)
    assert "outside the optimizer" in str(result)


def test_plateau_when_labels_contradict_each_other():
    model, _ = small(head=2)
    x = torch.randn(1, 4).repeat(4, 1)
    result = overfit_one_batch(model, (x, torch.tensor([0, 0, 0, 1])), cross_entropy, lr=1e-2)
    assert result.verdict == "plateau"
    assert result.losses[-1] == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), abs=1e-3)


def test_oscillating_when_the_rate_is_too_high():
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    result = overfit_one_batch(model, None, lambda m, _: m.weight.abs().sum() + 0.3 * m.weight.sum() + 1, optimizer)
    assert result.verdict == "oscillating"


def test_non_finite_when_it_explodes():
    model, batch = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e20)
    assert overfit_one_batch(model, batch, cross_entropy, optimizer).verdict == "non-finite"


def test_near_miss_still_falling_is_not_stuck():
    model, batch = small()
    assert overfit_one_batch(model, batch, cross_entropy, steps=60).verdict == "falling"


def test_near_miss_soft_targets_have_a_floor():
    model, (x, _) = small()
    targets = torch.full((6, 3), 0.2)
    targets[torch.arange(6), torch.arange(6) % 3] = 0.6
    floor = entropy_floor(targets)
    assert floor == pytest.approx(-(0.6 * math.log(0.6) + 0.4 * math.log(0.2)))
    assert not overfit_one_batch(model, (x, targets), cross_entropy, lr=1e-2).passed
    assert overfit_one_batch(model, (x, targets), cross_entropy, lr=1e-2, floor=floor).passed


def test_near_miss_a_tiny_loss_must_fall_too():
    model, (x, _) = small()
    loss_fn = lambda model, batch: 1e-5 * (model(batch) - 1).square().mean()  # noqa: E731
    frozen = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    assert overfit_one_batch(model, x, loss_fn, frozen, steps=5).verdict == "stuck"
    assert overfit_one_batch(model, x, loss_fn, lr=1e-2).passed


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ([1.0, 0.5, 0.001], "memorised"),
        ([1.0] * 40, "stuck"),
        ([1.0, *[0.5] * 40], "plateau"),
        ([1.0 - i / 100 for i in range(80)], "falling"),
        ([1.0, *[0.3, 0.6] * 40], "oscillating"),
        ([1.0, math.inf], "non-finite"),
        ([1.0], "stuck"),
    ],
)
def test_classifies(losses, verdict):
    assert classify(losses, bar=0.01) == verdict


@pytest.mark.parametrize(
    ("loss_fn", "way_out"),
    [
        (lambda m, b: m(b[0]), "end it with .mean"),
        (lambda m, b: 3.0, "not float"),
        (lambda m, b: m(b[0]).mean().detach(), "the loss has no graph"),
        (lambda m, b: -m(b[0]).square().mean(), "pass floor="),
    ],
)
def test_bad_losses_are_refused_and_nothing_is_changed(loss_fn, way_out):
    model, batch = small()
    before = everything(model)
    with pytest.raises(ValueError, match=way_out):
        overfit_one_batch(model, batch, loss_fn)
    assert same(before, everything(model))


def test_a_rate_of_zero_is_refused():
    model, batch = small()
    with pytest.raises(ValueError, match="pass lr="):
        overfit_one_batch(model, batch, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.0))


def test_a_model_that_is_all_frozen_is_refused():
    model, batch = small()
    with pytest.raises(ValueError, match="nothing in it is trainable"):
        overfit_one_batch(model.requires_grad_(False), batch, cross_entropy)


def test_works_under_no_grad():
    model, batch = small()
    with torch.no_grad():
        assert overfit_one_batch(model, batch, cross_entropy, lr=1e-2).passed


@pytest.mark.parametrize("targets", [torch.tensor([0, 1]), torch.ones(2, 3), torch.tensor([[1.5, -0.5]])])
def test_floor_of_what_is_no_probability(targets):
    with pytest.raises(ValueError, match=r"hard labels|softmax"):
        entropy_floor(targets)
