"""Reading Python source: learners with callbacks, events and plug-ins of their own."""

import pytest
from parsed import kinds_in

from flatline.rules.gradients.clip_after_step import ClipAfterStep
from flatline.rules.optimization.scheduler_out_of_step import SchedulerOutOfStep
from flatline.testing import lint

HEAD = """
import itertools, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
"""

CALLBACKS = """
class Callback:
    def __getattr__(self, name):
        if name.startswith("after_"):
            return {lacking}
        raise AttributeError(name)
class Stop(Callback):
    def after_loss(self):
        print(self.learn.loss)
class Clip(Callback):
    def {when}(self):
        torch.nn.utils.clip_grad_norm_(self.learn.net.parameters(), 1.0)
class Learner:
    def __init__(self, net, opt, cbs):
        self.net, self.opt, self.cbs = net, opt, list(cbs)
        for cb in self.cbs:
            cb.learn = self
    def emit(self, event):
        for cb in self.cbs:
            getattr(cb, event)()
    def fit(self, data):
        for x, y in data:
            self.loss = F.cross_entropy(self.net(x), y)
            self.emit("after_loss")
            self.loss.backward()
            self.emit("after_backward")
            self.opt.step()
            self.emit("after_step")
            self.opt.zero_grad()
net = nn.Linear(8, 2)
Learner(net, torch.optim.Adam(net.parameters()), [Stop(), Clip()]).fit(torch.load("d.pt"))
"""


@pytest.mark.parametrize(
    ("when", "lacking", "expected"),
    [
        ("after_step", "lambda: None", 1),
        ("after_step", "lambda *given: 0", 1),
        ("after_backward", "lambda: None", 0),
        ("after_step", "getattr(self.learn, name)", 0),
    ],
)
def test_callbacks_that_answer_to_every_name(when, lacking, expected):
    assert len(lint(ClipAfterStep, HEAD + CALLBACKS.format(when=when, lacking=lacking))) == expected


GROUPS = """
def groups_of(items, size):
    source = iter(items)
    while chunk := list({drawn}):
        yield chunk
"""
UPDATE = """
class Runner:
    def __init__(self, net, loader):
        self.net, self.loader, self.per_step = net, loader, {per_step}
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
    def update(self, parts):
        self.opt.zero_grad()
        for x, y in parts:
            loss = F.mse_loss(self.net(x), y){divided}
            loss.backward()
        self.opt.step()
        return loss.item()
    def epoch(self):
        {each}
Runner(nn.Linear(8, 2), DataLoader(torch.load("d.pt"))).epoch()
"""
GROUPED = {
    "drawn": "itertools.islice(source, size)",
    "per_step": "8",
    "divided": "",
    "each": "return [self.update(g) for g in groups_of(self.loader, self.per_step)]",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"each": "for g in groups_of(self.loader, self.per_step):\n            self.update(g)"}, True),
        ({"each": "return sum(self.update(g) for g in groups_of(self.loader, 4))"}, True),
        ({"divided": " / len(parts)"}, False),
        ({"per_step": "1"}, False),
        ({"drawn": "fetch(source, size)"}, False),
        ({"each": "return [self.update(g) for g in self.loader]"}, False),
    ],
)
def test_groups_that_are_handed_to_a_method(changed, expected):
    code = (GROUPS + UPDATE).format(**{**GROUPED, **changed})
    assert ("micro mean" in kinds_in(HEAD, code)) is expected


def test_groups_of_another_file():
    code, groups = UPDATE.format(**GROUPED), GROUPS.format(**GROUPED)
    assert "micro mean" in kinds_in(HEAD, f"from batching import groups_of\n{code}", batching=groups)


KINDS = """
import contextlib, functools
KINDS = {{"fp32": contextlib.nullcontext, "fp16": {half}}}
class Trainer:
    def __init__(self, net):
        self.net, self.context = net, {kept}
        self.opt = torch.optim.Adam(net.parameters())
    def step(self, x, y):
        self.opt.zero_grad()
        with {entered}:
            loss = F.mse_loss(self.net(x), y)
        loss.backward()
        self.opt.step()
for x, y in DataLoader(torch.load("d.pt")):
    Trainer(nn.Linear(8, 2)).step(x, y)
"""
ENTERED = {
    "half": 'functools.partial(torch.autocast, "cuda", dtype=torch.float16)',
    "kept": 'KINDS["fp16"]',
    "entered": "self.context()",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"half": "torch.cuda.amp.autocast"}, True),
        ({"half": 'lambda: torch.autocast("cuda", torch.float16)'}, True),
        ({"kept": 'functools.partial(torch.autocast, device_type="cuda")'}, True),
        ({"half": 'functools.partial(torch.autocast, "cuda", dtype=torch.bfloat16)'}, False),
        ({"kept": 'KINDS["fp32"]'}, False),
        ({"kept": "KINDS[net.kind]"}, False),
        ({"entered": "self.context(enabled=False)"}, False),
    ],
)
def test_contexts_that_are_made_by_what_is_kept(changed, expected):
    assert ("half" in kinds_in(HEAD, KINDS.format(**{**ENTERED, **changed}))) is expected


