"""Batches that a loop over numbers draws, layers cut off in classes above, and lines of notebooks that are no last ones."""

import json

import pytest
from parsed import kinds_in

from flatline.config import Config
from flatline.linting import Linter

HEAD = """
import torch, torchvision
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
"""

COUNTED = """
NUMBER = 4
net, data = nn.Linear(4, 2), torch.zeros(99, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
scaler = torch.amp.GradScaler("cuda")
def get_batch(source):
    places = torch.randint(len(source), (8,))
    return source[places], places % 2
def device():
    return next(net.parameters()).device
feed = iter([get_batch(data)])
for step in range(100):
    optimizer.zero_grad()
    x, y = get_batch(data)
    {above}
    for turn in range({count}):
        {drawn}
        loss = F.cross_entropy(net(x), y){kind}
        {back}
    {step}
"""
DRAWN, BACK, STEP = "x, y = get_batch(data)", "loss.backward()", "optimizer.step()"


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"count": "NUMBER"},
        {"drawn": "x, y = next(feed)"},
        {"drawn": "at = torch.randperm(99)[:8]; x, y = data[at], at % 2"},
        {"back": "scaler.scale(loss).backward()", "step": "scaler.step(optimizer)"},
    ],
)
def test_batches_that_are_drawn_one_by_one(changed):
    assert "micro mean" in counted(**changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"drawn": "pass"},
        {"drawn": "where = device()"},
        {"above": "at = torch.randperm(99)[:8]", "drawn": "x, y = data[at], at % 2"},
        {"count": "1"},
        {"count": "NUMBER_OF_TASKS", "above": "NUMBER_OF_TASKS = 4"},
        {"count": "unknown()"},
        {"kind": " / 4"},
        {"back": "(loss / 4).backward()"},
        {"back": "loss.backward(); optimizer.step()", "step": "pass"},
        {"back": "loss.backward(); optimizer.zero_grad()"},
    ],
)
def test_near_miss_batches_that_are_drawn_one_by_one(changed):
    assert "micro mean" not in counted(**changed)


def counted(above="pass", count="4", drawn=DRAWN, kind="", back=BACK, step=STEP):
    code = COUNTED.format(above=above, count=count, drawn=drawn, kind=kind, back=back, step=step)
    return kinds_in(HEAD, code)


def test_a_loss_that_a_model_returns_beside_none():
    code = COUNTED.replace("nn.Linear(4, 2)", "Net()", 1).replace("F.cross_entropy(net(x), y){kind}", "net(x, y)[1]")
    code = code.format(above="pass", count="4", drawn=DRAWN, back=BACK, step=STEP)
    assert "micro mean" in kinds_in(HEAD, NET + code)
    assert "micro mean" not in kinds_in(HEAD, NET.replace("scores, y)", "scores, y).sum()") + code)


NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)
    def forward(self, x, y=None):
        scores, loss = self.out(x), None
        if y is not None:
            loss = F.cross_entropy(scores, y)
        return scores, loss
"""

ABOVE = """
class Encodes:
    {head}
    def encode(self, x):
        return self.trunk(x)
class Base(Encodes, nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = self.make_trunk()
        self.out = nn.Linear(8, 2)
    def forward(self, x):
        return self.out({encoded})
"""
BELOW = """from base import Base
class Net(Base):
    def make_trunk(self):
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU())
"""
FITS = """from net import Net
def main(path):
    rows = torch.load(path)
    {more}
    loader = DataLoader(TensorDataset(rows["x"], rows["y"]), 8, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
main("a.pt")
"""


def above(head="@torch.no_grad()", encoded="self.encode(x)", more="size = rows['x'].shape[1]", net=BELOW):
    return kinds_in(HEAD, FITS.format(more=more), base=ABOVE.format(head=head, encoded=encoded), net=net)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"head": "@torch.inference_mode()"},
        {"more": "other = torchvision.models.resnet18(weights=None)"},
        {"more": "other = torchvision.models.resnet18(pretrained=False)"},
        {"more": "other = torchvision.models.resnet18(weights='DEFAULT')"},
        {"more": "load(rows['model'])"},
        {"more": "other = resnet(rows)"},
    ],
)
def test_layers_of_a_class_above_that_a_mixin_cuts_off(changed):
    assert "cut layer" in above(**changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"head": ""},
        {"encoded": "self.encode(x) + self.trunk(x)"},
        {"net": BELOW.replace("return nn", "self.trunk = load()\n        return self.trunk or nn")},
        {"net": BELOW.replace("nn.Linear(4, 8)", "pretrained(4, 8)")},
        {"net": BELOW + "    def encode(self, x):\n        return self.trunk(x) * 2\n"},
    ],
)
def test_near_miss_layers_of_a_class_above_that_a_mixin_cuts_off(changed):
    assert "cut layer" not in above(**changed)


CELL = """import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in [torch.zeros(2)]:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step{called}
{last}"""


@pytest.mark.parametrize(
    ("called", "last", "expected"), [("", "", 1), ("()", "", 0), ("()", "model.train", 0), ("", "model.eval", 1)]
)
def test_a_line_in_a_loop_of_a_notebook_is_not_shown(tmp_path, called, last, expected):
    source = CELL.format(called=called, last=last)
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [{"cell_type": "code", "source": source}]}))
    found = Linter(Config()).paths([str(tmp_path)]).findings
    assert [each.code for each in found] == ["O4"] * expected
