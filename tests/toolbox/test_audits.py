"""The two tables."""

from __future__ import annotations

import math

import pytest
import torch
from toolbox_state import everything, loop, same
from torch import nn

from flatline.toolbox import gradient_health, parameter_audit, supervised

cross_entropy = supervised(nn.functional.cross_entropy)


def test_audit_names_what_is_where():
    model = nn.ModuleDict({"body": nn.Linear(2, 3), "head": nn.Linear(3, 2), "extra": nn.Linear(1, 1)})
    model["body"].bias.requires_grad_(False)
    stale = torch.zeros(3, 2, requires_grad=True)
    groups = [
        {"params": model["body"].parameters(), "lr": 0.1, "weight_decay": 0.5},
        {"params": [model["head"].weight, stale]},
    ]
    audit = parameter_audit(model, torch.optim.SGD(groups, lr=0.2), torch.optim.Adam([model["head"].weight], lr=0.3))
    assert audit.frozen == audit.frozen_in_optimizer == ["body.bias"]
    assert audit.without_optimizer == ["head.bias", "extra.weight", "extra.bias"]
    assert audit.in_several_groups == ["head.weight"]
    assert audit.foreign == ((3, 2),)
    assert audit.towers == {"body": (9, 6), "head": (8, 8), "extra": (2, 2)}
    rows = {row.name: row for row in audit.rows}
    assert (rows["body.weight"].lr, rows["body.weight"].weight_decay) == (0.1, 0.5)
    assert (rows["head.weight"].lr, rows["head.weight"].groups) == (0.2, ((0, 1), (1, 0)))
    assert rows["extra.bias"].lr is None
    assert "19 parameters, 16 trainable" in str(audit)


def test_audit_of_a_sound_loop_and_of_nothing():
    model, optimizer, _ = loop()
    before = everything(model, optimizer)
    audit = parameter_audit(model, optimizer)
    assert (audit.without_optimizer, audit.foreign, audit.in_several_groups) == ([], (), [])
    assert sum(row.numel for row in audit.rows) == sum(p.numel() for p in model.parameters())
    assert same(before, everything(model, optimizer))
    assert str(parameter_audit(nn.Identity())) == "0 parameters, 0 trainable"


def test_near_miss_tied_weights_are_one_parameter():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    audit = parameter_audit(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert [row.name for row in audit.rows] == ["0.weight"]
    assert audit.in_several_groups == []


def test_health_agrees_with_autograd_and_clip_grad_norm():
    model, optimizer, batch = loop()
    model.drop.p = 0.0
    before = everything(model, optimizer)
    health = gradient_health(model, batch, cross_entropy)
    assert same(before, everything(model, optimizer))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    found = torch.autograd.grad(loss, list(trained.values()))
    assert [row.name for row in health.rows] == list(trained)
    assert [row.norm for row in health.rows] == pytest.approx([float(g.norm()) for g in found], rel=1e-5)
    assert [row.mean_abs for row in health.rows] == pytest.approx(
        [float(g[g != 0].abs().mean()) for g in found], rel=1e-5
    )
    for parameter, gradient in zip(trained.values(), found, strict=True):
        parameter.grad = gradient
    assert health.norm == pytest.approx(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)), rel=1e-5)
    assert health.loss == pytest.approx(loss.item())
    assert health.ok


def test_a_part_that_is_cut_off():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    health = gradient_health(model, torch.ones(1, 2), lambda m, x: m[1](m[0](x).detach()).square().sum())
    assert health.missing == ["0.weight", "0.bias"]
    assert not health.ok
    assert "no gradient" in str(health)


def test_gradients_that_vanish_in_sigmoids():
    layers = [part for _ in range(24) for part in (nn.Linear(8, 8), nn.Sigmoid())]
    torch.manual_seed(0)
    health = gradient_health(nn.Sequential(*layers), torch.randn(4, 8), lambda m, x: m(x).square().mean())
    assert "0.weight" in health.vanishing
    assert "46.weight" not in health.vanishing


def test_near_miss_a_head_of_zeros_and_a_loss_that_is_small_everywhere():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    nn.init.zeros_(model[2].weight)
    batch = torch.randn(6, 4), torch.arange(6) % 2
    health = gradient_health(model, batch, cross_entropy)
    assert (health.zero, health.vanishing, health.ok) == (["0.weight", "0.bias"], [], True)
    nn.init.normal_(model[2].weight)
    assert gradient_health(model, batch, lambda m, b: 1e-9 * cross_entropy(m, b)).ok


def test_near_miss_biases_before_norms_and_rare_rows_of_a_table():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))
    assert gradient_health(model, (torch.randn(8, 3, 8, 8), torch.arange(8) % 3), cross_entropy).ok
    table = nn.Sequential(nn.Embedding(200_000, 4), nn.Flatten(), nn.Linear(4, 3))
    assert gradient_health(table, (torch.arange(3)[:, None], torch.arange(3)), cross_entropy).ok


def test_gradients_that_explode_and_that_are_not_finite():
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    x = torch.ones(1, 2)
    assert gradient_health(model, x, lambda m, x: (1e5 * m[0](x) + m[1](x)).sum()).exploding == ["0.weight", "0.bias"]
    health = gradient_health(model, x, lambda m, x: (m[0](x) * math.inf + m[1](x)).sum())
    assert health.non_finite == ["0.weight", "0.bias"]


def test_near_miss_sparse_half_complex_and_frozen():
    table = nn.Embedding(5, 2, sparse=True)
    health = gradient_health(table, torch.tensor([1, 1, 2]), lambda m, x: m(x).sum())
    assert (health.rows[0].norm, health.rows[0].zeros) == (pytest.approx(math.sqrt(2 * 4 + 2)), pytest.approx(0.6))
    half = nn.Linear(2, 1).bfloat16()
    half.bias.requires_grad_(False)
    health = gradient_health(half, torch.ones(1, 2).bfloat16(), lambda m, x: m(x).sum())
    assert [row.name for row in health.rows] == ["weight"]
    wave = nn.Linear(2, 1, dtype=torch.complex64)
    assert gradient_health(wave, torch.ones(1, 2, dtype=torch.complex64), lambda m, x: m(x).abs().sum()).ok


def test_a_loss_without_a_graph_is_refused():
    model = nn.Linear(2, 1).requires_grad_(False)
    with pytest.raises(ValueError, match="nothing in it is trainable"):
        gradient_health(model, torch.ones(1, 2), lambda m, x: m(x).sum())
