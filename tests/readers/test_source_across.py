"""Reading Python source: passes, models and optimizers that are in several files, and terms that are looked up."""

from __future__ import annotations

from functools import partial

import pytest
from parsed import kinds_in, parsed

HEAD = """import json, torch, torchaudio
import numpy as np
from safetensors.torch import load_file
from torch import nn
import torch.nn.functional as F
"""
event_of, kinds = partial(parsed, HEAD), partial(kinds_in, HEAD)

# --------------------------------------------------------------------------- modes

ENGINE = """class Engine:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
    def run(self, x):
        return self.model(x)
    def train(self, loader):
        self.model.train()
        for x, y in loader:
            loss = F.cross_entropy(self.run(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
    def validate(self, loader):
        {first}
        with torch.inference_mode():
            for x, y in loader:
                right = (self.run(x).argmax(1) == y).sum()
    {more}
"""
NETS = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.drop = nn.Linear(8, 3), nn.Dropout({rate})
    def forward(self, x):
        return self.body(self.drop(x))
"""
MAIN = """from train import Engine
from nets import Net
import callbacks
model = Net()
engine = Engine(model, torch.optim.SGD({held}.parameters(), lr=0.1))
for epoch in range(3):
    engine.train(loader)
    {before}
    engine.validate(other)
"""
ACROSS = {"first": "pass", "more": "pass", "rate": "0.5", "held": "model", "before": "pass", "callbacks": "pass"}


def across(**changed: str) -> list[str]:
    told = {**ACROSS, **changed}
    files = {"main": MAIN.format(**told), "nets": NETS.format(**told), "callbacks": told["callbacks"]}
    return kinds(ENGINE.format(**told), **files)


@pytest.mark.parametrize("changed", [{}, {"more": "def fit(self, loader):\n        self.train(loader)"}])
def test_models_that_another_file_trains(changed):
    assert "validated" in across(**changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"first": "self.model.eval()"},
        {"before": "model.eval()"},
        {"before": "model.train(False)"},
        {"callbacks": "def before(model):\n    model.eval()"},
        {"rate": "0.0"},
        {"held": "other"},
        {"more": "def mode(self, flag):\n        self.model.train(flag)"},
    ],
)
def test_near_miss_models_that_another_file_trains(changed):
    assert "validated" not in across(**changed)


# --------------------------------------------------------------------------- layers without gradients

BIRDS = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
    {above}
    def embed(self, x):
        return self.body(x)
    def forward(self, x):
        return self.head(self.embed(x))
"""
FIT = """from nets import Net
from data import rows
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
{more}
for x, y in rows:
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
OFF = "@torch.no_grad()"


@pytest.mark.parametrize(
    ("above", "more", "rows"),
    [
        (OFF, "", "rows = []"),
        ("@torch.inference_mode()", "", "rows = torchaudio.load('a.wav')"),
        (OFF, "settings = json.load(open('a.json'))", "rows = np.load('a.npy')"),
    ],
)
def test_layers_that_run_without_gradients_in_another_file(above, more, rows):
    assert "cut layer" in kinds(FIT.format(more=more), nets=BIRDS.format(above=above), data=rows)


@pytest.mark.parametrize(
    ("above", "more", "rows"),
    [
        ("", "", "rows = []"),
        (OFF, "model.load_state_dict(torch.load('a.pt'))", "rows = []"),
        (OFF, "state = load_file('a.safetensors')", "rows = []"),
        (OFF, "start(load_weights())", "rows = []"),
        (OFF, "", "def start(model):\n    model.body.requires_grad_(False)\nrows = []"),
        (OFF, "F.mse_loss(model.body(x), z).backward()", "rows = []"),
    ],
)
def test_near_miss_layers_that_run_without_gradients_in_another_file(above, more, rows):
    assert "cut layer" not in kinds(FIT.format(more=more), nets=BIRDS.format(above=above), data=rows)


def test_layers_that_run_without_gradients_beside_a_load_of_data():
    code = FIT.replace("from nets import Net\n", BIRDS.format(above=OFF)).replace("from data import rows\n", "{more}\n")
    assert "cut layer" in kinds(code.format(more="rows = np.load('a.npy')"))
    assert "cut layer" not in kinds(code.format(more="rows = torch.load('a.pt')"))


# --------------------------------------------------------------------------- terms

OBJECTIVE = """class Center(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.zeros(3, 8))
    def forward(self, features, y):
        return {center}
