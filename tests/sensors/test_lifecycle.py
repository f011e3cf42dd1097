"""What becomes of a checkpoint before the first step, which rate is read, and stages that never come."""

from __future__ import annotations

import copy
import runpy
import sys

import pytest
import torch
from tests.sensors.watching import seen
from torch import nn

import flatline
from flatline.events import CheckpointLoaded, CheckpointLost, RandomFrozen, RateRead, ScheduleObserved, StageNotReached
from flatline.sensors import stages
from flatline.sensors.built_anew import built_anew as is_built_anew
from flatline.sensors.stages import unreached_unfreezing

EVENTS = (CheckpointLost, RandomFrozen, RateRead)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.body(x))


def watched(script, events=EVENTS):
    """What the sensors told about a script."""
    torch.manual_seed(3)
    with flatline.watch() as run:
        engine, seen = run._session.engine, []
        show = engine.emit
        engine.emit = lambda event: (seen.append(event) if isinstance(event, events) else None, show(event))
        script()
    return seen


def train(model, steps=3, optimizer=None):
    optimizer = optimizer or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 3, (16,))).backward()
        optimizer.step()


@pytest.fixture
def file(tmp_path):
    torch.manual_seed(11)
    path = tmp_path / "checkpoint.pt"
    torch.save({f"module.{key}": value for key, value in Net().state_dict().items()}, path)
    return path


def read(file):
    return {key.removeprefix("module."): value for key, value in torch.load(file).items()}


def initialise(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)


# --------------------------------------------------------------------------- lost


def picked_none(model, file):
    own = model.state_dict()
    own.update({key: value for key, value in torch.load(file).items() if key in own})
    model.load_state_dict(own)


def picked_none_loosely(model, file):
    own = model.state_dict()
    model.load_state_dict({key: value for key, value in torch.load(file).items() if key in own}, strict=False)


def initialised_again(model, file):
    model.load_state_dict(read(file))
    model.apply(initialise)


def widened_by_hand(model, file):
    """What fits is loaded, and larger matrices are made of the file's by hand."""
    own = model.state_dict()
    model.load_state_dict({**own, **{k: v for k, v in read(file).items() if v.dim() == 1}})
    with torch.no_grad():
        for name, value in read(file).items():
            model.get_parameter(name).copy_(value.roll(1, 0))


def put_into_a_dictionary(model, file):
    own = model.state_dict()
    fit = {key: value for key, value in read(file).items() if key in model.state_dict() and value.dim()}
    own.update(fit)
    print(len(fit), "of", len(own))


def put_into_a_new_one(model, file):
    source = Net()
    merged = {**model.state_dict(), **source.state_dict()}
    print(len(merged))


def built_anew(model, file):
    Net().load_state_dict(read(file))


@pytest.mark.parametrize(
    ("kind", "load"),
    [
        ("own", picked_none),
        ("empty", picked_none_loosely),
        ("overwritten", initialised_again),
        ("dropped", built_anew),
        ("merged", put_into_a_dictionary),
        ("merged", put_into_a_new_one),
    ],
)
def test_lost(kind, load, file):
    def script():
        model = Net()
        load(model, file)
        train(model)

    (lost,) = watched(script)
    assert isinstance(lost, CheckpointLost)
    assert (lost.kind, lost.model, lost.tensors) == (kind, "Net", 6)


@pytest.mark.parametrize(
    ("kind", "load"),
    [
        ("own", picked_none),
        ("empty", picked_none_loosely),
        ("overwritten", initialised_again),
        ("merged", put_into_a_dictionary),
    ],
)
def test_lost_in_a_later_stage(kind, load, file):
    def script():
        train(Net(), steps=12)
        model = Net()
        load(model, file)
        train(model)

    (lost,) = watched(script)
    assert (lost.kind, lost.model) == (kind, "Net")


def plain(model, file):
    model.load_state_dict(read(file))


def picked_all(model, file):
    own = model.state_dict()
    own.update(read(file))
    model.load_state_dict(own)


