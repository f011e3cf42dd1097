"""Scripts that choose by names, tables and objects, gone through with objects that are known by how they were made."""

from __future__ import annotations

import sysconfig
from contextlib import suppress
from pathlib import Path

import pytest

from flatline.readers.rehearsal.machine import Exhausted
from flatline.readers.rehearsal.rehearsed import is_indirect, is_program, rehearse, rehearsed
from flatline.readers.source import _project
from flatline.readers.source._files import Text, Unparsable, parse, read
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module
from flatline.rules.modes.train_mode_not_restored import TrainModeNotRestored
from flatline.rules.optimization.scheduler_out_of_step import SchedulerOutOfStep
from flatline.testing import lint

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
"""
LOADERS = """
class Rows:
    def of(self, part):
        return DataLoader(TensorDataset(torch.load(part)), 32, shuffle=True)
loader, held_out = Rows().of("train"), Rows().of("test")
"""


def seen(code: str, **others: str):
    project = Project()
    for name, source in {**others, "train": HEAD + code}.items():
        text = Text(f"{name}.py", tuple(source.split("\n")))
        module = Module(text, parse(text))
        project.add(module, text.path)
    assert is_program(module)
    assert is_indirect(module) or any(is_indirect(each) for each in project.modules.values() if each is not None)
    return rehearsed(project, module)


def event_of(code: str):
    project, text = Project(), Text("train.py", tuple(code.split("\n")))
    project.add(Module(text, parse(text)), text.path)
    return _project.event(project, text)


def fed(code: str, **others: str) -> list[tuple[str, str]]:
    return [(loss.kind, loss.fed_by) for loss in seen(code, **others).losses]


def kinds(code: str, **others: str) -> list[str]:
    return sorted(fact.kind for fact in seen(code, **others).facts)


# --------------------------------------------------------------------------- what a loss is fed by

TRAINS = """
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.load("a")), 32):
    opt.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    opt.step()
"""
REGISTRY = """
LOSSES = {}

def register(name):
    def wrap(made):
        LOSSES[name] = made
        return made
    return wrap

@register("ce")
class Classes:
    def __init__(self, smoothing=0.0):
        self.smoothing = smoothing
    def __call__(self, scores, labels):
        return F.cross_entropy(scores, labels, label_smoothing=self.smoothing)

@register("bce")
class Findings:
    def __call__(self, scores, labels):
        return F.binary_cross_entropy_with_logits(scores, labels)
"""


@pytest.mark.parametrize(
    ("last", "name", "expected"),
    [
        ("nn.Softmax(-1)", "ce", [("cross_entropy", "softmax")]),
        ("nn.Sigmoid()", "bce", [("binary_cross_entropy_with_logits", "sigmoid")]),
        ("nn.Identity()", "ce", [("cross_entropy", "linear")]),
    ],
)
def test_a_loss_out_of_a_registry(last, name, expected):
    model = f"model = nn.Sequential(nn.Linear(4, 3), {last})\ncriterion = LOSSES['{name}']()\n"
    assert fed(REGISTRY + model + TRAINS) == expected


def test_a_loss_by_a_setting_that_nothing_says_has_no_answer():
    model = "import sys\nmodel = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))\ncriterion = LOSSES[sys.argv[1]]()\n"
    assert fed(REGISTRY + model + TRAINS) == []


@pytest.mark.parametrize(
    ("default", "expected"), [("True", [("cross_entropy", "softmax")]), ("False", [("cross_entropy", "linear")])]
)
def test_a_record_of_settings_says_which_way_a_forward_takes(default, expected):
    code = f"""
from dataclasses import dataclass, field

@dataclass
class Settings:
    probabilities: bool = {default}
    widths: list = field(default_factory=lambda: [4, 8, 3])