class Objective:
    def __init__(self, center):
        self.center, self.last = center, {{}}
    def __call__(self, features, scores, y):
        parts = {{"ce": F.cross_entropy(scores, y), "center": 0.1 * self.center(features, y)}}
        {last}
        {more}
        return {total}
body, head, center = nn.Linear(8, 8), nn.Linear(8, 3), Center()
objective = Objective(center)
for x, y in data:
    features = body(x)
    loss = objective(features, head(features), y)
    loss.backward()
"""
MEAN = "((features - self.centers[y]) ** 2).sum(1).mean() / 2"
LAST = "self.last = {k: v.item() for k, v in parts.items()}"
SUM = 'parts["ce"] + self.last["center"]'


@pytest.mark.parametrize(
    ("last", "more", "total"),
    [
        (LAST, "", SUM),
        ("logs = {k: float(v) for k, v in parts.items()}", "", 'parts["ce"] + logs["center"]'),
        ('logs = {"center": parts["center"].detach()}', "", 'parts["ce"] + 0.5 * logs["center"]'),
    ],
)
def test_terms_out_of_a_table_of_numbers(last, more, total):
    assert "cut term" in kinds(OBJECTIVE.format(center=MEAN, last=last, more=more, total=total))


@pytest.mark.parametrize(
    ("center", "last", "more", "total"),
    [
        (MEAN, LAST, "", 'parts["ce"] + parts["center"]'),
        (MEAN, "self.last = dict(parts)", "", SUM),
        (MEAN, LAST, 'self.last["center"] = parts["center"]', SUM),
        (MEAN, "self.last = {k: v.item() for k, v in other.items()}", "", SUM),
        ("self.centers[y].detach().mean()", LAST, "", SUM),
        (MEAN, LAST, "", 'parts["ce"] + self.last["other"]'),
    ],
)
def test_near_miss_terms_out_of_a_table(center, last, more, total):
    assert "cut term" not in kinds(OBJECTIVE.format(center=center, last=last, more=more, total=total))


# --------------------------------------------------------------------------- a loss of its own file

RANKS = """class Ranks(nn.Module):
    def forward(self, scores, wanted):
        return -({wanted} * torch.log({scores})).sum(1).mean()
"""
USED = """from train import Ranks
criterion = Ranks()
for x, y in rows:
    loss = criterion(model(x), y)
    {then}
"""


def ranks(scores="F.softmax(scores, 1)", then="loss.backward()"):
    return kinds(RANKS.format(wanted="wanted", scores=scores), main=USED.format(then=then))


def test_a_loss_that_another_file_sends_backward():
    assert "logged softmax" in ranks()


@pytest.mark.parametrize(
    "changed",
    [{"then": "print(loss.item())"}, {"scores": "F.softmax(scores, 1) + 1e-8"}, {"scores": "F.sigmoid(scores)"}],
)
def test_near_miss_a_loss_that_another_file_sends_backward(changed):
    assert "logged softmax" not in ranks(**changed)


# --------------------------------------------------------------------------- layers that a method puts in

GROWS = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
    def change(self):
        {change}
    def forward(self, x):
        return self.head(self.body(x))
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
{before}
for x, y in rows:
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
{after}
"""


def grows(change="self.head = nn.Linear(8, 5)", before="net.change()", after="pass"):
    return kinds(GROWS.format(change=change, before=before, after=after))


def test_a_method_that_puts_in_a_layer():
    assert "rebound" in grows()
    assert "rebound" in grows(change="self.head = nn.Linear(self.head.in_features, 5)")
    assert "rebound" in grows(before="net.head = nn.Linear(net.head.in_features, 5)")


