from dataclasses import replace

import pytest

from flatline.events import ParameterFacts, ParametersAudited, Where
from flatline.rules.optimization.frozen_but_updated import FrozenButUpdated
from flatline.testing import lint, play

HEAD = ParameterFacts(name="head.weight", optimizers=(0,), moved_at_step=True)


def audit(*parameters):
    return ParametersAudited(step=3, where=Where("train.py", 30), parameters=(HEAD, *parameters))


def frozen(name="body.weight", *, optimizers=(0,), moved_frozen=True, decay=0.01):
    return ParameterFacts(
        name=name, trainable=False, optimizers=optimizers, moved_frozen=moved_frozen, weight_decay=decay
    )


def held(*, zeroed=True, decay=0.01, moved=True, optimizers=(0,)):
    return ParameterFacts(
        name="body.weight", optimizers=optimizers, gradient_zeroed=zeroed, moved_at_step=moved, weight_decay=decay
    )


def test_fires_on_frozen_parameters_that_a_step_moved():
    (finding,) = play(FrozenButUpdated, audit(frozen(), frozen("body.bias", decay=0.0)))
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 30)
    assert finding.key == "frozen"
    assert finding.message == "2 parameters with requires_grad=False changed inside step() (first body.weight)"
    assert "applies weight decay (0.01) and momentum" in finding.cause
    assert finding.evidence == {"parameters": 2, "weight_decay": 0.01}


def test_fires_on_momentum_alone():
    (finding,) = play(FrozenButUpdated, audit(frozen(decay=0.0)))
    assert "applies momentum to them" in finding.cause


def test_warns_of_gradients_that_are_zeroed_before_the_step():
    (finding,) = play(FrozenButUpdated, audit(held()))
    assert finding.severity == "warning"
    assert finding.key == "zeroed"
    assert finding.message == (
        "the gradients of 1 parameters are zeroed before each step, and weight decay (0.01) moves them all the same "
        "(first body.weight)"
    )


def test_frozen_ones_come_first():
    (finding,) = play(FrozenButUpdated, audit(held(), frozen()))
    assert finding.key == "frozen"


def test_near_miss_in_the_optimizer_without_a_gradient():
    assert play(FrozenButUpdated, audit(frozen(moved_frozen=False))) == []


def test_near_miss_averaged_copy():
    assert play(FrozenButUpdated, audit(frozen(optimizers=()))) == []


def test_near_miss_gradual_unfreezing():
    unfrozen = ParameterFacts(name="body.weight", optimizers=(0,), moved_at_step=True)
    frozen_later = ParameterFacts(name="body.weight", trainable=False, optimizers=(0,), moved_at_step=True)
    assert play(FrozenButUpdated, audit(unfrozen), audit(frozen_later)) == []
    assert play(FrozenButUpdated, audit(replace(frozen(), trainable=True))) == []


def test_near_miss_zeroed_and_unmoved():
    assert play(FrozenButUpdated, audit(held(moved=False))) == []
    assert play(FrozenButUpdated, audit(held(decay=0.0))) == []


def test_near_miss_gradients_not_zeroed():
    assert play(FrozenButUpdated, audit(held(zeroed=False))) == []


SCHEDULED = """import torch
from torch import nn
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.fc = nn.Linear(8, 3)
class Freezer:
    def __init__(self, model):
        self.model = model
    def apply(self, epoch):
        for i, stage in enumerate(self.model.stages[:-1]):
            {condition}
                for p in stage.parameters():
                    {freeze}
def turn(model, loader, opt):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        {zero}
        loss.backward()
        opt.step()
model = Net()
opt = torch.optim.{built}
freezer = Freezer(model)
for epoch in range(10):
    {again}
    turn(model, loader, opt)
"""
LATER = {
    "condition": "if epoch == 3 * (i + 1):", "freeze": "p.requires_grad_(False)", "again": "freezer.apply(epoch)",
    "zero": "opt.zero_grad(set_to_none=False)", "built": "SGD(model.parameters(), lr=0.1, momentum=0.9)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, "momentum"),
        ({"freeze": "p.requires_grad = False"}, "momentum"),
        ({"built": "SGD(model.parameters(), lr=0.1, weight_decay=1e-4)"}, "weight decay"),
        ({"built": "AdamW(model.parameters(), lr=0.1)"}, "momentum"),
        ({"zero": "for p in model.parameters():\n            p.grad.zero_()"}, "momentum"),
    ],
)
def test_fires_source(changed, why):
    """Seen as a SourceParsed."""
    (finding,) = lint(FrozenButUpdated, SCHEDULED.format(**{**LATER, **changed}))
    assert (finding.code, finding.severity, finding.where.line) == ("O17", "warning", 16)
    assert finding.message.endswith(f"{why} moves them on")


