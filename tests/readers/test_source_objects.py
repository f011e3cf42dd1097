"""Reading Python source: lists of objects, classes that take the place of others, and what is handed around between them."""

from __future__ import annotations

import pytest

from flatline.rules.distributed.sampler_epoch_not_set import SamplerEpochNotSet
from flatline.rules.gradients.clip_after_step import ClipAfterStep
from flatline.rules.gradients.clip_before_unscale import ClipBeforeUnscale
from flatline.rules.modes.validation_in_train_mode import ValidationInTrainMode
from flatline.rules.optimization.frozen_norm_drifts import FrozenNormDrifts
from flatline.rules.optimization.scheduler_out_of_step import SchedulerOutOfStep
from flatline.rules.optimization.update_order_broken import UpdateOrderBroken
from flatline.testing import lint

HEAD = "import torch, torchvision\nfrom torch import nn\nimport torch.nn.functional as F\n"
DATA = "data = torch.utils.data.DataLoader(torch.load('d.pt'), 8, shuffle=True)\n"

# --------------------------------------------------------------------------- lists of hooks

PARTS = """import torch
class Hook:
    rank = 5
    def on_begin(self, t): ...
    def on_grads(self, t): ...
class Zero(Hook):
    def on_begin(self, t):
        t.opt.zero_grad()
class Step(Hook):
    rank = 3
    def on_grads(self, t):
        t.opt.step()
class Clip(Hook):
    rank = 7
    def on_grads(self, t):
        torch.nn.utils.clip_grad_norm_(t.net.parameters(), 1.0)
TABLE = {"zero": Zero, "step": Step, "clip": Clip}
"""
ENGINE = """import torch
class Engine:
    def __init__(self, net, opt, hooks=()):
        self.net, self.opt = net, opt
        self.hooks = KEPT
    def add(self, hook):
        self.hooks.append(hook)
        return self
    def fire(self, event):
        for hook in self.hooks:
            CALL
    def run(self, data):
        for x, y in data:
            self.fire("begin")
            self.net(x).square().mean().backward()
            self.fire("grads")
"""
RUN = HEAD + (
    "from engine import Engine\nfrom parts import *\nfrom parts import TABLE\nnet = nn.Linear(4, 2)\n"
    "opt = torch.optim.SGD(net.parameters(), lr=0.1)\nBEFORE\nengine = Engine(net, opt, HOOKS)\nMORE\nengine.run(torch.load('d'))\n"
)
BY_NAME = "getattr(hook, 'on_' + event)(self)"
IF_THERE = "fn = getattr(hook, f'on_{event}', None)\n            if fn is not None:\n                fn(self)"


def chain(hooks: str, kept: str = "list(hooks)", call: str = BY_NAME, before: str = "", more: str = "") -> int:
    """How many clips come too late."""
    engine = ENGINE.replace("KEPT", kept).replace("CALL", call)
    code = RUN.replace("HOOKS", hooks).replace("BEFORE", before).replace("MORE", more)
    code = code.replace("from parts import *", "from parts import Clip, Hook, Step, Zero")
    return len(lint(ClipAfterStep, code, parts=PARTS, engine=engine))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"hooks": "[Zero(), Step(), Clip()]"}, 1),
        ({"hooks": "[Zero(), Clip(), Step()]"}, 0),
        ({"hooks": "[Zero(), Step(), Clip()]", "call": IF_THERE}, 1),
        ({"hooks": "[Clip(), Step(), Zero()]", "kept": "sorted(hooks, key=lambda h: h.rank)"}, 1),
        ({"hooks": "[Step(), Clip(), Zero()]", "kept": "sorted(hooks, key=lambda h: h.rank, reverse=True)"}, 0),
        ({"hooks": "[Step(), Clip(), Zero()]", "kept": "sorted(hooks, key=rank_of)"}, 0),
        ({"hooks": "[TABLE[n]() for n in ('zero', 'step', 'clip')]"}, 1),
        ({"hooks": "[TABLE[n]() for n in ('zero', 'clip', 'step')]"}, 0),
        ({"hooks": "[TABLE[n]() for n in names]"}, 0),
        ({"hooks": "hooks", "before": "hooks = [Zero()]\nhooks.append(Step())\nhooks += [Clip()]"}, 1),
        ({"hooks": "hooks", "before": "hooks = [Step()]\nhooks.insert(0, Clip())\nhooks += [Zero()]"}, 0),
        ({"hooks": "hooks", "before": "hooks = [Zero(), Step()]\nif torch.rand(1) > 0:\n  hooks.append(Clip())"}, 1),
        ({"hooks": "()", "kept": "[]", "more": "engine.add(Zero()).add(Step()).add(Clip())"}, 1),
        ({"hooks": "()", "kept": "[]", "more": "engine.add(Zero())\nengine.add(Clip())\nengine.add(Step())"}, 0),
        ({"hooks": "[Zero(), Step(), *others]"}, 0),
    ],
)
def test_hooks_in_the_order_in_which_they_are_kept(options, expected):
    assert chain(**options) == expected


