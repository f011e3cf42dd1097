"""Reading Python source: what a tensor is behind a loop over layers."""

from __future__ import annotations

from functools import partial

import pytest
from parsed import parsed

HEAD = """import torch
from torch import nn
import torch.nn.functional as F
"""
event_of = partial(parsed, HEAD)

NET = """
class Net(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:]))
        self.norms = nn.ModuleList(nn.LayerNorm(b) for b in sizes[1:])
        self.depth = len(self.layers)
    def forward(self, x):
        for {each}:
            {body}
        {after}
        return x
out = Net([4, 8, 3])(x)
loss = {loss}
"""
COUNTED = "i, layer in enumerate(self.layers)"
BUT_LAST = "x = layer(x)\n            if {}:\n                x = F.softmax(x, dim=1)"


def fed(each, body, after="pass", loss="F.nll_loss(out, y)"):
    return [loss.fed_by for loss in event_of(NET.format(each=each, body=body, after=after, loss=loss)).losses]


@pytest.mark.parametrize(
    ("each", "body", "expected"),
    [
        (COUNTED, BUT_LAST.format("i < len(self.layers) - 1"), ["linear"]),
        (COUNTED, BUT_LAST.format("i != self.depth - 1"), ["linear"]),
        (COUNTED, BUT_LAST.format("i + 1 < self.depth"), ["linear"]),
        ("layer in self.layers", "x = torch.sigmoid(layer(x))", ["sigmoid"]),
        (
            "layer, norm in zip(self.layers, self.norms)",
            "x = norm(x)\n            x = F.softmax(layer(x), 1)",
            ["softmax"],
        ),
        (COUNTED, BUT_LAST.format("i > 0"), []),
        (COUNTED, BUT_LAST.format("i == self.depth - 1"), []),
        (COUNTED, BUT_LAST.format("self.training"), []),
        ("i in range(self.times)", "x = F.softmax(x, 1)", []),
        ("layer in self.layers[:-1]", "x = F.softmax(layer(x), 1)", []),
    ],
)
def test_the_last_turn_over_layers(each, body, expected):
    assert fed(each, body) == expected


def test_what_comes_behind_the_loop_counts():
    assert fed("layer in self.layers", "x = layer(x)", "x = F.log_softmax(x, dim=1)") == ["log_softmax"]
    assert fed("layer in self.layers", "x = layer(x)", "if self.training:\n            x = F.softmax(x, 1)") == []
