"""Loops over phases, and functions that are told the phase: what each of the turns does."""

from __future__ import annotations

import pytest

from flatline.rules.memory.loss_graph_kept import LossGraphKept
from flatline.rules.modes.train_mode_not_restored import TrainModeNotRestored
from flatline.rules.modes.validation_in_train_mode import ValidationInTrainMode
from flatline.rules.optimization.scheduler_out_of_step import SchedulerOutOfStep
from flatline.rules.optimization.training_in_eval_mode import TrainingInEvalMode
from flatline.rules.optimization.update_order_broken import UpdateOrderBroken
from flatline.testing import lint

HEAD = """import torch, torchvision
from torch import nn
import torch.nn.functional as F
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
"""
BATCHES = """
            for x, y in loaders[phase]:
                ZERO
                with torch.set_grad_enabled(phase == "train"):
                    out = net(x)
                    loss = criterion(out, y)
                    if phase == "train":
                        loss.backward()
                        opt.step()
"""
TUTORIAL = f"""
def fit(net, criterion, opt):
    for epoch in range(9):
        for phase in ["train", "val"]:
            if phase == "train":
                TRAIN
            else:
                EVAL
{BATCHES}
fit(net, criterion, opt)
"""
SWITCHED = f"""
phases = ("train", "val")
for epoch in range(9):
        for phase in phases:
            training = phase.startswith("train")
            TRAIN if training else EVAL
{BATCHES}
""".replace("TRAIN if training else EVAL", "if training: TRAIN\n            if not training: EVAL")
TABLE = """
loaders = {"train": a, "valid": b}
for epoch in range(9):
    for phase, loader in loaders.items():
        if phase in ("train",):
            TRAIN
        else:
            EVAL
        for x, y in loader:
            with torch.enable_grad() if phase == "train" else torch.no_grad():
                loss = F.cross_entropy(net(x), y)
            if phase == "train":
                ZERO
                loss.backward()
                opt.step()
"""
TOLD = """
class Trainer:
    def __init__(self):
        self.net, self.opt = net, opt
    def mode(self, training):
        if training: TRAIN
        else: EVAL
    def run(self, loader, training=True):
        self.mode(training)
        for x, y in loader:
            with torch.set_grad_enabled(training):
                loss = criterion(self.net(x), y)
            if training:
                ZERO
                loss.backward()
                self.opt.step()
    def fit(self, a, b):
        for epoch in range(9):
            self.run(a)
            self.run(b, training=False)
Trainer().fit(a, b)
"""
GIVEN = """
def run(net, loader, opt=None):
    if opt is not None: TRAIN
    else: EVAL
    for x, y in loader:
        with torch.set_grad_enabled(opt is not None):
            loss = criterion(net(x), y)
        if opt is not None:
            ZERO
            loss.backward()
            opt.step()
for epoch in range(9):
    run(net, a, opt)
    run(net, b)
"""
FORMS = {"tutorial": TUTORIAL, "switched": SWITCHED, "table": TABLE, "told": TOLD, "given": GIVEN}
PLAIN = {"TRAIN": "net.train()", "EVAL": "net.eval()", "ZERO": "opt.zero_grad()"}


def written(form: str, **changed: str) -> str:
    """A form, with some of its lines changed."""
    code = FORMS[form]
    for name, line in {**PLAIN, **changed}.items():
        code = code.replace(name, line)
    return code.replace("net.train()", "self.net.train()").replace("net.eval()", "self.net.eval()").replace(
        "opt.zero_grad()", "self.opt.zero_grad()"
    ) if form == "told" else code  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_near_miss_phases(form):
    for rule in (ValidationInTrainMode, TrainModeNotRestored, TrainingInEvalMode, UpdateOrderBroken):
        assert not lint(rule(), HEAD + written(form))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("line", ["pass", "net.train()"])
def test_never_in_eval_mode(form, line):
    assert len(lint(ValidationInTrainMode(), HEAD + written(form, EVAL=line))) == 1


@pytest.mark.parametrize("form", FORMS)
def test_trains_in_eval_mode(form):
    found = HEAD + written(form, TRAIN="net.eval()")
    assert lint(TrainingInEvalMode(), found)
    assert not lint(TrainModeNotRestored(), found)


@pytest.mark.parametrize("form", FORMS)
def test_never_zeroed(form):
    assert len(lint(UpdateOrderBroken(), HEAD + written(form, ZERO="pass"))) == 1


HELPER = """
class Session:
    def __init__(self):
        self.net, self.opt = net, opt
    def scored(self, batch):
        x, y = batch
        out = self.net(x)
        return out, F.cross_entropy(out, y)
    def train(self):
        self.net.train()
        for batch in a:
            _, loss = self.scored(batch)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
    def validate(self):
        MODE
        with torch.no_grad():
            for batch in b:
                out, _ = self.scored(batch)
                hits += (out.argmax(1) == batch[1]).sum().item()
"""


