"""Reading Python source: models and settings by their names, losses that other functions send backward, means of one's own."""

from __future__ import annotations

from functools import partial

import pytest
from parsed import kinds_in, parsed

HEAD = """import argparse, timm, torch
from torch import nn
import torch.nn.functional as F
from collections import defaultdict
from contextlib import nullcontext
from transformers import AutoModelForSequenceClassification
"""
event_of, kinds = partial(parsed, HEAD), partial(kinds_in, HEAD)
PLAIN = "model = nn.Linear(8, 3)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"

BUILT = """class CFG:
    name = "resnet34"
    other = "vit_base_patch16_224"
{more}
def build(name):
    return timm.create_model(name, num_classes=3)
model = {model}
model.eval()
"""


@pytest.mark.parametrize(
    ("model", "more", "expected"),
    [
        ("build(CFG.name)", "", "BatchNorm"),
        ("timm.create_model('tf_efficientnet_b0_ns', drop_rate=0.0)", "", "BatchNorm"),
        ("AutoModelForSequenceClassification.from_pretrained('bert-base-uncased')", "", "Dropout"),
        ("build(CFG.other)", "", ""),
        ("build(CFG.name)", "CFG.name = given()", ""),
        ("build(CFG.name)", "setattr(CFG, 'name', given())", ""),
        ("timm.create_model('resnet50', norm_layer=nn.Identity)", "", ""),
        ("AutoModelForSequenceClassification.from_pretrained('bert-base-uncased', hidden_dropout_prob=0.0)", "", ""),
        ("AutoModelForSequenceClassification.from_pretrained(path)", "", ""),
    ],
)
def test_models_by_name(model, more, expected):
    train = "opt = torch.optim.SGD(model.parameters(), 0.1)\nfor x, y in data:\n    model(x).sum().backward()\n    opt.step()\n"
    loops = event_of(BUILT.format(model=model, more=more) + train).loops
    modes = {t.modes for loop in loops for path in loop.paths for t in path if t.kind == "eval"}
    assert modes == {expected}


CRITERION = """class Criterion(nn.Module):
    def __init__(self, w=0.5):
        super().__init__()
        self.ce, self.w, self.parts = nn.CrossEntropyLoss(), w, 4
    def forward(self, x, y):
        other = 1 - (x.softmax(1) * F.one_hot(y, 3)).sum(1)
        return {value}
criterion = Criterion()
for i, (x, y) in enumerate(data):
    {loss}
    loss.backward()
    if i % 4 == 3:
        opt.step()
        opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("value", "loss", "expected"),
    [
        ("self.w * self.ce(x, y) + (1 - self.w) * other.mean()", "loss = criterion(model(x), y)", True),
        ("other.mean()", "loss = criterion(model(x), y)", True),
        ("other", "loss = F.cross_entropy(model(x), y) + 0.1 * F.mse_loss(model(x), y)", True),
        ("1 - torch.mean(other)", "loss = criterion(model(x), y)", True),
        ("(other / self.parts).mean()", "loss = criterion(model(x), y)", False),
        ("other.mean()", "loss = criterion(model(x), y) / 4", False),
        ("other.sum()", "loss = criterion(model(x), y)", False),
        ("other.mean(1)", "loss = criterion(model(x), y)", False),
        ("0.25 * self.ce(x, y) + 0.25 * other.mean()", "loss = criterion(model(x), y)", False),
    ],
)
def test_means_of_ones_own(value, loss, expected):
    loops = event_of(PLAIN + CRITERION.format(value=value, loss=loss)).loops
    means = {t.mean for loop in loops for path in loop.paths for t in path if t.kind == "backward"}
    assert means == {expected}


KEPT = """def losses_of(batch):
    x, y = batch
    ce = F.cross_entropy(model(x), y)
    return {"ce": ce, "total": ce + model(x).pow(2).mean()}
def optimise(losses, other):
    opt.zero_grad()
    losses["total"].backward()
    opt.step()
class History:
    def __init__(self):
        self.reset()
        self.data = defaultdict(list)
    def reset(self):
        self.sum = 0.0
    def add(self, value):
        self.sum += value
    def push(self, **values):
        for name, value in values.items():
            self.data[name].append(value)
history, curve = History(), []
def step(batch):
    losses = losses_of(batch)
    other = losses_of(batch)
    CHANGE
    optimise(losses, other)
    KEEP
for epoch in range(9):
    for batch in data:
        step(batch)
    AFTER
"""


@pytest.mark.parametrize(
    ("change", "keep", "after", "expected"),
    [
        ("", "history.push(**losses)", "", True),
        ("", "curve.append(losses['total'])", "", True),
        ("", "history.add(losses['total'])", "", True),
        ("", "history.push(**other)", "", False),
        ("", "curve.append(losses['ce'])", "", False),
        ("", "curve.append(losses['total'].item())", "", False),
        ("", "curve.append(losses['total'])", "curve.clear()", False),
        ("", "history.add(losses['total'])", "history.reset()", False),
        ("losses['x'] = 1.0", "history.push(**losses)", "", False),
    ],
)
def test_what_another_function_sends_backward_is_kept(change, keep, after, expected):
    code = KEPT.replace("CHANGE", change or "pass").replace("KEEP", keep).replace("AFTER", after or "pass")
    assert ("kept" in kinds(PLAIN + code)) is expected


HALF = """parser = argparse.ArgumentParser()
parser.add_argument("--no-amp", action="store_true")
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
AMP = False
cast = {cast}
def compute(x, y):
    with cast:
        out = model(x)
        return out, F.cross_entropy(out, y)
for x, y in data:
    opt.zero_grad()
    out, loss = compute(x, y)
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("cast", "expected"),
    [
        ("torch.autocast('cuda', dtype=torch.float16, enabled=not args.no_amp)", True),
        ("torch.autocast('cuda', dtype=torch.float16) if torch.cuda.is_available() else nullcontext()", True),
        ("torch.autocast('cuda', dtype=torch.float16, enabled=torch.cuda.is_available())", True),
        ("torch.autocast('cuda', dtype=torch.float16, enabled=args.amp)", True),
        ("torch.autocast('cuda', dtype=torch.float16, enabled=AMP)", False),
        ("torch.autocast('cuda', enabled=args.amp)", False),
        ("torch.autocast('cuda', dtype=torch.bfloat16, enabled=not args.no_amp)", False),
        ("torch.autocast('cuda', dtype=torch.float16) if wanted() else nullcontext()", False),
    ],
)
def test_autocast_behind_a_switch(cast, expected):
    assert ("half" in kinds(PLAIN + HALF.format(cast=cast))) is expected
