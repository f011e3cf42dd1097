"""Reading Python source through the idioms of real projects: each with a defect, and with that repaired."""

from __future__ import annotations

import pytest

from flatline.rules.gradients.clip_after_step import ClipAfterStep
from flatline.rules.memory.loss_graph_kept import LossGraphKept
from flatline.rules.modes.train_mode_not_restored import TrainModeNotRestored
from flatline.rules.modes.validation_in_train_mode import ValidationInTrainMode
from flatline.rules.optimization.double_softmax import DoubleSoftmax
from flatline.rules.optimization.loss_detached import LossDetached
from flatline.rules.optimization.nll_without_log_softmax import NllWithoutLogSoftmax
from flatline.rules.optimization.parameter_not_in_optimizer import ParameterNotInOptimizer
from flatline.rules.optimization.scheduler_out_of_step import SchedulerOutOfStep
from flatline.rules.optimization.sigmoid_before_bce import SigmoidBeforeBce
from flatline.rules.optimization.update_order_broken import UpdateOrderBroken
from flatline.rules.precision.half_without_scaler import HalfWithoutScaler
from flatline.testing import lint

HEAD = """import torch, functools
from contextlib import contextmanager, ExitStack
from dataclasses import dataclass, field
from torch import nn
import torch.nn.functional as F
"""
LOOP = """
net = {net}
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in data:
    opt.zero_grad()
    loss = {loss}
    loss.backward()
    opt.step()
"""


def trained(net: str, loss: str) -> str:
    return LOOP.format(net=net, loss=loss)


REGISTRY = """class Registry:
    def __init__(self):
        self.items = {}
    def register(self, name=None):
        def put(thing):
            self.items[name or thing.__name__] = thing
            return thing
        return put
    def build(self, name, *args, **given):
        return self.items[name](*args, **given)
MODELS = Registry()
@MODELS.register("mlp")
def mlp(n=3):
    return nn.Sequential(nn.Linear(4, n), nn.Softmax(1))
@MODELS.register()
class Plain(nn.Module):
    def __init__(self, n=3):
        super().__init__()
        self.body = nn.Linear(4, n)
    def forward(self, x):
        return self.body(x)
"""
CLASS_REGISTRY = """class Models:
    known = {}
    @classmethod
    def register(cls, name):
        def put(make):
            cls.known[name] = make
            return make
        return put
    @classmethod
    def get(cls, name):
        return cls.known[name]
@Models.register("a")
def a():
    return nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
@Models.register("b")
def b():
    return nn.Linear(4, 3)
"""
MATCH = """def head(kind="<>"):
    match kind:
        case "prob" | "p":
            return nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
        case "plain":
            return nn.Linear(4, 1)
        case _:
            raise ValueError(kind)
"""
MANAGER = """@contextmanager
def stepping(opt):
    <>
    try:
        yield
    finally:
        <>
        opt.step()
net = nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in data:
    with stepping(opt):
        F.mse_loss(net(x), y).backward()
"""
ENTERED = """class Step:
    def __init__(self, opt):
        self.opt = opt
    def __enter__(self):
        <>
    def __exit__(self, *gone):
        <>
        self.opt.step()
net = nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in data:
    with Step(opt):
        F.mse_loss(net(x), y).backward()
"""
GENERATOR = """def batches(opt):
    for batch in data:
        <>
        yield batch
        <>
        opt.step()
net = nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in batches(opt):
    F.mse_loss(net(x), y).backward()
"""
DECORATOR = """def optimizing(fn):
    @functools.wraps(fn)
    def run(self, *args):
        <>
        loss = fn(self, *args)
        <>
        self.opt.step()
        return loss
    return run
class Learner:
    def __init__(self):
        self.net = nn.Linear(2, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    @optimizing
    def learn(self, x, y):
        loss = F.mse_loss(self.net(x), y)
        loss.backward()
        return loss.item()
learner = Learner()
for x, y in data:
    learner.learn(x, y)
"""
MIXIN = """class Evaluates:
    def evaluate(self):
        self.net.eval()
        with torch.no_grad():
            found = sum((self.net(x).argmax(1) == y).sum() for x, y in self.val)
        <>
        return found
class Trainer(Evaluates):
    def __init__(self, train, val):
        self.train, self.val, self.net = train, val, self.build()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def build(self):
        raise NotImplementedError
    def fit(self):
        for epoch in range(9):
            for x, y in self.train:
                self.opt.zero_grad()
                F.cross_entropy(self.net(x), y).backward()
                self.opt.step()
            self.evaluate()
class Mine(Trainer):
    def build(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
Mine(a, b).fit()
"""
HOOKS = """class Loop:
    def __init__(self, net, opt):
        self.net, self.opt, self.hooks = net, opt, []
    def add(self, hook):
        self.hooks.append(hook)
    def fit(self):
        for epoch in range(9):
            for x, y in data:
                self.opt.zero_grad()
                F.cross_entropy(self.net(x), y).backward()
                self.opt.step()
            for hook in self.hooks:
                hook(self)
class Validate:
    @torch.no_grad()
    def __call__(self, loop):
        loop.net.eval()
        print([(loop.net(x).argmax(1) == y).sum() for x, y in val])
        <>
net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
loop = Loop(net, torch.optim.SGD(net.parameters(), lr=0.1))
loop.add(Validate())
loop.fit()
"""
METER = """@dataclass
class Meter:
    history: list = field(default_factory=list)
    def update(self, value):
        self.history.append(value)
@dataclass
class State:
    meter: Meter = field(default_factory=Meter)
class Trainer:
    def __init__(self, net):
        self.net, self.state = net, State()
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
    def step(self, x, y):
        self.opt.zero_grad()
        loss = F.mse_loss(self.net(x), y)
        loss.backward()
        self.opt.step()
        self.state.meter.update(<>)
    def fit(self):
        for x, y in data:
            self.step(x, y)
Trainer(nn.Linear(2, 1)).fit()
"""
CLOSURE = """def tracker():
    kept = []
    def track(value):
        kept.append(value)
    return track, kept
net = nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
track, kept = tracker()
for x, y in data:
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    track(<>)
"""
WALRUS = """net = nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
seen, draws = [], iter(data)
while (batch := next(draws, None)) is not None:
    opt.zero_grad()
    (loss := F.mse_loss(net(batch), batch)).backward()
    opt.step()
    seen.append(<>)
"""
HEADS = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({t: nn.Sequential(nn.Linear(4, n), nn.<>) for t, n in sizes.items()})
    def forward(self, x):
        return {t: head(x) for t, head in self.heads.items()}