LOGGED = """
from dataclasses import dataclass
@dataclass
class Config:
    lr: float = 0.1
    epochs: int = 9
class Callback:
    def begin(self, trainer): ...
    def end(self, trainer, logs): ...
class Decay(Callback):
    def begin(self, trainer):
        self.schedule = torch.optim.lr_scheduler.StepLR(trainer.opt, 3)
    def {when}(self, trainer, logs):
        self.schedule.step()
class Log(Callback):
    def {told}(self, trainer, logs=()):
        row = {{"epoch": trainer.epoch, "lr": {rate}, **dict(logs)}}
        self.{write}(row)
class Trainer:
    def __init__(self, cfg, net, callbacks):
        self.cfg, self.net, self.callbacks = cfg, net, callbacks
        self.opt = torch.optim.SGD(net.parameters(), lr=cfg.lr)
    def emit(self, name, *args):
        for callback in self.callbacks:
            getattr(callback, name)(self, *args)
    def fit(self, data):
        self.emit("begin")
        for self.epoch in range(self.cfg.epochs):
            for x, y in data:
                self.opt.zero_grad()
                loss = F.cross_entropy(self.net(x), y)
                loss.backward()
                self.opt.step()
            self.emit("end", {{"loss": loss.item()}})
Trainer(Config(), nn.Linear(8, 2), [Decay(), Log()]).fit(torch.load("d.pt"))
"""
HEARD = {"when": "end", "told": "end", "rate": "trainer.cfg.lr", "write": "writer.writerow"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"write": "append"}, True),
        ({"rate": 'trainer.opt.param_groups[0]["lr"]'}, False),
        ({"rate": "self.schedule.get_last_lr()[0]"}, False),
        ({"told": "begin"}, False),
        ({"when": "other"}, False),
        ({"write": "save"}, False),
    ],
)
def test_rates_that_one_callback_moves_and_another_tells(changed, expected):
    assert ("constant rate" in kinds_in(HEAD, LOGGED.format(**{**HEARD, **changed}))) is expected


LEARNER = """
import functools
class Cb:
    order = 0
class Other(Cb):
    order = -10
    def {when}(self):
        {written}
class Meter(Cb):
    order = 5
    def after_step(self):
        print(self.learn.loss)
class Learner:
    def __init__(self, data, model, make=functools.partial(torch.optim.SGD, momentum=0.9), cbs=()):
        self.data, self.model = data, model.to("cuda")
        self.opt = make(self.model.parameters(), lr=0.1)
        self.cbs = sorted(cbs, key=lambda cb: cb.order)
        for cb in self.cbs:
            cb.learn = self
        {first}
    def __call__(self, event):
        for cb in self.cbs:
            getattr(cb, event, lambda: None)()
    def fit(self, epochs):
        self("before_fit")
        {build}
        for epoch in range(epochs):
            for x, y in self.data:
                self.loss = F.cross_entropy(self.model(x), y)
                self.loss.backward()
                self("after_backward")
                self.opt.step()
                self("after_step")
                self.opt.zero_grad()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.head(self.body(x))
Learner(torch.load("d.pt"), Net(), cbs=[Other(), Meter()]).fit(9)
"""
ATTACHED = {
    "when": "before_fit",
    "first": "pass",
    "build": "pass",
    "written": "self.learn.model.head = nn.Linear(8, 5)",
}
NAMED = "learn = self.learn\n        learn.model.head = nn.Linear(learn.model.head.in_features, 5).cuda()"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"written": NAMED}, True),
        ({"when": "begin"}, False),
        ({"first": 'self("before_fit")'}, False),
        ({"build": "self.opt = torch.optim.Adam(self.model.parameters())"}, False),
        ({"written": "self.learn.model.head = nn.Sequential(self.learn.model.head, nn.Dropout(0.1))"}, False),
        ({"written": "self.learn.other.head = nn.Linear(8, 5)"}, False),
        ({"written": "self.learn.model.head = nn.Linear(8, 5)\n        self.learn.opt = make()"}, False),
    ],
)
def test_layers_that_a_callback_replaces(changed, expected):
    assert ("rebound" in kinds_in(HEAD, LEARNER.format(**{**ATTACHED, **changed}))) is expected


def test_layers_of_the_object_that_a_callback_was_handed():
    code = LEARNER.format(**ATTACHED).replace("cb.learn = self", "cb.join(self)")
    handed = code.replace("    order = 0\n", "    order = 0\n    def join(self, learn):\n        self.learn = learn\n")
    other = handed.replace("cb.join(self)", "cb.join(model)")
    assert ["rebound" in kinds_in(HEAD, each) for each in (handed, code, other)] == [True, False, False]