def new_head(model, file):
    model.load_state_dict(read(file))
    model.head.reset_parameters()


def snapshot(model, file):
    model.load_state_dict(copy.deepcopy(model.state_dict()))


def copied_by_hand(model, file):
    other = Net()
    other.load_state_dict(read(file))
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            mine.copy_(theirs)


def body_taken_over(model, file):
    other = Net()
    other.load_state_dict(read(file))
    model.body = other.body


def baseline_first(model, file):
    model.load_state_dict(read(file))
    with torch.no_grad():
        model(torch.randn(4, 8))
    model.apply(initialise)


def shrunk_and_perturbed(model, file):
    model.load_state_dict(read(file))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5).add_(torch.randn_like(p) * 0.01)


def compared(model, file):
    """How far the file is from the fresh weights, and what a merge would look like."""
    own = model.state_dict()
    for key, value in read(file).items():
        own[key] = value - own[key]
    print(max(value.abs().max() for value in own.values()))


def merged_and_then_by_hand(model, file):
    own = model.state_dict()
    own.update(read(file))
    with torch.no_grad():
        for mine, value in zip(model.parameters(), torch.load(file).values(), strict=True):
            mine.copy_(value)


def merged_for_a_teacher(model, file):
    """The dictionary of another model, which does not train."""
    teacher = Net()
    own = teacher.state_dict()
    own.update(read(file))
    model.load_state_dict(read(file))


def loaded_before(model, file):
    """What is told of the dictionary is of no consequence: the model has the weights."""
    model.load_state_dict(read(file))
    own = model.state_dict()
    own.update(read(file))


def merged_elsewhere(model, file):
    own = dict(model.state_dict())
    own.update(read(file))
    put = model.load_state_dict
    put(own)


@pytest.mark.parametrize(
    "load",
    [
        plain, picked_all, new_head, snapshot, copied_by_hand, body_taken_over, baseline_first, shrunk_and_perturbed,
        compared, merged_and_then_by_hand, merged_for_a_teacher, merged_elsewhere, loaded_before,
    ],
)  # fmt: skip
def test_not_lost(load, file):
    def script():
        model = Net()
        load(model, file)
        train(model)

    assert watched(script) == []


def best_weights(model, file):
    train(model, steps=8)
    model.load_state_dict(read(file))


def next_fold(model, file):
    best_weights(model, file)
    model.apply(initialise)


def own_of_a_trained(model, file):
    train(model, steps=8)
    torch.load(file)
    model.load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    "load", [plain, picked_all, new_head, copied_by_hand, baseline_first, best_weights, next_fold, own_of_a_trained]
)
def test_not_lost_in_a_later_stage(load, file):
    def script():
        first = Net()
        train(first, steps=12)
        model = Net()
        load(model, file)
        train(model)

    assert watched(script) == []


class Runner:
    def __init__(self):
        self.build()

    def build(self):
        self.net = Net()

    def report(self):
        with torch.no_grad():
            return self.net(torch.randn(4, 8))


def best_then_built(runner, best):
    runner.net.load_state_dict(best)
    print("on from the best")
    runner.build()


def best_then_other(runner, best):
    model, runner.net = runner.net, None
    model.load_state_dict(best)
    model = Net()
    runner.net = model


def best_then_measured(runner, best):
    runner.net.load_state_dict(best)
    runner.report()
    runner.build()


def best_kept(runner, best):
    runner.net.load_state_dict(best)
    kept = runner.net
    runner.build()
    assert kept is not runner.net


def best_and_on(runner, best):
    runner.net.load_state_dict(best)


def anew_then_best(runner, best):
    runner.build()
    runner.net.load_state_dict(best)


def another_stage(load):
    def script():
        runner = Runner()
        train(runner.net, steps=30, optimizer=torch.optim.Adam(runner.net.parameters(), 0.01))
        best = copy.deepcopy(runner.net.state_dict())
        load(runner, best)
        train(runner.net)

    return watched(script)