net = Net()
out = net(x)
loss = sum(F.cross_entropy(out[t], y[t]) for t in out)
"""
LAMBDAS = """LOSSES = {"nll": lambda out, y: F.nll_loss(out, y), "l2": lambda out, y: F.mse_loss(out, y)}
crit = LOSSES["nll"]
""" + trained("nn.Linear(4, 3)", "crit(<>, y)")
HEAD_LATER = """class Run:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 9))
        <>
        self.opt = self.make()
        <>
    def make(self):
        return torch.optim.Adam(self.net.parameters())
    def swap(self):
        self.net[-1] = nn.Linear(8, 2)
    def fit(self):
        for x, y in data:
            self.opt.zero_grad()
            F.cross_entropy(self.net(x), y).backward()
            self.opt.step()
Run().fit()
"""
TUPLE = """def blocks(n):
    return [nn.Linear(8, 8) for _ in range(n)]
class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = <>(blocks(3))
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""
YIELDED = """class Step:
    def __init__(self, net):
        self.net, self.opt = net, torch.optim.Adam(net.parameters())
    <>
    def score(self, x, y):
        return F.cross_entropy(self.net(x), y)
    def losses(self):
        for x, y in data:
            yield self.score(x, y)
    def fit(self):
        for loss in self.losses():
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
Step(nn.Linear(2, 2)).fit()
"""
NESTED = """def configure(net):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    return {"opt": opt, "schedule": {"object": torch.optim.lr_scheduler.LinearLR(opt), "every": "step"}}
class Fit:
    def __init__(self, net):
        parts = configure(net)
        self.net, self.opt, self.schedule = net, parts["opt"], parts["schedule"]["object"]
    def run(self):
        for x, y in data:
            <>
            self.opt.zero_grad()
            F.mse_loss(self.net(x), y).backward()
            self.opt.step()
            <>
Fit(nn.Linear(2, 1)).run()
"""
CALLBACKS = """class Rate:
    def __init__(self, schedule):
        self.schedule = schedule
    def on_step_<>(self):
        self.schedule.step()
class Trainer:
    def __init__(self, net, opt, callbacks=()):
        self.net, self.opt, self.callbacks = net, opt, list(callbacks)
    def call(self, name):
        for callback in self.callbacks:
            getattr(callback, name)()
    def fit(self):
        for x, y in data:
            self.call("on_step_begin")
            self.opt.zero_grad()
            F.mse_loss(self.net(x), y).backward()
            self.opt.step()
            self.call("on_step_end")
net = nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
Trainer(net, opt, callbacks=[Rate(torch.optim.lr_scheduler.LinearLR(opt))]).fit()
"""
SWITCHED = """def run(net, loader, opt=None):
    training = opt is not None
    <>
    with torch.set_grad_enabled(training):
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            if training:
                opt.zero_grad()
                loss.backward()
                opt.step()
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(9):
    run(net, train, opt)
    run(net, val)
"""
AMP = """def amp(fn):
    def inner(*args):
        with torch.autocast("cuda", <>):
            return fn(*args)
    return inner
@amp
def score(net, x, y):
    return F.cross_entropy(net(x), y)
net = nn.Linear(4, 2).cuda()
opt = torch.optim.Adam(net.parameters())
for x, y in data:
    opt.zero_grad()
    loss = score(net, x, y)
    loss.backward()
    opt.step()
"""
CLIPPED = """class Clip:
    def __call__(self, net):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
class Base:
    def step(self, x, y):
        self.opt.zero_grad()
        F.mse_loss(self.net(x), y).backward()
        <>
        self.opt.step()
class Mine(Base):
    def __init__(self):
        self.net, self.clip = nn.Linear(2, 1), Clip()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def step(self, x, y):
        super().step(x, y)
        <>
mine = Mine()
for x, y in data:
    mine.step(x, y)
"""
FORWARDED = """class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.CrossEntropyLoss()
    def forward(self, out, y):
        return self.inner(out, y)
crit = Loss()
""" + trained("nn.Linear(4, 3)", "crit(<>, y)")
ZERO, OWN_ZERO = "opt.zero_grad()", "self.opt.zero_grad()"
PLAIN = "pass"
KEPT = ("loss", "loss.item()")