# --------------------------------------------------------------------------- classes below

BASE = """import torch
class Base:
    def __init__(self, net):
        self.net, self.opt = net, torch.optim.SGD(net.parameters(), lr=0.1)
    def begin(self):
        self.opt.zero_grad()
    def loss(self, batch):
        raise NotImplementedError
    def step(self):
        self.opt.step()
    def backward(self, loss):
        loss.backward()
    def clip(self):
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
    def fit(self, data):
        for batch in data:
            self.begin()
            self.backward(self.loss(batch))
            self.clip()
            self.step()
"""
BELOW = (
    HEAD
    + """from base import Base
class Own(Base):
    def loss(self, batch):
        return self.net(batch).square().mean()
    {}
Own(nn.Linear(2, 2)).fit(torch.load('d'))
"""
)
AMP = (
    "scaler = torch.amp.GradScaler('cuda')\n    def backward(self, loss):\n        self.scaler.scale(loss).backward()\n"
    "    def step(self):\n        self.scaler.step(self.opt)"
)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("def begin(self):\n        self.count = 1", 1),
        ("def begin(self):\n        super().begin()", 0),
        ("def begin(self):\n        self.net.zero_grad()", 0),
        ("def step(self):\n        super().step()\n        self.opt.zero_grad()", 0),
        ("def step(self):\n        super().step()", 0),
    ],
)
def test_methods_that_take_the_place_of_the_one_that_zeroes(more, expected):
    found = lint(UpdateOrderBroken, BASE, main=BELOW.format(more).replace("base", "train"))
    assert len(found) == expected
    assert not found or "Own.begin takes the place" in found[0].message


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (AMP, 1),
        (f"{AMP}\n    def clip(self):\n        self.scaler.unscale_(self.opt)\n        super().clip()", 0),
        (f"{AMP}\n    def clip(self):\n        pass", 0),
    ],
)
def test_steps_that_a_class_below_scales(more, expected):
    assert len(lint(ClipBeforeUnscale, BASE, main=BELOW.format(more).replace("base", "train"))) == expected


# --------------------------------------------------------------------------- managers, data, trunks, schedules

SCORED = (
    HEAD
    + DATA
    + """from tools import quiet
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 2))
    def forward(self, x):
        return self.out(x)
def validate(net):
    with quiet(net) as model:
        for x, y in data:
            print((model(x).argmax(1) == y).sum())
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in data:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    validate(net)
"""
)
MANAGER = (
    "import contextlib, torch\n@contextlib.contextmanager\ndef quiet(net):\n    {}\n    with {}:\n        yield net\n"
)


@pytest.mark.parametrize(
    ("first", "head", "expected"),
    [
        ("pass", "torch.no_grad()", 1),
        ("pass", "torch.inference_mode()", 1),
        ("pass", "torch.enable_grad()", 0),
        ("net.eval()", "torch.no_grad()", 0),
        ("net.train(False)", "torch.no_grad()", 0),
    ],
)
def test_managers_that_switch_gradients_off(first, head, expected):
    assert len(lint(ValidationInTrainMode, SCORED, tools=MANAGER.format(first, head))) == expected