@pytest.mark.parametrize(
    "changed",
    [
        {"before": "pass", "after": "net.change()"},
        {"change": "self.head = nn.Sequential(nn.Dropout(0.3), self.head)"},
        {"before": "net.head = nn.Sequential(net.head, nn.Dropout(0.3))"},
        {"change": "self.head = nn.Linear(8, 5).requires_grad_(False)"},
        {"change": "self.head = nn.Linear(8, 5)\n        self.head.weight.requires_grad = False"},
        {"change": "self.head = nn.LayerNorm(8, elementwise_affine=False)"},
        {"before": "net.change()\nopt.param_groups[0]['params'] = list(net.parameters())"},
    ],
)
def test_near_miss_a_method_that_puts_in_a_layer(changed):
    assert "rebound" not in grows(**changed)


FROZEN_LIST = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.layers = nn.Linear(8, 3), [nn.Linear(8, 8) for _ in range(2)]
    def forward(self, x):
        {use}
        return self.out(x)
"""


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("for f in self.layers: x = f(x)", True),
        ("with torch.no_grad():\n            for f in self.layers: x = f(x)", False),
    ],
)
def test_layers_in_a_list_that_only_run_without_gradients(use, found):
    assert ("plain list" in kinds(FROZEN_LIST.format(use=use))) == found


RANDOM = """class Random(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(3, 8)
    def forward(self, x):
        return self.map(x).square().mean()
net, noise = nn.Linear(8, 3), Random(){frozen}
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in rows:
    out = net(x)
    loss = F.cross_entropy(out, y) + noise(out)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(("frozen", "found"), [("", True), (".requires_grad_(False)", False)])
def test_modules_that_are_frozen_as_they_are_made(frozen, found):
    assert ("orphan" in kinds(RANDOM.format(frozen=frozen))) == found


BASE = """
class Base:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters())
    def loss_of(self, batch):
        raise NotImplementedError
    {mark}
    def fit(self, loader, val):
        for batch in loader:
            self.opt.zero_grad()
            self.loss_of(batch).backward()
            self.opt.step()
        {before}
        with torch.no_grad():
            print(self.score(val))
"""
BELOW = """
from base import Base
class Stars(Base):
    def loss_of(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1])
    def score(self, loader):
        right = 0
        for x, y in loader:
            right += (self.net(x).argmax(1) == y).sum()
        return right
Stars(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2))).fit(rows, val)
"""


@pytest.mark.parametrize(
    ("mark", "before", "more", "expected"),
    [
        ("def score(self, loader): ...", "pass", "", True),
        ("def score(self, loader): ...", "self.net.eval()", "", False),
        ("def score(self, loader): return len(loader)", "pass", "", False),
        (
            "def score(self, loader): ...",
            "pass",
            "class Other(Stars):\n    def score(self, loader):\n        return 0\n",
            False,
        ),
    ],
)
def test_methods_that_a_class_below_fills_in_are_called_above(mark, before, more, expected):
    base = BASE.format(mark=mark, before=before)
    assert ("validated" in kinds_in(HEAD, BELOW + more, base=base)) is expected


# --------------------------------------------------------------------------- what a class below hands up

HANDED_TO = """class Base:
    def __init__(self, model, optimizer, epochs=3):
        self.model, self.optimizer, self.epochs = model, optimizer, epochs
    def before(self):
        self.model.train()
    def turn(self, loader):
        for x, y in loader:
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
    def run(self, loader):
        self.before()
        for epoch in range(self.epochs):
            self.turn(loader)
            self.evaluate(loader)
    def evaluate(self, loader):
        raise NotImplementedError
"""
HANDING_UP = """from train import Base
class Below(Base):
    def __init__({taken}):
        {handed}
    def evaluate(self, loader):
        self.model.eval()
"""
HANDING_MAIN = """from nets import Net
from below import Below
net = Net()
Below({given}).run(loader)
"""
ALL_OF_IT = "super().__init__(*args, **kwargs)"
BY_SGD = "torch.optim.BY_SGD(net.parameters(), lr=0.1)"


def modes_of_eval(taken, handed, given, more=""):
    files = {"below": HANDING_UP.format(taken=taken, handed=handed), "main": HANDING_MAIN.format(given=given) + more}
    loops = event_of(HANDED_TO, nets=NETS.format(rate=0.5), **files).loops
    return {tick.modes for loop in loops if loop.repeats for path in loop.paths for tick in path if tick.kind == "eval"}


@pytest.mark.parametrize(
    ("taken", "handed", "given"),
    [
        ("self, *args, **kwargs", ALL_OF_IT, f"net, {BY_SGD}"),
        ("self, *args, **kwargs", f"super(Below, self){ALL_OF_IT[7:]}", f"net, optimizer={BY_SGD}"),
        ("self, net, opt, size=3", "super().__init__(net, opt, epochs=size)", f"net, {BY_SGD}"),
        ("self, size, **rest", "super().__init__(**rest)", f"9, model=net, optimizer={BY_SGD}"),
        ("self, lr", "m = Net(); super().__init__(m, torch.optim.BY_SGD(m.parameters(), lr))", "0.1"),
    ],
)
def test_models_that_a_class_in_another_file_hands_up(taken, handed, given):
    handed = handed.replace("m = Net()", "from nets import Net; m = Net()")
    assert modes_of_eval(taken, handed, given) == {"Dropout"}


@pytest.mark.parametrize(
    ("taken", "handed", "given", "more"),
    [
        ("self, *args", "self.start(*args)", f"net, {BY_SGD}", ""),
        ("self, *args", "super().__init__(*reversed(args))", f"{BY_SGD}, net", ""),
        ("self, *args", "super().__init__(*args)", f"net, {BY_SGD}", "Below(load(), net)\n"),
        ("self, net, opt", "super().__init__(wrapped(net), opt)", f"net, {BY_SGD}", ""),
    ],
)
def test_near_miss_models_that_a_class_in_another_file_hands_up(taken, handed, given, more):
    assert modes_of_eval(taken, handed, given, more) == {""}


# --------------------------------------------------------------------------- layers without gradients, in files that are handed the model

SIDES = """class Sides(nn.Module):
    def __init__(self):
        super().__init__()
        self.asks, self.answers = nn.Linear(8, 8), nn.Linear(8, 8)
    def ask(self, x):
        return self.asks(x)
    {above}
    def answer(self, x):
        return self.answers(x)
"""
MATCH = """def loss_of(net, pair):
    x, y = pair
    {worked_out}
    return F.cross_entropy(a @ b.T, torch.arange(len(x)))
def fit(net, opt, loader):
    for pair in loader:
        loss = loss_of(net, pair)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(net.answer(next(iter(loader))[1]))
"""
MATCHED = """from sides import Sides
from train import fit
from rows import pairs
def main():
    net = Sides()
    opt = torch.optim.Adam(net.parameters(), lr=0.1)
    {more}
    fit(net, opt, pairs("a.pt"))
main()
"""
PAIRS = """from torch.utils.data import DataLoader, TensorDataset
def pairs(path):
    blob = torch.load(path)
    return DataLoader(TensorDataset(blob["x"], blob["y"]))
"""
AT_ONCE = "a, b = net.ask(x), net.answer(y)"


def sides(*, above=OFF, worked_out=AT_ONCE, more="pass", rows=PAIRS):
    files = {"rows": rows, "sides": SIDES.format(above=above), "main": MATCHED.format(more=more)}
    return kinds(MATCH.format(worked_out=worked_out), **files)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"worked_out": "a = net.ask(x); b = net.answer(y)"},
        {"above": "@torch.inference_mode()"},
        {"rows": "def pairs(path):\n    return []"},
        {"rows": PAIRS.replace("(path):", "(path):\n    x = read(path)\ndef read(path):").replace("return", "rows =")},
    ],
)
def test_layers_without_gradients_in_a_file_that_is_handed_the_model(changed):
    assert "cut layer" in sides(**changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"above": ""},
        {"worked_out": "b, a = net.answer(y).detach(), net.answers(x)"},
        {"worked_out": "a = b = net.ask(x); seen = net.answer(y)"},
        {"more": "net.answers = torch.load('answers.pt')"},
        {"rows": f"{PAIRS}\ndef start(net):\n    net.answers = torch.load('b.pt')"},
        {"rows": f"{PAIRS}\ndef start(net):\n    net.load_state_dict(torch.load('b.pt'))"},
    ],
)
def test_near_miss_layers_without_gradients_in_a_file_that_is_handed_the_model(changed):
    assert "cut layer" not in sides(**changed)