PAIRS = {
    "registry": (
        DoubleSoftmax,
        REGISTRY + trained("MODELS.build('<>', n=5)", "F.cross_entropy(net(x), y)"),
        "mlp",
        "Plain",
    ),
    "class registry": (
        DoubleSoftmax,
        CLASS_REGISTRY + trained("Models.get('<>')()", "F.cross_entropy(net(x), y)"),
        "a",
        "b",
    ),
    "match": (
        SigmoidBeforeBce,
        MATCH + trained("head()", "F.binary_cross_entropy_with_logits(net(x), y)"),
        "prob",
        "plain",
    ),
    "heads": (DoubleSoftmax, HEADS, "Softmax(1)", "ReLU()"),
    "lambdas": (
        NllWithoutLogSoftmax,
        LAMBDAS,
        "net(x)",
        "net(x).log_softmax(1)",
    ),
    "forward of a loss": (DoubleSoftmax, FORWARDED, "net(x).softmax(1)", "net(x)"),
    "manager": (UpdateOrderBroken, MANAGER, (PLAIN, ZERO), (ZERO, PLAIN)),
    "entered": (UpdateOrderBroken, ENTERED, (PLAIN, OWN_ZERO), (OWN_ZERO, PLAIN)),
    "generator": (UpdateOrderBroken, GENERATOR, (PLAIN, ZERO), (ZERO, PLAIN)),
    "decorator": (UpdateOrderBroken, DECORATOR, (PLAIN, OWN_ZERO), (OWN_ZERO, PLAIN)),
    "mixin": (TrainModeNotRestored, MIXIN, PLAIN, "self.net.train()"),
    "hooks": (TrainModeNotRestored, HOOKS, PLAIN, "loop.net.train()"),
    "meter": (LossGraphKept, METER, *KEPT),
    "closure": (LossGraphKept, CLOSURE, *KEPT),
    "walrus": (LossGraphKept, WALRUS, *KEPT),
    "head later": (ParameterNotInOptimizer, HEAD_LATER, (PLAIN, "self.swap()"), ("self.swap()", PLAIN)),
    "tuple": (ParameterNotInOptimizer, TUPLE, "tuple", "nn.ModuleList"),
    "yielded": (LossDetached, YIELDED, "@torch.no_grad()", "@functools.cache"),
    "nested": (
        SchedulerOutOfStep,
        NESTED,
        ("self.schedule.step()", PLAIN),
        (PLAIN, "self.schedule.step()"),
    ),
    "callbacks": (SchedulerOutOfStep, CALLBACKS, "begin", "end"),
    "switched": (ValidationInTrainMode, SWITCHED, PLAIN, "net.train(training)"),
    "amp": (HalfWithoutScaler, AMP, "torch.float16", "torch.bfloat16"),
    "super": (ClipAfterStep, CLIPPED, (PLAIN, "self.clip(self.net)"), ("self.clip(self.net)", PLAIN)),
}


def found(name: str, place: int) -> list:
    rule, template, *fillings = PAIRS[name]
    filling = fillings[place]
    for part in filling if isinstance(filling, tuple) else (filling,):
        template = template.replace("<>", part, 1)
    return lint(rule, HEAD + template)


@pytest.mark.parametrize("name", PAIRS)
def test_follows(name):
    assert len(found(name, 0)) == 1


@pytest.mark.parametrize("name", PAIRS)
def test_near_miss(name):
    assert found(name, 1) == []
