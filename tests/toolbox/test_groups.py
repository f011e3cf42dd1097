"""Groups, freezing and unfreezing."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from flatline.toolbox import freeze, param_groups, unfreeze


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((2, 4))
        self.mix = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.mix(self.norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.head = nn.Linear(4, 10)


def settings(groups):
    return {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}


def test_groups_follow_the_published_rules():
    """nanoGPT's rule of dimensions, and BEiT's list of layer rates, both written down anew."""
    model = Model()
    layers = [model.embed, *model.blocks]
    found = settings(param_groups(model, 0.1, weight_decay=0.3, layers=layers, layer_decay=0.5))
    depth = 3
    beit = [0.5 ** (depth + 1 - i) for i in range(depth + 2)]
    for name, parameter in model.named_parameters():
        layer = 0 if name.startswith("embed") else depth + 1 if name.startswith("head") else int(name.split(".")[1]) + 1
        decay = 0.3 if parameter.dim() >= 2 and ".norm." not in name else 0.0
        assert found[id(parameter)] == (pytest.approx(0.1 * beit[layer]), decay), name
    assert len(found) == len(list(model.parameters()))


def test_each_parameter_once_and_frozen_ones_never():
    model = Model()
    model.head.weight = nn.Parameter(model.embed.weight.detach())
    model.head.weight = model.embed.weight
    model.blocks[0].requires_grad_(False)
    groups = param_groups(model, 0.1, no_decay=["embed"])
    held = [p for group in groups for p in group["params"]]
    assert len(held) == len({id(p) for p in held}) == sum(p.requires_grad for p in model.parameters())
    assert settings(groups)[id(model.embed.weight)] == (0.1, 0.0)
    assert [group["name"] for group in groups] == ["rest, no decay", "rest, decay"]
    torch.optim.AdamW(groups)


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        (lambda m: (m.requires_grad_(False), []), "call unfreeze"),
        (lambda m: (m, [nn.Linear(1, 1)]), "not a part of the model"),
        (lambda m: (m, [m.blocks, m.blocks[1]]), "list each part once"),
    ],
)
def test_bad_groups(arguments, way_out):
    model, layers = arguments(Model())
    with pytest.raises(ValueError, match=way_out):
        param_groups(model, 0.1, layers=layers)


def body_and_head():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    return nn.Sequential(body, nn.Linear(4, 2))


def train(model, optimizer, steps=3):
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).square().sum().backward()
        optimizer.step()


def state_of(module):
    return copy.deepcopy(module.state_dict())


def equal(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    "kind", [lambda p: torch.optim.AdamW(p, weight_decay=0.5), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)]
)
def test_frozen_is_frozen_in_all_three_ways(kind):
    model = body_and_head()
    optimizer = kind(model.parameters())
    train(model, optimizer)
    freeze(model[0], optimizer)
    before, head = state_of(model[0]), state_of(model[1])
    train(model, optimizer)
    assert equal(before, state_of(model[0]))
    assert not equal(head, state_of(model[1]))
    assert len(optimizer.state) == len(optimizer.state_dict()["state"]) == 2


def test_requires_grad_alone_would_not_be_enough():
    model = body_and_head()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer)
    model[0].requires_grad_(False)
    before = state_of(model[0])
    train(model, optimizer)
    assert not equal(before, state_of(model[0]))


def test_unfrozen_is_as_before():
    model = body_and_head()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    order = [id(p) for p in optimizer.param_groups[0]["params"]]
    freeze(model[0], optimizer)
    freeze(model[0], optimizer)
    unfreeze(model[0], optimizer)
    unfreeze(model[0], optimizer)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == order
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    before = state_of(model[0])
    train(model, optimizer)
    after = state_of(model[0])
    assert not any(torch.equal(before[name], after[name]) for name in before)


def test_unfrozen_with_a_rate_of_its_own():
    model = body_and_head()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    freeze(model[0], optimizer)
    unfreeze(model[0], optimizer, lr=1e-3)
    assert [(group["lr"], len(group["params"])) for group in optimizer.param_groups] == [(0.1, 2), (1e-3, 6)]


def test_an_optimizer_built_for_the_head_gets_the_body():
    model = body_and_head()
    freeze(model[0])
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    unfreeze(model[0], optimizer)
    assert len(optimizer.param_groups[0]["params"]) == 8


def test_schedulers_keep_working():
    model = body_and_head()
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[1].parameters()}], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    freeze(model[0], optimizer)
    train(model, optimizer, 1)
    scheduler.step()
    unfreeze(model[0], optimizer)
    train(model, optimizer, 1)
    scheduler.step()
    assert [len(group["params"]) for group in optimizer.param_groups] == [6, 2]


def test_a_frozen_model_can_be_saved_and_copied():
    model = body_and_head()
    freeze(model[0])
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        before = state_of(other[0])
        train(other, torch.optim.SGD(other[1].parameters(), lr=0.1))
        assert equal(before, state_of(other[0]))


def test_near_miss_a_norm_alone_and_modes_around():
    model = body_and_head()
    freeze(model[0][1])
    unfreeze(model[0][1])
    assert model[0][1].training
    model.eval()
    freeze(model)
    unfreeze(model)
    assert not model[0][1].training


def test_near_miss_dropout_and_norms_without_statistics_stay():
    model = nn.Sequential(nn.Dropout(), nn.LayerNorm(3), nn.BatchNorm1d(3, track_running_stats=False))
    freeze(model)
    assert all(module.training for module in model.modules())