@pytest.mark.parametrize("load", [best_then_built, best_then_other])
def test_lost_as_the_model_is_built_anew(load):
    (lost,) = another_stage(load)
    assert (lost.kind, lost.model) == ("dropped", "Net")


@pytest.mark.parametrize("load", [best_then_measured, best_kept, best_and_on, anew_then_best])
def test_not_lost_where_it_is_used_or_kept(load):
    assert another_stage(load) == []


@pytest.mark.parametrize(
    ("source", "anew"),
    [
        ("model.load_state_dict(best)\nlr = 1e-4\nmodel = Net().to(device)\n", True),
        ("model.load_state_dict(best)\nmodel, opt = build()\n", True),
        ("missing = a.b.load_state_dict(best)\na.b = Net()\n", True),
        ("model.load_state_dict(best)\nmodel = torch.compile(model)\n", False),
        ("model.load_state_dict(best)\nscores.append(test(model))\nmodel = Net()\n", False),
        ("model.load_state_dict(best)\nkeep()\nmodel = Net()\ndef keep(): save(model)\n", False),
        ("model.load_state_dict(best)\nmodel = other\n", False),
        ("if x:\n    model.load_state_dict(best)\nmodel = Net()\n", False),
        ("r.net.load_state_dict(best)\nr.fit()\nclass R:\n    def fit(self):\n        self.net(x)\n", False),
    ],
)
def test_built_anew(source, anew, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    assert is_built_anew(str(path), next(i for i, x in enumerate(source.splitlines(), 1) if "load_" in x)) is anew


# --------------------------------------------------------------------------- frozen at random


def headless(file, prepare, freeze):
    def script():
        model = Net()
        model.load_state_dict({k: v for k, v in read(file).items() if not k.startswith("head")}, strict=False)
        prepare(model)
        for part in freeze(model):
            part.requires_grad_(False)
        train(model)

    return watched(script)


def test_head_frozen_at_random(file):
    (frozen,) = headless(file, lambda model: None, lambda model: [model.head, model.body[2]])
    assert (frozen.layers, frozen.loaded, frozen.trains) == (("head",), 4, 2)


def test_head_that_trains_or_was_set(file):
    assert headless(file, lambda model: None, lambda model: [model.body]) == []
    assert headless(file, lambda model: nn.init.orthogonal_(model.head.weight), lambda model: [model.head]) == []


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(8, 2), nn.Linear(2, 8)

    def forward(self, x):
        return self.base(x + self.up(self.down(x)))


def second_training(head, frozen, first=30):
    """Which layers are told to be frozen at random, where a trained body gets a head and adapters."""

    def script():
        model = Net()
        train(model, first)
        head(model)
        for part in frozen(model):
            part.requires_grad_(False)
        train(Adapted(model))

    return [(event.layers, event.source, event.loaded) for event in watched(script)]


def new_head(model):
    model.head = nn.Linear(32, 3)


def new_readout(model):
    model.head = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 3))


def own_start(model):
    new_head(model)
    nn.init.orthogonal_(model.head.weight)


def test_a_new_head_on_a_trained_body_that_is_frozen_with_it():
    assert second_training(new_head, lambda model: [model]) == [(("base.head",), "training", 4)]


@pytest.mark.parametrize(
    ("head", "frozen"),
    [
        (new_head, lambda model: [model.body]),
        (lambda model: None, lambda model: [model]),
        (own_start, lambda model: [model]),
        (new_readout, lambda model: [model.body, model.head[0]]),
        (new_head, lambda model: [model.head]),
    ],
    ids=["the head trains", "the old head", "a start of its own", "random features under a readout", "the body trains"],
)
def test_no_new_head_that_is_frozen_with_a_trained_body(head, frozen):
    assert second_training(head, frozen) == []