class Net(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        pairs = zip(settings.widths, settings.widths[1:])
        self.body = nn.Sequential(*[nn.Linear(a, b) for a, b in pairs])
    def forward(self, x):
        x = self.body(x)
        return x.softmax(-1) if self.settings.probabilities else x

class Holder:
    def __init__(self, kind):
        self.loss = getattr(nn, kind)()
    def __call__(self, *args):
        return self.loss(*args)

model, criterion = Net(Settings()), Holder("CrossEntropyLoss")
"""
    assert fed(code + TRAINS) == expected


def test_ways_that_nothing_decides_have_to_agree():
    code = """
class Net(nn.Module):
    def __init__(self, sharp):
        super().__init__()
        self.head, self.sharp = nn.Linear(4, 3), sharp
    def forward(self, x):
        x = self.head(x)
        if self.sharp:
            return x.softmax(-1)
        return x

class Holder:
    def __call__(self, scores, labels):
        return F.cross_entropy(scores, labels)

model, criterion = Net(torch.load("settings")["sharp"]), Holder()
"""
    assert fed(code + TRAINS) == []


def test_what_the_command_line_usually_says():
    code = """
import argparse

class Losses:
    table = {"nll": F.nll_loss, "ce": F.cross_entropy}
    def __init__(self, name):
        self.of = self.table[name]
    def __call__(self, scores, labels):
        return self.of(scores, labels)

parser = argparse.ArgumentParser()
parser.add_argument("--loss", default="nll", choices=["nll", "ce"])
parser.add_argument("--log-softmax", action="store_true")
args = parser.parse_args()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
    def forward(self, x):
        return self.head(x).log_softmax(-1) if args.log_softmax else self.head(x)

model, criterion = Net(), Losses(args.loss)
"""
    assert fed(code + TRAINS) == [("nll", "linear")]
    assert fed(code.replace("'store_true'", "'store_false'").replace('"store_true"', '"store_false"') + TRAINS) == [
        ("nll", "log_softmax")
    ]


def test_classes_that_register_themselves_and_their_bases():
    code = """
class Loss:
    known = {}
    def __init_subclass__(cls, name, **more):
        super().__init_subclass__(**more)
        Loss.known[name] = cls

class Base(Loss, name="base"):
    def __init__(self, weight=1.0):
        self.weight = weight
    def __call__(self, scores, labels):
        return self.weight * self.compute(scores, labels)

class Lists(Base, name="lists"):
    def compute(self, scores, wanted):
        return -(wanted * torch.log(torch.softmax(scores, 1))).sum(1).mean()

model, criterion = nn.Linear(4, 3), Loss.known["lists"](weight=2.0)
"""
    assert kinds(code + TRAINS) == ["logged softmax"]
    assert kinds(code.replace("torch.log(torch.softmax(scores, 1))", "F.log_softmax(scores, 1)") + TRAINS) == []


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ("scores", ["logged softmax"]),
        ("3 * scores", ["logged softmax"]),
        ("5 * torch.tanh(scores / 5)", []),
        ("F.normalize(scores, dim=1)", []),
        ("scores.clamp(-10, 10)", []),
    ],
)
def test_a_softmax_of_scores_between_bounds_does_not_come_to_nothing(scores, expected):
    code = f"""
class Listwise:
    def __call__(self, scores, wanted):
        bounded = {scores}
        return -(wanted * torch.log(bounded.softmax(1))).sum(1).mean()

model, criterion = nn.Linear(4, 3), dict(lists=Listwise)["lists"]()
"""
    assert kinds(code + TRAINS) == expected


# --------------------------------------------------------------------------- what an optimizer holds

TRAINER = """
class Hook:
    def before_fit(self, trainer):
        pass

class NewHead(Hook):
    def __init__(self, classes):
        self.classes = classes
    def before_fit(self, trainer):
        trainer.model.head = nn.Linear(8, self.classes)

class Trainer:
    def __init__(self, model, hooks):
        self.model, self.hooks = model, list(hooks)
        BUILT
    def call(self, name):
        for hook in sorted(self.hooks, key=lambda hook: getattr(hook, "rank", 0)):
            getattr(hook, name)(self)
    def fit(self, loader):
        self.call("before_fit")
        LATE
        for x, y in loader:
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.head(self.body(x).relu())

Trainer(Net(), [NewHead(5)]).fit(DataLoader(TensorDataset(torch.load("a")), 32))
"""
BUILDS = "self.optimizer = torch.optim.Adam(self.model.parameters())"


def test_a_hook_puts_in_a_head_that_no_optimizer_holds():
    code = TRAINER.replace("BUILT", BUILDS).replace("LATE", "pass")
    (fact,) = seen(code).facts
    assert fact.kind == "rebound"
    assert fact.name == "Adam"
    assert fact.text == "trainer.model.head"
    assert (HEAD + code).split("\n")[fact.where.line - 1].strip() == "trainer.model.head = nn.Linear(8, self.classes)"
    assert fact.where.function == "NewHead.before_fit"


@pytest.mark.parametrize(
    ("built", "late"),
    [
        ("pass", BUILDS),
        (BUILDS, 'self.optimizer.add_param_group({"params": self.model.head.parameters()})'),
        (BUILDS, "self.optimizer = torch.optim.Adam([{'params': self.model.head.parameters(), 'lr': 0.1}])"),
        (BUILDS, "self.model.head.requires_grad_(False)"),
        (BUILDS, "import other; other.prepare(self.model)"),
        ("import other; self.optimizer = other.build(self.model.parameters())", "pass"),
    ],
)
def test_a_head_that_an_optimizer_comes_to_hold(built, late):
    assert kinds(TRAINER.replace("BUILT", built).replace("LATE", late)) == []


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ("pass", 1),
        ("trainer.hold(trainer.model.head)", 0),
        ("trainer.rest()", 0),
        ("trainer.hold_all()", 0),
        ("trainer.build()", 0),
    ],
)
def test_the_rehearsal_has_the_last_word_on_a_head_that_was_replaced(after, told):
    methods = """
        self.build()
    def build(self):
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.hand = self.optimizer.add_param_group
    def hold(self, part):
        self.hand({"params": list(part.parameters()), "lr": 0.1})
    def rest(self):
        for name in ("head",):
            getattr(self.model, name).requires_grad_(False)
    def hold_all(self):
        self.optimizer.param_groups[0]["params"] = list(self.model.parameters())
"""
    code = TRAINER.replace("        BUILT", methods).replace("        LATE", "        pass")
    code = code.replace("self.classes)\n\nclass Trainer", f"self.classes)\n        {after}\n\nclass Trainer")
    assert [fact.kind for fact in event_of(HEAD + code).facts].count("rebound") == told


def test_a_head_that_is_replaced_behind_the_training_is_nothing_to_tell():
    code = TRAINER.replace("BUILT", BUILDS).replace("LATE", "pass").replace('self.call("before_fit")', "pass")
    code = code.replace("self.optimizer.step()\n", 'self.optimizer.step()\n        self.call("before_fit")\n')
    assert [fact.kind for fact in event_of(HEAD + code).facts].count("rebound") == 0


def test_a_weight_that_two_layers_share_is_held_with_either():
    code = TRAINER.replace("BUILT", BUILDS).replace("LATE", "self.model.head.weight = self.model.body.weight")
    assert kinds(code) == []


# --------------------------------------------------------------------------- modes, in events and managers

ENGINE = """
class Engine:
    def __init__(self, model):
        self.model, self.handlers, self.epoch = model, {"epoch": [], "start": []}, 0
        self.optimizer = torch.optim.Adam(model.parameters())
    def on(self, event):
        def keep(handler):
            self.handlers[event].append(handler)
            return handler
        return keep
    def fire(self, event):
        for handler in self.handlers[event]:
            handler(self)
    def run(self, loader, epochs):
        self.fire("start")
        while self.epoch < epochs:
            for x, y in loader:
                self.optimizer.zero_grad()
                F.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
            self.epoch += 1
            self.fire("epoch")

engine = Engine(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2)))