@pytest.mark.parametrize(("when", "expected"), [("after_step", 1), ("after_backward", 0), ("before_fit", 0)])
def test_events_that_an_object_calls_itself_with(when, expected):
    clip = "torch.nn.utils.clip_grad_norm_(self.learn.model.parameters(), 1.0)"
    assert len(lint(ClipAfterStep, HEAD + LEARNER.format(**{**ATTACHED, "when": when, "written": clip}))) == expected


SIZED = """
import functools
from torch.optim.lr_scheduler import LambdaLR
def ramp(step, warmup, total, floor=0.1):
    if step < warmup:
        return step / warmup
    return floor + (total - step) / max(1, total - warmup)
class Stream{base}:
    def __init__(self, rows, steps):
        self.rows, self.steps = rows, steps
    def __len__(self):
        return self.steps
    def {drawn}:
        yield self.rows[: self.steps]
class Trainer:
    def __init__(self, net, epochs):
        self.net, self.epochs, self.stream = net, epochs, Stream(torch.load("d.pt"), 100)
        self.opt = torch.optim.Adam(net.parameters())
        total = {total}
        self.schedule = LambdaLR(self.opt, functools.partial(ramp, warmup=total // 50, total=total))
    def step(self, x, y):
        self.opt.zero_grad()
        F.mse_loss(self.net(x), y).backward()
        self.opt.step()
        {each}
    def end(self, losses):
        {last}
    def run(self):
        for epoch in range(self.epochs):
            self.end([self.step(*batch) for batch in {over}])
Trainer(nn.Linear(8, 1), 20).run()
"""
IN_STEPS = {
    "base": "",
    "drawn": "__iter__(self)",
    "total": "epochs * len(self.stream)",
    "each": "return 0",
    "last": "self.schedule.step()",
    "over": "self.stream",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 1),
        ({"total": "epochs"}, 0),
        ({"each": "self.schedule.step()", "last": "pass"}, 0),
        ({"base": "(torch.utils.data.IterableDataset)"}, 0),
        ({"drawn": "__getitem__(self, at)"}, 0),
        ({"over": "range(4)"}, 0),
    ],
)
def test_schedules_that_a_stream_sizes(changed, expected):
    assert len(lint(SchedulerOutOfStep, HEAD + SIZED.format(**{**IN_STEPS, **changed}))) == expected


PHASES = """
import enum
class Stage({kind}):
    TRAIN = "train"
    VALID = "valid"
    TEST = "test"
    @property
    def learns(self):
        return self is Stage.TRAIN
    @property
    def last(self):
        return self in (Stage.TEST,)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(8, 2)
    def forward(self, x):
        return self.out(self.drop(x))
class Program:
    def __init__(self):
        self.net = Net()
        self.opt = torch.optim.Adam(self.net.parameters())
    def run(self, stage, loader):
        self.net.train({mode})
        with torch.set_grad_enabled({recorded}):
            for x, y in loader:
                scores = self.net(x)
                loss = F.cross_entropy(scores, y)
                if {recorded}:
                    self.opt.zero_grad()
                    loss.backward()
                    self.opt.step()
                print((scores.argmax(1) == y).sum().item())
data = DataLoader(torch.load("d.pt"))
program = Program()
for epoch in range(9):
    program.run({stages[0]}, data)
    program.run({stages[1]}, data)
program.run({stages[2]}, data)
"""
STAGES = {
    "kind": "enum.Enum",
    "mode": "not stage.last",
    "recorded": "stage.learns",
    "stages": ("Stage.TRAIN", "Stage.VALID", "Stage.TEST"),
}
WORDS = {"recorded": 'stage == "train"', "stages": ("'train'", "'valid'", "'test'")}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"mode": "stage is not Stage.TEST"}, True),
        ({"mode": "stage in (Stage.TRAIN, Stage.VALID)"}, True),
        ({**WORDS, "mode": 'stage != "test"'}, True),
        ({"mode": "stage.learns"}, False),
        ({"mode": "stage.value == 'train'"}, False),
        ({"mode": "stage != 'test'", "kind": "str, enum.Enum"}, False),
        ({"mode": "stage.kept"}, False),
        ({"mode": "mode"}, False),
        ({**WORDS, "mode": 'stage == "train"'}, False),
        ({"recorded": "True"}, False),
        ({"stages": ("Stage.TRAIN", "Stage.TEST", "Stage.TEST")}, False),
    ],
)
def test_modes_that_a_phase_sets(changed, expected):
    assert ("validated" in kinds_in(HEAD, PHASES.format(**{**STAGES, **changed}))) is expected
