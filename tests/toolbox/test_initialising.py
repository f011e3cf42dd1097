"""Variances against the formulas, activations against what the theory says of deep chains."""

from __future__ import annotations

import math

import pytest
import torch
from toolbox_state import everything, loop, same
from torch import nn

from flatline.toolbox import check_activations, init_kaiming_, init_transformer_, init_xavier_, supervised

forward = lambda model, batch: model(batch)  # noqa: E731
cross_entropy = supervised(nn.functional.cross_entropy)


def parts():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(300, 500), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.Embedding(50, 40))


@pytest.mark.parametrize(
    ("scheme", "linear", "conv"),
    [
        (init_xavier_, 2 / (300 + 500), 2 / ((16 + 32) * 9)),
        (init_kaiming_, 2 / 300, 2 / (16 * 9)),
        (lambda m: init_kaiming_(m, nonlinearity="leaky_relu", negative_slope=1.0), 1 / 300, 1 / (16 * 9)),
        (lambda m: init_kaiming_(m, nonlinearity="linear"), 1 / 300, 1 / (16 * 9)),
        (lambda m: init_xavier_(m, gain=2.0), 8 / (300 + 500), 8 / ((16 + 32) * 9)),
    ],
)
def test_variances_follow_the_formula(scheme, linear, conv):
    model = parts()
    nn.init.constant_(model[2].weight, 7.0)
    table = model[3].weight.clone()
    assert scheme(model) is model
    assert model[0].weight.var().item() == pytest.approx(linear, rel=0.05)
    assert model[1].weight.var().item() == pytest.approx(conv, rel=0.05)
    assert not model[0].bias.any()
    assert model[2].weight.tolist() == [1.0] * 32
    assert torch.equal(model[3].weight, table)


def test_transformer_scheme():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256)
    model = nn.Sequential(
        nn.Embedding(100, 64, padding_idx=3), nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    )
    init_transformer_(model, residual=["out_proj", "linear2"])
    spread = {name: p.std().item() for name, p in model.named_parameters() if p.dim() == 2}
    for name, std in spread.items():
        ends = name.endswith(("out_proj.weight", "linear2.weight"))
        assert std == pytest.approx(0.02 / math.sqrt(12) if ends else 0.02, rel=0.1), name
    assert not model[0].weight[3].any()
    assert not model[1].layers[0].self_attn.in_proj_bias.any()
    named = init_transformer_(nn.Linear(500, 500), std=0.1)
    assert named.weight.std().item() == pytest.approx(0.1, rel=0.05)


def test_branches_can_be_counted_by_hand():
    model = nn.ModuleDict({"c_proj": nn.Linear(300, 300)})
    init_transformer_(model, residual=("c_proj",), branches=24)
    assert model["c_proj"].weight.std().item() == pytest.approx(0.02 / math.sqrt(24), rel=0.05)
    with pytest.raises(ValueError, match="see named_modules"):
        init_transformer_(model, residual=("down_proj",))


def chain(depth, activation, width=256):
    torch.manual_seed(0)
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), activation())]
    return nn.Sequential(*layers), torch.randn(64, width)


def test_kaiming_keeps_the_scale_of_a_deep_relu_chain_where_others_lose_it():
    model, x = chain(30, nn.ReLU)
    rows = check_activations(init_kaiming_(model), x, forward).rows
    assert check_activations(model, x, forward).ok
    assert rows[0].gain == pytest.approx(math.sqrt(2), rel=0.1)
    assert 0.3 < rows[-1].rms < 3
    assert "58" in check_activations(init_xavier_(model), x, forward).vanishing
    for part in model[::2]:
        nn.init.normal_(part.weight, std=0.2)
    assert "58" in check_activations(model, x, forward).exploding


def test_xavier_keeps_tanh_alive():
    model, x = chain(10, nn.Tanh)
    result = check_activations(init_xavier_(model), x, forward)
    assert result.ok
    assert result.rows[0].gain == pytest.approx(1.0, rel=0.1)
    for part in model[::2]:
        nn.init.normal_(part.weight, std=1.0)
    assert "1" in check_activations(model, x, forward).saturated


def test_numbers_are_those_of_the_tensors():
    model, x = chain(1, nn.ReLU)
    (linear, relu), out = check_activations(model, x, forward).rows, model(x).detach()
    assert (relu.mean, relu.rms) == (pytest.approx(out.mean().item()), pytest.approx(out.square().mean().sqrt().item()))
    assert relu.zeros == pytest.approx((out == 0).float().mean().item())
    assert linear.gain == pytest.approx((model[0](x).norm() / x.norm()).item(), rel=1e-4)


def test_dead_and_non_finite():
    model, x = chain(2, nn.ReLU)
    nn.init.constant_(model[0].bias, -100.0)
    assert check_activations(model, x, forward).dead == ["1"]
    x[0, 0] = math.nan
    assert check_activations(model, x, forward).non_finite[0] == "0"


def test_near_miss_a_head_that_starts_at_zero():
    model, x = chain(2, nn.ReLU)
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    assert "2" not in check_activations(model, x, forward).vanishing


def test_near_miss_a_transformer_at_its_start_is_sound():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, norm_first=True, batch_first=True)
    model = nn.Sequential(nn.Embedding(100, 64), nn.TransformerEncoder(layer, 8, enable_nested_tensor=False))
    init_transformer_(model, residual=["out_proj", "linear2"])
    assert check_activations(model, torch.randint(0, 100, (4, 16)), forward).ok


def test_restores():
    model, optimizer, batch = loop()
    before = everything(model, optimizer)
    check_activations(model, batch, cross_entropy)
    assert same(before, everything(model, optimizer))
    with pytest.raises(ValueError, match="must call the model"):
        check_activations(model, batch, lambda m, b: torch.zeros(()))
    assert not any(module._forward_hooks for module in model.modules())