@engine.on("start")
def start(engine):
    engine.model.train()

@engine.on("epoch")
def report(engine):
    BEFORE
    with torch.no_grad():
        for x, y in DataLoader(TensorDataset(torch.load("b")), 32):
            print((engine.model(x).argmax(1) == y).sum())
    AFTER

engine.run(DataLoader(TensorDataset(torch.load("a")), 32), 10)
"""


def modes(before: str, after: str) -> list[str]:
    loops = seen(ENGINE.replace("BEFORE", before).replace("AFTER", after)).loops
    outer = max(loops, key=lambda loop: len(loop.paths[0]))
    return [tick.kind for tick in outer.paths[0] if tick.kind in ("eval", "train", "step")]


def test_an_event_puts_the_model_to_sleep():
    assert modes("engine.model.eval()", "pass") == ["step", "eval"]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("engine.model.train()", ["step", "eval", "train"]),
        ("for part in engine.model.modules():\n        part.training = True", ["step", "eval"]),
    ],
)
def test_an_event_that_wakes_it_again(after, expected):
    found = modes("engine.model.eval()", after)
    assert found[: len(expected)] == expected
    whole = seen(ENGINE.replace("BEFORE", "engine.model.eval()").replace("AFTER", after)).loops
    assert any(tick.kind == "train" for loop in whole for path in loop.paths for tick in path)


WAKES = """
class Stage:
    def __init__(self, net):
        self.net = net
    @property
    def name(self):
        return "train" if self.net.training else "eval"
    @name.setter
    def name(self, value):
        self.net.train(value == "train")
