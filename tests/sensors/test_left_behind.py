"""Layers that a load from another model left at random, and that stay frozen so."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from watching import seen

from flatline.events import LayersLeftBehind
from flatline.sensors.left_behind import frozen_by_name


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.deep = True
        self.body = nn.Linear(6, 24)
        self.fc_mid = nn.Linear(24, 24)
        self.fc = nn.Linear(24, classes)

    def forward(self, x):
        h = self.body(x).relu()
        return self.fc(self.fc_mid(h).relu() if self.deep else h)


def train(net, classes):
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for _ in range(8):
        x = torch.randn(16, 6)
        optimizer.zero_grad()
        cross_entropy(net(x), x[:, :classes].argmax(1)).backward()
        optimizer.step()


def only_head(net):
    net.requires_grad_(False)
    net.fc.requires_grad_(True)


def by_hand(net, old):
    with torch.no_grad():
        net.fc_mid.weight.copy_(old.fc_mid.weight)


def learned(left_out, *, freeze=only_head, copied=False, then=None):
    def act():
        old, new = Net(4), Net(2)
        train(old, 4)
        state = {k: v.clone() if copied else v for k, v in old.state_dict().items() if left_out not in k}
        new.load_state_dict(state, strict=False)
        if then:
            then(new, old)
        freeze(new)
        train(new, 2)

    return seen(act, LayersLeftBehind)


@pytest.mark.parametrize("copied", [False, True])
def test_a_filter_that_leaves_out_more_than_the_head(copied):
    (event,) = learned("fc", copied=copied)
    assert (event.model, event.giver, event.layers) == ("Net", "Net", ("fc_mid",))
    assert (event.tensors, event.missing) == (6, 2)
    assert event.where.function == "act"


def test_near_miss_only_the_head_is_left_out():
    assert learned("fc.") == []


def test_near_miss_what_is_left_out_is_trained():
    assert learned("fc", freeze=lambda net: net.body.requires_grad_(False)) == []


@pytest.mark.parametrize(
    "then", [by_hand, lambda new, old: new.fc_mid.load_state_dict(old.fc_mid.state_dict())], ids=["by hand", "load"]
)
def test_near_miss_it_is_filled_later(then):
    assert learned("fc", then=then) == []


def test_near_miss_it_is_bypassed():
    assert learned("fc", then=lambda new, _: setattr(new, "deep", False)) == []


@pytest.mark.parametrize(
    "line",
    [
        "net.body.requires_grad_(False); net.proj.requires_grad_(False)",
        "for p in net.proj.parameters():\n    p.requires_grad = False",
        "for n, p in net.named_parameters():\n    p.requires_grad = 'proj' not in n",
    ],
)
def test_near_miss_frozen_by_name(tmp_path, line):
    file = tmp_path / "script.py"
    file.write_text(line + "\n")
    assert frozen_by_name(str(file), "proj")
    assert not frozen_by_name(str(file), "body.proj")
    assert not frozen_by_name(str(file), "projector")