class OwnHead(nn.Module):
    """Without a ``weight`` by that name."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, 32))

    def forward(self, x):
        return x @ self.w.T


def test_a_new_head_of_a_class_of_its_own():
    def script():
        model = Net()
        train(model, 30)
        model.head = OwnHead()
        model.body.requires_grad_(False)
        train(model)

    assert seen(script, RandomFrozen) == []


def test_a_body_that_nothing_trained_is_no_base():
    assert second_training(new_head, lambda model: [model], first=0) == []


# --------------------------------------------------------------------------- rates


def rates_read(make, steps=4):
    def script():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = make(optimizer)
        for _ in range(steps):
            train(model, 1, optimizer)
            scheduler.step()
            scheduler.get_lr()

    return watched(script)


@pytest.mark.filterwarnings("ignore:To get the last learning rate")
def test_get_lr_of_a_chained_schedule():
    told = rates_read(lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
    assert [(round(e.value, 6), round(e.rate, 6)) for e in told[:2]] == [(0.025, 0.05), (0.0125, 0.025)]
    assert len(told) == 4


@pytest.mark.filterwarnings("ignore:To get the last learning rate")
def test_get_lr_in_closed_form():
    assert rates_read(lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: 0.5**e)) == []
    assert rates_read(lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)) == []


def orphaned(scheduled):
    """What is told of a schedule whose optimizer never steps: it was made for ``scheduled(model)``, and another one trains."""

    def script():
        model = Net()
        orphan = torch.optim.SGD(scheduled(model).parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(orphan, 0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(10):
            train(model, 1, optimizer)
            scheduler.step()

    with pytest.warns(UserWarning, match="before `optimizer.step"):
        return watched(script, ScheduleObserved)[-1]


def test_the_optimizer_of_a_schedule_is_replaced_and_all_are_gone_at_the_end():
    told = orphaned(lambda model: model)
    assert told.trainer is not None
    assert told.trainer_lr == 0.1
    assert told.lr < 0.01


def test_the_model_is_replaced_and_its_schedule_goes_on():
    told = orphaned(lambda model: Net())
    assert told.copied
    assert told.trainer_lr == 0.1


def test_the_schedule_of_another_model_goes_on():
    assert orphaned(lambda model: torch.nn.Linear(3, 2)).trainer is None


@pytest.mark.parametrize("members", [1, 3])
def test_a_schedule_before_the_first_step_of_its_optimizer(members):
    def script():
        models = [Net() for _ in range(members)]
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
        schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in optimizers]
        for turn in range(9):
            if members == 1:
                schedules[0].step()
            train(models[turn % members], 1, optimizers[turn % members])
            for schedule in schedules if members > 1 else ():
                schedule.step()

    with pytest.warns(UserWarning, match="before `optimizer.step"):
        told = watched(script, ScheduleObserved)
    assert max(each.calls_before_first_step for each in told) == (members == 1)


# --------------------------------------------------------------------------- stages

UNFREEZE = "        model.body.requires_grad_(True)\n"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (f"for epoch in range(5):\n    if epoch == 5:\n{UNFREEZE}", 3),
        (f"for epoch in tqdm(range(5)):\n    if epoch > 4:\n{UNFREEZE}", 3),
        ("def go(m):\n    for p in m: p.requires_grad = True\nfor i in range(3):\n    if i >= 3: go(model)\n", 4),
        (f"for epoch in range(5):\n    if epoch in (5, 8):\n{UNFREEZE}", 3),
        (f"for epoch in range(5):\n    if epoch == 4:\n{UNFREEZE}", None),
        (f"for epoch in range(5):\n    if epoch in (2, 8):\n{UNFREEZE}", None),
        (f"for epoch in range(5):\n    if epoch in (5, n):\n{UNFREEZE}", None),
        (f"for epoch in range(n):\n    if epoch == 5:\n{UNFREEZE}", None),
        (f"for epoch in range(5):\n    if epoch % 5 == 5:\n{UNFREEZE}", None),
        (f"for epoch in range(5):\n    if full and epoch == 5:\n{UNFREEZE}", None),
        ("for epoch in range(5):\n    if epoch == 5:\n        model.body.requires_grad_(False)\n", None),
        (f"for epoch in range(5):\n    if epoch < 5:\n{UNFREEZE}", None),
    ],
)
def test_stages(source, line, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    found = unreached_unfreezing(str(path))
    assert (found and found.line) == line


@pytest.mark.parametrize(
    ("number", "steps", "written"), [(120, 480, True), (120, 90, False), (100, 480, False), (999, 5000, False)]
)
def test_a_stage_that_is_counted_in_steps(number, steps, written, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        f"def main(epochs=6, stage={number}):\n    for e in range(epochs):\n        if e == stage: body.requires_grad_(True)\n",
        encoding="utf-8",
    )
    known = {(str(path), "main", 1): {"epochs": 6, "stage": number}}
    found = unreached_unfreezing(str(path), known, steps)
    assert found is not None
    assert found.written == written


CALLBACK = """
class Unfreeze(Base):
    def __init__(self, stages, {parameter}):
        self.stages, self.at = stages, at

    def on_epoch_begin(self, epoch):
        {body}
                stage.requires_grad_(True)