stage = Stage(engine.model)
"""


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("engine.model.eval()", "pass", 1),
        ("engine.model.eval()", "stage.name = 'train'", 0),
        ("engine.model.eval()", "operator.methodcaller('train')(engine.model)", 0),
        ("engine.model.eval()", "engine.model.apply(lambda part: setattr(part, 'training', True))", 0),
        ("engine.model.eval()", "[setattr(part, 'training', True) for part in engine.model.modules()]", 0),
        ("engine.model.eval()", "weakref.proxy(engine.model).train()", 0),
        ("engine.model.eval(); engine.later.callback(engine.model.train)", "pass", 0),
        ("engine.model.eval(); engine.later.callback(lambda: engine.model.train())", "pass", 0),
        ("engine.model.eval(); hand(engine.model)", "pass", 0),
    ],
)
def test_a_mode_that_is_restored_by_any_means(before, after, told):
    code = "import contextlib, operator, weakref\n" + ENGINE.replace(
        '@engine.on("start")', WAKES + '@engine.on("start")'
    )
    code = code.replace("self.epoch = model,", "self.epoch, self.later = model,").replace(
        "[]}, 0\n", "[]}, 0, contextlib.ExitStack()\n"
    )
    code = code.replace("BEFORE", before).replace("AFTER", after)
    assert len(lint(TrainModeNotRestored, HEAD + code)) == told


@pytest.mark.parametrize(("guard", "told"), [("if self.count % self.n == 0:", 0), ("if self.n:", 1)])
def test_a_schedule_that_steps_in_some_turns(guard, told):
    code = f"""
class Steps:
    def __init__(self, schedule, n):
        self.schedule, self.n, self.count = schedule, n, 0
    def after(self):
        self.count += 1
        {guard}
            self.schedule.step()

model, loader = nn.Linear(4, 2), DataLoader(TensorDataset(torch.load("a")), 32)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
hooks = [Steps(torch.optim.lr_scheduler.CosineAnnealingLR(opt, 30), 5)]
for epoch in range(30):
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
        for hook in hooks:
            hook.after()
"""
    assert len(lint(SchedulerOutOfStep, HEAD + code)) == told


def test_a_teacher_in_float16_says_nothing_of_the_gradients():
    code = HALVED.replace("KIND", "'half'").replace("BACK", "(F.mse_loss(self.own(x), self.loss(x, y))).backward()")
    code = code.replace("    def loss", "    @torch.no_grad()\n    def loss").replace(
        "self.opt = torch.optim.SGD(self.net", "self.own = Net()\n        self.opt = torch.optim.SGD(self.own"
    )
    assert kinds(code) == []


def test_a_pass_in_train_mode():
    assert kinds(ENGINE.replace("BEFORE", "pass").replace("AFTER", "pass")) == ["validated"]
    assert kinds(ENGINE.replace("BEFORE", "engine.model.eval()").replace("AFTER", "engine.model.train()")) == []
    undone = ENGINE.replace("nn.Dropout(0.3)", "nn.ReLU()").replace("BEFORE", "pass").replace("AFTER", "pass")
    assert kinds(undone) == []


def test_a_manager_runs_what_is_inside_it_where_it_yields():
    code = """
from contextlib import contextmanager