def test_scored_in_a_helper():
    assert len(lint(ValidationInTrainMode(), HEAD + HELPER.replace("MODE", "pass"))) == 1


def test_near_miss_scored_in_a_helper():
    assert not lint(ValidationInTrainMode(), HEAD + HELPER.replace("MODE", "self.net.eval()"))
    assert not lint(ValidationInTrainMode(), HEAD + HELPER.replace("MODE", "getattr(self.net, mode)()"))


MANY = """
opts = {name: torch.optim.Adam(part.parameters()) for name, part in parts.items()}
def clear():
    for each in opts.values(): each.zero_grad()
def apply():
    for each in opts.values(): each.step()
for x, y in data:
    loss = criterion(net(x), y)
"""


def test_optimizers_of_a_table():
    assert lint(UpdateOrderBroken(), f"{HEAD}{MANY}    loss.backward()\n    clear()\n    apply()")


def test_near_miss_optimizers_of_a_table():
    assert not lint(UpdateOrderBroken(), f"{HEAD}{MANY}    clear()\n    loss.backward()\n    apply()")
    assert not lint(UpdateOrderBroken(), f"{HEAD}{MANY}    loss.backward()\n    apply()\n    clear()")


RESTORED = """
def check():
    was = {m: m.training for m in net.modules()}
    net.eval()
    score(net)
    for m, mode in was.items():
        BACK
net.train()
for x, y in data:
    loss = criterion(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    check()
"""


def test_not_restored():
    assert lint(TrainModeNotRestored(), HEAD + RESTORED.replace("BACK", "print(m, mode)"))


def test_near_miss_restored():
    assert not lint(TrainModeNotRestored(), HEAD + RESTORED.replace("BACK", "m.training = mode"))


HISTORY = """
class History:
    def __init__(self, *names):
        self.kept = {name: [] for name in names}
    def update(self, **values):
        for name, value in values.items():
            self.kept[name].append(value)
history = History("loss")
def learn(x, y):
    loss = criterion(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss
for x, y in data:
    loss = learn(x, y)
    history.update(loss=GIVEN)
"""


def test_kept_by_keyword():
    assert len(lint(LossGraphKept(), HEAD + HISTORY.replace("GIVEN", "loss"))) == 1


def test_near_miss_kept_by_keyword():
    assert not lint(LossGraphKept(), HEAD + HISTORY.replace("GIVEN", "loss.item()"))
    assert not lint(LossGraphKept(), HEAD + HISTORY.replace("GIVEN", "loss").replace("(value)", "(value.item())"))


VISION = """
model = torchvision.models.NAME(num_classes=3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
model.eval()
for x, y in data:
    opt.zero_grad()
    criterion(model(x), y).backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("name", "seen"), [("resnet18", 1), ("vgg16", 1), ("efficientnet_b0", 1), ("convnext_tiny", 0)]
)
def test_layers_of_torchvision(name, seen):
    assert len(lint(TrainingInEvalMode(), HEAD + VISION.replace("NAME", name))) == seen


TESTED = """
def validate(net, loader):
    MODE
    with torch.no_grad():
        for x, y in loader:
            hits += (net(x).argmax(1) == y).sum().item()
def test(net, loader):
    net.eval()
for epoch in range(9):
    for x, y in data:
        opt.zero_grad()
        criterion(net(x), y).backward()
        opt.step()
    validate(net, b)
    EACH
END
"""


def test_in_eval_mode_afterwards_only():
    code = TESTED.replace("MODE", "pass").replace("EACH", "pass").replace("END", "test(net, c)")
    assert len(lint(ValidationInTrainMode(), HEAD + code)) == 1


@pytest.mark.parametrize(
    ("mode", "each", "end"), [("net.eval()", "pass", "test(net, c)"), ("pass", "test(net, c)", "")]
)
def test_near_miss_in_eval_mode_before(mode, each, end):
    code = TESTED.replace("MODE", mode).replace("EACH", each).replace("END", end)
    assert not lint(ValidationInTrainMode(), HEAD + code)


def test_near_miss_schedule_of_epochs_in_a_phase():
    built = "sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=9)\n"
    stepped = written("tutorial").replace("opt.step()", "opt.step()\n            if phase == 'train': sched.step()")
    assert not lint(SchedulerOutOfStep(), HEAD + built + stepped)
    within = written("tutorial").replace("opt.step()", "opt.step(); sched.step()")
    assert len(lint(SchedulerOutOfStep(), HEAD + built + within)) == 1