def fit(callback):
    for e in range(6):
        callback.on_epoch_begin({given})
{made}
"""
ASKED = {
    "a list that is gone through": (
        "for when, stage in zip(self.at, self.stages):\n          if epoch == when", "at", "fit(Unfreeze(net, at=(6, 9)))", True
    ),
    "a table": ("if epoch in self.at", "at={{6: 'a', 60: 'b'}}", "fit(Unfreeze(net))", True),
    "a number": ("if epoch >= self.at", "at", "fit(Unfreeze(net, at=7))", True),
    "turned round": ("if self.at == epoch", "at", "fit(Unfreeze(net, at=7))", True),
    "a way to say never": ("if epoch == self.at", "at", "fit(Unfreeze(net, at=1000))", False),
    "one of them comes": ("if epoch in self.at", "at", "fit(Unfreeze(net, at=(3, 9)))", None),
    "another one comes": ("if epoch == self.at", "at", "fit(Unfreeze(net, at=2)); fit(Unfreeze(net, at=9))", None),
    "not written": ("if epoch == self.at", "at", "fit(Unfreeze(net, at=pick()))", None),
    "positional": ("if epoch == self.at", "at", "fit(Unfreeze(net, 9))", None),
    "before": ("if epoch < self.at", "at", "fit(Unfreeze(net, at=9))", None),
}  # fmt: skip


FLAG = """
class Tuner:
    def set_body(self, {argument}):
        for p in self.body.parameters():
            p.requires_grad_({value})

    def on_epoch_start(self, epoch):
        if epoch == self.freeze_epochs:
            self.set_body({given})

    def fit(self):
        for epoch in range(9):
            self.on_epoch_start(epoch)

Tuner(freeze_epochs=30).fit()
"""


@pytest.mark.parametrize(
    ("argument", "value", "given", "written"),
    [
        ("flag", "flag", "True", True),
        ("trains", "trains", "trains=True", True),
        ("flag", "flag", "False", None),
        ("flag", "not flag", "True", None),
        ("flag", "flag", "wanted", None),
    ],
)
def test_stages_that_call_a_method_which_is_told(argument, value, given, written, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(FLAG.format(argument=argument, value=value, given=given), encoding="utf-8")
    found = unreached_unfreezing(str(path), {}, 400)
    assert (found and found.written) == written


@pytest.mark.parametrize("name", ASKED)
def test_stages_that_a_callback_is_asked_for(name, tmp_path):
    body, parameter, made, written = ASKED[name]
    path = tmp_path / "train.py"
    text = CALLBACK.format(parameter=parameter.format(), body=body + ":", made=made, given="e")
    path.write_text(text, encoding="utf-8")
    found = unreached_unfreezing(str(path))
    assert (found and found.written) == written
    later = tmp_path / "later.py"
    later.write_text(text.replace("epoch_begin(e)", "epoch_begin(e + 5)"), encoding="utf-8")
    assert unreached_unfreezing(str(later)) is None


SETTINGS = """
class Config:
    epochs: int = 6
    unfreeze: int = 6
    other: int = 60
    table = {"unfreeze": 9}