class Modes:
    @staticmethod
    @contextmanager
    def asleep(model):
        was = model.training
        model.eval()
        yield model
        model.train(was)

model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    for x, y in DataLoader(TensorDataset(torch.load("a")), 32):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    with Modes.asleep(model) as still:
        print(still(torch.load("b")))
"""
    outer = max(seen(code).loops, key=lambda loop: len(loop.paths[0]))
    assert [t.kind for t in outer.paths[0]] == ["zero", "backward", "step", "eval", "train"]


def test_what_a_generator_yields_is_used_before_it_goes_on():
    code = """
class Order:
    def batches(self, opt):
        for x in DataLoader(TensorDataset(torch.load("a")), 32):
            opt.zero_grad()
            yield x
            opt.step()

model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in Order().batches(opt):
    F.cross_entropy(model(x), y).backward()
"""
    assert ["zero", "backward", "step"] in [[t.kind for t in path] for loop in seen(code).loops for path in loop.paths]


def test_a_step_that_comes_in_some_turns_is_seen_both_ways():
    code = """
class Every:
    def __init__(self, n):
        self.n, self.count = n, 0
    def __call__(self):
        self.count += 1
        return self.count % self.n == 0

model, due = nn.Linear(4, 2), Every(4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.load("a")), 32):
    F.cross_entropy(model(x), y).backward()
    if due():
        opt.step()
        opt.zero_grad()
"""
    (loop,) = seen(code).loops
    assert sorted([t.kind for t in path] for path in loop.paths) == [["backward"], ["backward", "step", "zero"]]
    assert [t.always for path in loop.paths for t in path if t.kind == "step"] == [False]


# --------------------------------------------------------------------------- data

AUGMENTED = """
from torchvision import datasets, transforms as T
STEPS = {}

def steps(name):
    def keep(made):
        STEPS[name] = made
        return made
    return keep

@steps("plain")
def plain():
    return [T.Resize(32)]

@steps("strong")
def strong():
    return [T.RandomCrop(32), T.RandomHorizontalFlip()]

class Data:
    def __init__(self, train, test):
        self.made = {"train": T.Compose(STEPS[train]() + [T.ToTensor()])}
        self.made["test"] = self.made["train"] if test == train else T.Compose(STEPS[test]() + [T.ToTensor()])
    def loader(self, part):
        return DataLoader(datasets.ImageFolder(part, transform=self.made[part]), 32, shuffle=part == "train")

data = Data("strong", TEST)
model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(20):
    for x, y in data.loader("train"):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    with torch.no_grad():
        for x, y in data.loader("test"):
            print((model(x).argmax(1) == y).sum())
"""


def test_validation_goes_through_the_transform_of_the_training():
    (fact,) = seen(AUGMENTED.replace("TEST", '"strong"')).facts
    assert fact.kind == "augmented"
    assert fact.text == "T.RandomCrop(32)"
    assert kinds(AUGMENTED.replace("TEST", '"plain"')) == []


@pytest.mark.parametrize(("chance", "told"), [("0.5", 1), ("chance", 0), ("0.5 if part == 'train' else 0.0", 0)])
def test_a_transform_that_is_built_twice_in_one_place(chance, told):
    code = AUGMENTED.replace("TEST", '"strong"').replace("T.RandomCrop(32), T.RandomHorizontalFlip()", "T.Resize(32)")
    built = f"T.Compose([T.RandomHorizontalFlip({chance}), T.ToTensor()])"
    code = code.replace("transform=self.made[part]", built).replace("import datasets", "import chance, datasets")
    assert len(kinds(code)) == told


DISTRIBUTED = """
from torch.utils.data import DistributedSampler

class Part:
    def __init__(self, data):
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, 32, sampler=self.sampler)

part = Part(TensorDataset(torch.load("a")))
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(20):
    TOLD
    for x, y in part.loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("pass", ["no set_epoch"]),
        ("part.sampler.set_epoch(epoch)", []),
        ("part.loader.sampler.set_epoch(epoch)", []),
        ("if hasattr(part.loader.sampler, 'set_epoch'): part.loader.sampler.set_epoch(epoch)", []),
        ("import other; other.prepare(part)", []),
    ],
)
def test_a_sampler_that_is_not_told_the_epoch(told, expected):
    assert kinds(DISTRIBUTED.replace("TOLD", told)) == expected