@pytest.mark.parametrize(
    "changed",
    [
        {"zero": "opt.zero_grad()"},
        {"zero": "opt.zero_grad(set_to_none=True)"},
        {"built": "SGD(model.parameters(), lr=0.1)"},
        {"built": "SGD(model.fc.parameters(), lr=0.1, momentum=0.9)"},
        {"condition": "if True == 1:\n                p = None\n            for _ in (1,):", "again": "pass"},
        {"condition": "for _ in (1,):"},
        {"condition": "if epoch == 0:"},
        {"condition": "if self.freezes:"},
        {"freeze": "p.requires_grad_(False); p.grad = None"},
        {"freeze": "p.requires_grad_(epoch > 3)"},
        {"again": "freezer.apply(epoch)\n    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"},
        {"again": "freezer.apply(epoch)\n    model.stages[0].requires_grad_(True)"},
    ],
)
def test_near_miss_source(changed):
    assert lint(FrozenButUpdated, SCHEDULED.format(**{**LATER, **changed})) == []


STAGED = """import torch
from torch import nn
from itertools import chain
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.fc = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
    def hold(self):
        for p in self.one.parameters():
            p.requires_grad_(False)
def hold(*parts):
    for part in parts:
        part.requires_grad_(False)
def hold_one(part):
    for p in part.parameters():
        p.requires_grad = False
class Run:
    def __init__(self, settings):
        self.settings = settings
        self.net, self.other = Net(), Net()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
    def hold(self):
        for part in {parts}:
            for p in part.parameters():
                p.requires_grad = False
    def turn(self):
        self.opt.zero_grad(set_to_none=False)
        F.cross_entropy(self.net(x), y).backward()
        self.opt.step()
    def run(self):
        for epoch in range(1, 90):
            if {test}:
                {freeze}
            self.turn()
Run(settings).run()
"""
AT_TEN = {"parts": "(self.net.one, self.net.two)", "test": "epoch == self.settings.at", "freeze": "self.hold()"}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"parts": "[*self.net.children()]"},
        {"test": "self.settings.at <= epoch"},
        {"test": "self.settings.holds and epoch > 10"},
        {"freeze": "self.net.hold()"},
        {"freeze": "hold_one(self.net.one)"},
        {"freeze": "for p in chain(self.net.one.parameters(), self.net.two.parameters()): p.requires_grad = False"},
    ],
)
def test_fires_source_parts_of_the_model(changed):
    """In tuples, behind a method of the model, behind a function that is given one."""
    assert len(lint(FrozenButUpdated, STAGED.format(**{**AT_TEN, **changed}))) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"parts": "(self.net.one, self.other.two)"},
        {"parts": "self.parts"},
        {"parts": "(self.other.one,)"},
        {"test": "self.settings.at >= epoch"},
        {"test": "self.settings.holds or epoch > 10"},
        {"test": "epoch == 0"},
        {"freeze": "self.other.hold()"},
        {"freeze": "hold_one(self.other.one)"},
        {"freeze": "pass"},
    ],
)
def test_near_miss_source_parts_of_another(changed):
    assert lint(FrozenButUpdated, STAGED.format(**{**AT_TEN, **changed})) == []


STAGES = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
class Hold:
    def __init__(self, module, epoch):
        self.module, self.epoch = module, epoch
    def begin(self, epoch):
        if epoch == self.epoch:
            self.module.requires_grad_(False)
def freeze(module):
    for p in module.parameters():
        p.requires_grad = False
def train(model, optimizer, loader, hooks=()):
    for epoch in range(8):
        for hook in hooks:
            hook.begin(epoch)
        for x, y in loader:
            optimizer.zero_grad(set_to_none=False)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
def main(loader, part="body"):
    model = Net()
    {first}
    optimizer = {optimizer}
    {training}
    {between}
    {again}