class Run:
    cfg = Config()

Config.run = Run()
"""


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("for e in range(cfg.epochs):\n        if e == cfg.unfreeze: body.requires_grad_(True)\n", True),
        ("for e in range(LIMIT):\n        if e >= stage: body.requires_grad_(True)\n", True),
        ("for e in range(epochs):\n        if e >= stage: body.requires_grad_(True)\n", True),
        ("for e in range(cfg.epochs):\n        if e == cfg.table['unfreeze']: body.requires_grad_(True)\n", True),
        ("for e in range(cfg.run.epochs):\n        if e == cfg.run.other: body.requires_grad_(True)\n", None),
        ("for e in range(cfg.epochs):\n        if e == cfg.other: body.requires_grad_(True)\n", False),
        ("for e in range(cfg.epochs):\n        if e == never: body.requires_grad_(True)\n", False),
        ("for e in range(cfg.epochs):\n        if e == fifth: body.requires_grad_(True)\n", None),
        (
            "for e in range(cfg.epochs):\n        cfg.unfreeze -= 1\n        if e == cfg.unfreeze: b.requires_grad_(True)\n",
            None,
        ),
        ("for e in range(epochs):\n        stage = pick()\n        if e == stage: body.requires_grad_(True)\n", None),
        ("for e in range(epochs):\n        if e == cfg.asked: body.requires_grad_(True)\n", None),
    ],
)
def test_stages_in_a_function(body, written, tmp_path):
    path = tmp_path / "train.py"
    head = "def main(cfg, epochs=6, stage=6, fifth=5):\n    never = epochs\n    look()\n    "
    path.write_text(head + body + "settings = dict(unfreeze=6)\n", encoding="utf-8")
    names: dict = {"LIMIT": 6}
    exec(compile(SETTINGS, "settings", "exec"), names)
    names["Config"].asked = property(lambda self: pytest.fail("a property of the user's ran"))
    seen: dict = {}
    names["look"] = lambda: seen.update(stages.numbers_in(sys._getframe(1))) or pytest.skip()
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    with pytest.raises(pytest.skip.Exception):
        names["main"](names["Config"]())
    found = unreached_unfreezing(str(path), seen)
    assert (found and found.written) == written
    assert unreached_unfreezing(str(path)) is None


LATE = """
import torch
from torch import nn
body, head = nn.Linear(8, 32), nn.Linear(32, 3)
{load}
body.requires_grad_(False)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for epoch in range(5):
    if epoch == 5:
        body.requires_grad_(True)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(body(torch.randn(16, 8))), torch.randint(0, 3, (16,))).backward()
        optimizer.step()
"""


@pytest.mark.parametrize(("load", "told"), [("body.load_state_dict(nn.Linear(8, 32).state_dict())", [288]), ("", [])])
def test_a_loaded_body_that_is_a_model_of_its_own_counts_as_frozen(load, told, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(LATE.format(load=load), encoding="utf-8")
    found = seen(lambda: runpy.run_path(str(path)), StageNotReached)
    assert [event.frozen for event in found] == told


def test_counters_of_batch_norm_are_no_tensors_of_a_checkpoint():
    """Torch makes them where a checkpoint has none: with all other names missing, nothing was loaded."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    given = {"epoch": 3, "state_dict": net.state_dict()}
    (told,) = watched(lambda: net.load_state_dict(given, strict=False), CheckpointLoaded)
    assert (told.tensors, len(told.missing), told.nested) == (6, 6, "state_dict")


def test_near_miss_of_weights_made_by_hand_behind_a_load_of_what_fits(file):
    def script():
        model = Net()
        widened_by_hand(model, file)
        train(model)

    assert [each for each in watched(script) if isinstance(each, CheckpointLost)] == []