SAMPLED = (
    HEAD
    + """class Data:
    def make(self, shuffle):
        data = torchvision.datasets.FakeData()
        sampler = torch.utils.data.distributed.DistributedSampler(data, shuffle=shuffle)
        return torch.utils.data.DataLoader(data, 8, sampler=sampler)
    def train(self):
        return self.make({})
net, loader = nn.Linear(4, 2), Data().train()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    {}
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
"""
)


@pytest.mark.parametrize(
    ("shuffle", "first", "expected"),
    [("True", "pass", 1), ("False", "pass", 0), ("True", "loader.sampler.set_epoch(epoch)", 0)],
)
def test_methods_of_the_project_that_are_named_like_torchs(shuffle, first, expected):
    assert len(lint(SamplerEpochNotSet, SAMPLED.format(shuffle, first))) == expected


TRUNK = (
    HEAD
    + DATA
    + """def freeze(part, flag=False):
    for p in part.parameters():
        p.requires_grad = flag
    return part
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = {}
        self.head = nn.Linear(1000, 2)
    def forward(self, x):
        return self.head(self.trunk(x))
net = Net()
opt = torch.optim.SGD(net.head.parameters(), lr=0.1)
for epoch in range(3):
    net.train()
    {}
    for x, y in data:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
"""
)


@pytest.mark.parametrize(
    ("trunk", "more", "expected"),
    [
        ("freeze(torchvision.models.resnet18())", "pass", 1),
        ("freeze(torchvision.models.resnet18())", "net.trunk.eval()", 0),
        ("freeze(torchvision.models.resnet18(), epoch > 2)", "pass", 0),
        ("freeze(nn.Linear(4, 1000))", "pass", 0),
    ],
)
def test_trunks_that_are_frozen_as_they_are_made(trunk, more, expected):
    assert len(lint(FrozenNormDrifts, TRUNK.format(trunk, more))) == expected


SCHEDULED = (
    HEAD
    + DATA
    + """from functools import partial
class Config:
    epochs = 40
MAKE = {{"a": lambda opt, cfg: torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs),
        "b": lambda opt, cfg: torch.optim.lr_scheduler.ExponentialLR(opt, 0.999)}}
class Steps:
    def __init__(self, sched, when):
        self.sched, self.when = sched, when
    def batch(self):
        if self.when == "batch":
            self.sched.step()
    def epoch(self):
        if self.when == "epoch":
            self.sched.step()
def fit(net, opt, callbacks):
    for epoch in range(Config.epochs):
        for x, y in data:
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
            for each in callbacks:
                each.batch()
        for each in callbacks:
            each.epoch()
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
fit(net, opt, [Steps(MAKE["{}"](opt, Config), "{}")])
"""
)


@pytest.mark.parametrize(("name", "when", "expected"), [("a", "batch", 1), ("a", "epoch", 0), ("b", "batch", 0)])
def test_schedules_out_of_tables_of_lambdas(name, when, expected):
    assert len(lint(SchedulerOutOfStep, SCHEDULED.format(name, when))) == expected


STAGES = (
    HEAD
    + DATA
    + """from functools import partial
def learn(net, opt):
    for x, y in data:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
def score(net):
    print(net(1))
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.StepLR(opt, 5)
stages = {{"learn": partial(learn, net, opt), "score": partial(score, net)}}
for epoch in range(30):
    {}
"""
)
EACH = "print({name: run() for name, run in stages.items()})"
LISTED = "for run in [partial(learn, net, opt)]:\n        run()"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"sched.step()\n    {EACH}", 1),
        (f"{EACH}\n    sched.step()", 0),
        (f"sched.step()\n    {LISTED}", 1),
        ("sched.step()\n    stages['learn']()", 1),
        ("sched.step()\n    stages['score']()", 0),
    ],
)
def test_partials_that_are_kept_in_tables(body, expected):
    assert len(lint(SchedulerOutOfStep, STAGES.format(body))) == expected