# --------------------------------------------------------------------------- graphs

FEATURES = """
class Frozen:
    GUARD
    def features(self, x):
        return self.body(x)

class Net(Frozen, nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
        SET
    def forward(self, x):
        return self.head(self.features(x))

class Loss:
    def __call__(self, scores, labels):
        return F.cross_entropy(scores, labels)

model, criterion = Net(), Loss()
"""


def test_a_layer_that_is_only_computed_without_gradients():
    (fact,) = seen(FEATURES.replace("GUARD", "@torch.no_grad()").replace("SET", "pass") + TRAINS).facts
    assert fact.kind == "cut layer"
    assert fact.name == "nn.Linear(4, 8)"
    assert fact.text == "torch.no_grad()"


@pytest.mark.parametrize(
    ("guard", "done"),
    [
        ("", "pass"),
        ("@torch.no_grad()", "self.body.requires_grad_(False)"),
        ("@torch.no_grad()", "self.body.load_state_dict(torch.load('body'))"),
        ("@torch.no_grad()", "[p.requires_grad_(False) for p in self.body.parameters()]"),
    ],
)
def test_a_layer_that_learns_or_is_not_meant_to(guard, done):
    assert kinds(FEATURES.replace("GUARD", guard).replace("SET", done) + TRAINS) == []


KEPT = """
class History:
    def __init__(self):
        self.rows = []
    def add(self, value):
        self.rows.append(KEEPS)

history, model = History(), nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(20):
    for x, y in DataLoader(TensorDataset(torch.load("a")), 32):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        history.add(loss)
"""


@pytest.mark.parametrize(("keeps", "expected"), [("value", ["kept"]), ("value.item()", []), ("value.detach()", [])])
def test_losses_that_are_kept_with_their_graphs(keeps, expected):
    assert kinds(KEPT.replace("KEEPS", keeps)) == expected


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        ("loss.backward()\n        opt.step()\n        history.add(part)", ["kept"]),
        ("history.add(part)\n        (loss + sum(history.rows)).backward()\n        opt.step()", []),
        ("loss.backward()\n        opt.step()\n        history.add(part)\n        history.rows.clear()", []),
    ],
)
def test_terms_of_a_loss_that_are_kept_and_those_that_are_used(then, expected):
    code = KEPT.replace("KEEPS", "value").replace(
        "loss.backward()\n        opt.step()\n        history.add(loss)", then
    )
    code = code.replace(
        "loss = F.cross_entropy(model(x), y)",
        "part = model(x).abs().mean()\n        loss = F.cross_entropy(model(x), y) + part",
    )
    assert kinds(code) == expected


def test_events_are_members_of_an_enumeration():
    code = ENGINE.replace('{"epoch": [], "start": []}', "defaultdict(list)").replace('"epoch"', "Event.EPOCH")
    code = f"from collections import defaultdict\nfrom enum import Enum\nclass Event(Enum):\n    EPOCH = 1\n{code}"
    loops = seen(code.replace("BEFORE", "engine.model.eval()").replace("AFTER", "pass")).loops
    assert any(tick.kind == "eval" for loop in loops for path in loop.paths for tick in path)


HALVED = """
DTYPES = {"half": torch.float16, "brain": torch.bfloat16, "full": torch.float32}

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

class Trainer:
    def __init__(self, kind):
        self.net, self.dtype = Net(), DTYPES[kind]
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def loss(self, x, y):
        with torch.autocast("cuda", dtype=self.dtype, enabled=self.dtype is not torch.float32):
            return F.cross_entropy(self.net(x), y)
    def fit(self, loader):
        for x, y in loader:
            self.opt.zero_grad()
            BACK
            self.opt.step()

Trainer(KIND).fit(DataLoader(TensorDataset(torch.load("a")), 32))
"""