main([])
"""
TWICE = {
    "first": "pass",
    "optimizer": "torch.optim.AdamW(model.parameters())",
    "training": "train(model, optimizer, loader)",
    "between": "freeze(model.body)",
    "again": "train(model, optimizer, loader)",
}
GROUPS = "torch.optim.SGD([dict(params=model.body.parameters(){}), dict(params=model.head.parameters())], momentum=0.9)"


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"optimizer": GROUPS.format("")},
        {"between": "model.body.weight.requires_grad_(False)"},
        {"again": "losses = [train(model, optimizer, part) for part in loader]"},
        {"training": "train(model, optimizer, loader, [Hold(model.body, 3)])", "between": "pass", "again": "pass"},
    ],
)
def test_fires_source_between_two_trainings(changed):
    assert len(lint(FrozenButUpdated, STAGES.format(**{**TWICE, **changed}))) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"again": "pass"},
        {"training": "print(model)"},
        {"first": "train(model, None, loader)", "training": "print(model)"},
        {"optimizer": "torch.optim.AdamW(model.head.parameters())"},
        {"optimizer": GROUPS.format(", momentum=0")},
        {"between": "if loader.frozen:\n        freeze(model.body)"},
        {"training": "train(model, optimizer, loader, [Hold(model.body, 0)])", "between": "pass", "again": "pass"},
        {"again": "main(loader)"},
    ],
)
def test_near_miss_source_one_training_or_other_parameters(changed):
    assert lint(FrozenButUpdated, STAGES.format(**{**TWICE, **changed})) == []


PHASED = """
from dataclasses import dataclass
import torch
from torch import nn
@dataclass
class Stage:
    name: str
    epochs: int = 3
    body: bool = True
STAGES = {stages}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 9), nn.Linear(9, 2)
    def forward(self, x):
        return self.head(self.body(x).relu())
def thaw(part, on):
    for p in part.parameters():
        {sets}
def train(net, rows):
    {before}
    for {names} in {through}:
        {within}
        {calls}
        for x, y in rows:
            optimizer.zero_grad(set_to_none={none})
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
train(Net(), rows)
"""
MADE = "optimizer = torch.optim.Adam(net.parameters(), lr=0.1)"
ROWS = "[{'name': 'all', 'body': True}, {'name': 'head', 'body': False}]"
BY_KEY = {"stages": ROWS, "calls": "thaw(net.body, stage['body'])"}
USUAL = {
    "stages": "[Stage('all', 9), Stage('head', body=False)]", "sets": "p.requires_grad = on", "before": MADE,
    "names": "stage", "through": "STAGES", "within": "pass", "calls": "thaw(net.body, stage.body)", "none": "False",
}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"sets": "p.requires_grad_(on)"},
        BY_KEY,
        BY_KEY | {"through": "enumerate(STAGES)", "names": "number, stage"},
        {"stages": "(('all', True), ('head', False))", "names": "name, on", "calls": "thaw(net.body, on)"},
        {"before": "optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)"},
    ],
)
def test_fires_source_in_a_later_stage(changed):
    """A list of stages says when a part is frozen."""
    (finding,) = lint(FrozenButUpdated, PHASED.format(**{**USUAL, **changed}))
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    "changed",
    [
        {"stages": "[Stage('all', 9), Stage('head')]"},
        {"stages": "[Stage('head', body=False), Stage('all')]"},
        {"stages": "[Stage('all', 9), Stage('head', body=unknown())]"},
        {"stages": "[Stage('head', body=False)]"},
        {"before": "pass", "within": MADE},
        {"none": "True"},
        {"before": "optimizer = torch.optim.SGD(net.parameters(), 0.1)"},
        {"before": "optimizer = torch.optim.Adam(net.head.parameters(), lr=0.1)"},
        {"within": "net.head.bias.requires_grad = bool(stage)"},
    ],
)
def test_near_miss_source_in_a_later_stage(changed):
    """It is another optimizer, another part, or never frozen after it moved."""
    assert lint(FrozenButUpdated, PHASED.format(**{**USUAL, **changed})) == []


DECAYS = """
def run(rows):
    net = Net()
    large = [p for p in net.parameters() if p.ndim > 1]
    small = [p for p in net.parameters() if p.ndim <= 1]
    groups = [{"params": large, "weight_decay": 0.1}, {"params": small, "weight_decay": 0.0}]
    optimizer = torch.optim.OPTIMIZER
    def epoch():
        for x, y in rows:
            optimizer.zero_grad(set_to_none=False)
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    epoch()
    for p in net.body.parameters():
        p.requires_grad_(False)
    epoch()
run(rows)
"""


@pytest.mark.parametrize(("optimizer", "found"), [("AdamW(groups)", 1), ("SGD(groups, 0.1)", 0)])
def test_source_groups_of_an_optimizer_that_always_has_moments(optimizer, found):
    """Whatever decays, moments move all of them."""
    above = PHASED.format(**USUAL).partition("def thaw")[0]
    assert len(lint(FrozenButUpdated, above + DECAYS.replace("OPTIMIZER", optimizer))) == found