@pytest.mark.parametrize(
    ("kind", "back", "expected"),
    [
        ("'half'", "self.loss(x, y).backward()", ["half"]),
        ("'brain'", "self.loss(x, y).backward()", []),
        ("'full'", "self.loss(x, y).backward()", []),
        ("torch.load('kind')", "self.loss(x, y).backward()", []),
        ("'half'", "scaler.scale(self.loss(x, y)).backward()", []),
    ],
)
def test_float16_by_a_table(kind, back, expected):
    assert kinds(HALVED.replace("KIND", kind).replace("BACK", back)) == expected


OPTIMIZERS = """
OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
SETTINGS = {"name": "adam", "kwargs": {"lr": 0.1, "weight_decay": 0.01}}
MORE
model, criterion = nn.Linear(4, 2), nn.CrossEntropyLoss()
opt = OPTIMIZERS[SETTINGS["name"]](model.parameters(), **SETTINGS["kwargs"])
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", ["coupled"]),
        ("SETTINGS['name'] = 'adamw'", []),
        ("SETTINGS['kwargs']['weight_decay'] = 0.0", []),
        ("SETTINGS['kwargs'].update(read())", []),
        ("SETTINGS['kwargs'] = {**SETTINGS['kwargs'], **read()}", []),
    ],
)
def test_decay_of_an_optimizer_that_settings_choose(more, expected):
    assert kinds(OPTIMIZERS.replace("MORE", more) + TRAINS.replace("opt = torch", "other = torch")) == expected


# --------------------------------------------------------------------------- bounds


def test_a_script_without_an_end_is_left_alone():
    code = """
class Endless:
    def again(self, n):
        return [self.again(n + 1) for _ in range(3)]

Endless().again(0)
model, criterion = nn.Linear(4, 2), nn.CrossEntropyLoss()
"""
    found = seen(code + TRAINS)
    assert (found.losses, found.loops, found.facts) == ([], [], [])


@pytest.mark.parametrize(
    "line",
    [
        "x = [0] * 10 ** 9",
        "x = 'a' * 10 ** 9",
        "x = 2 ** 10 ** 9",
        "x = list(range(10 ** 12))",
        "x = 'ab'\n" + "x = x + x\n" * 80,
        "x = 'ab'\n" + "x = f'{x}{x}'\n" * 80,
        "x = 'ab'\n" + "x = x.replace('a', x).replace('b', x)\n" * 80,
        "x = 'ab'\n" + "x = x.join([x] * 50)\n" * 80,
        "x = [1]\n" + "x = x + x\nx.extend(x)\nx *= 2\nx += x\nx = [*x, *x]\nx = (x, x)\nx = list(x)\n" * 80,
        "x = 3\n" + "x = x * x\n" * 80,
        "x = {}\n" + "x = {1: x, 2: x}\n" * 80 + "y = torch.stack([x])",
        "from torchvision import datasets, transforms as T\nx = T.RandomCrop(8)\n"
        + "x = T.Compose([x, [x, x]])\n" * 80
        + "for a in DataLoader(datasets.ImageFolder('a', transform=x)): torch.ones(1).sum().backward()",
        "x = nn.Linear(2, 2)\n" + "x = nn.Sequential(x, x)\n" * 80 + "x.eval()\nprint(list(x.parameters()), x(1))",
        "x = {}\nx[x.get(1)] = x\nprint(x)",
        "class A(A): pass",
        "def f(*a, **k): return f(*a, **k)\nf()",
        "a, *b, c = [1]",
        "del undefined",
        "import train",
        "match 1:\n    case [a, b]: pass\n    case 1: x = 1",
        "x = y = []\nx.append(x)\nx += x\nprint(len(x))",
        "async def f():\n    async with g() as h:\n        await h\nf()",
    ],
)
def test_nothing_that_parses_stops_it(line):
    code = "class Own:\n    def f(self): pass\nmodel, criterion = nn.Linear(4, 2), nn.CrossEntropyLoss()\n"
    assert seen(f"{code}{line}\n{TRAINS}") is not None


def test_the_standard_library_is_gone_through():
    project, count = Project(), 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-m]*.py")):
        with suppress(Unparsable):
            text = read(str(path))
            module = Module(text, parse(text))
            with suppress(Exhausted):
                rehearse(project, module, [module], lambda node: node.lineno % 2 == 0)
            count += 1
    assert count > 50
