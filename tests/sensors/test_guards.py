"""Stages that wait for a number in another unit, or stand in a method that nothing calls."""

from __future__ import annotations

import linecache
import sys
import types

import pytest

from flatline.sensors import guards
from flatline.sensors.guards import Run, missed_unfreezing
from flatline.sensors.witnessed import Witnessed

STEPS, ROWS = 400, 32
SHARE = """
class Net:
    def parameters(self):
        return []

def thaw(net):
    for p in net.parameters():
        p.requires_grad = True

def fit(net, at, ready=False):
    acc = 0.1
    for step in range(400):
        look(step)
        acc = 0.5 - 0.2 * (step // 20 % 2)
        if {test}:
            thaw(net)

fit(Net(), {at})
"""
COUNT = """
class Trainer:
    def __init__(self, net, stage):
        self.net, self.stage, self.seen, self.on = net, stage, 0, False

    def maybe(self):
        if self.on or self.seen < self.stage["after"]:
            return
        self.net.requires_grad_(True)
        self.on = True

    def fit(self):
        for step in range(400):
            look(step)
            self.maybe()
            self.seen += {by}

Trainer(None, {{"after": {after}}}).fit()
"""
HANDLER = """
class Base:
    def on_start(self): ...

class Thaw(Base):
    def __init__(self, at):
        self.at = at

    def on_start(self, net=None):
        pass

    def {name}(self, epoch):
        {guard}
            self.net.requires_grad_(True)

def fire(handlers, hook, *args):
    for each in handlers:
        getattr(each, hook, print)(*args)

hook = {hook}
fire([Thaw({at})], "on_start")
fire([], hook, 1)
"""


@pytest.fixture
def missed(tmp_path, monkeypatch):
    """What is told of a script that really runs, and is looked at in between."""
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def tell(source, *argv):
        file, seen = tmp_path / "train.py", Witnessed()
        file.write_text(source)
        linecache.checkcache()
        monkeypatch.setattr(sys, "argv", ["train.py", *argv])
        look = lambda step: seen.look(sys._getframe(1), step)  # noqa: E731
        module = types.ModuleType("train")
        module.__file__, module.look = str(file), look
        monkeypatch.setitem(sys.modules, "train", module)
        exec(compile(source, str(file), "exec"), vars(module))
        return missed_unfreezing(str(file), Run(seen, STEPS, ROWS))

    return tell


@pytest.mark.parametrize("test", ["acc >= at", "at <= acc and not ready", "acc > 30.0", "not acc < at"])
def test_a_share_is_compared_with_per_cent(missed, test):
    found = missed(SHARE.format(test=test, at=30))
    assert (found.why, found.line) == ("percent", 8)
    assert 0 <= found.low <= found.high <= 1
    assert "30" in found.condition


@pytest.mark.parametrize(
    "test", ["acc >= at / 100", "acc >= at or ready", "ready and acc >= at", "acc >= step", "step >= at", "acc <= at"]
)
def test_a_share_and_another_condition(missed, test):
    assert missed(SHARE.format(test=test, at=30)) is None


@pytest.mark.parametrize("at", [0.4, 0.9, 3, 80, 1000])
def test_a_share_that_is_not_reached(missed, at):
    assert missed(SHARE.format(test="acc >= at", at=at)) is None


def test_a_clock_is_no_share(missed):
    elapsed = SHARE.replace("0.5 - 0.2 * (step // 20 % 2)", "step / 500").replace("acc = 0.1", "acc = 0.0")
    assert missed(elapsed.format(test="acc >= at", at=30)) is None


def test_the_command_line_may_have_set_it(missed):
    assert missed(SHARE.format(test="acc >= at", at=30), "--at=30") is None


def test_batches_are_counted_where_samples_are_meant(missed):
    found = missed(COUNT.format(by=1, after=9_600))
    assert (found.why, found.line, found.condition) == (
        "samples",
        9,
        "self.seen >= self.stage['after'], which is 9,600",
    )
    assert found.high == STEPS


@pytest.mark.parametrize(("by", "after"), [(1, 10_000), (1, 99_999), (1, 48_000), (32, 48_000), (3, 9_600)])
def test_a_count_that_is_not_meant_to_come_there(missed, by, after):
    assert missed(COUNT.format(by=by, after=after)) is None


STAGED = """
class Stages:
    def __init__(self, body, epochs, items):
        self.body, self.seen = body, 0
        self.settle = epochs * items
        self.stage = "head"

    def after_step(self):
        self.seen += 1
        if self.stage == "head" and self.seen >= self.settle:
            self.stage = "all"
            self.body.requires_grad_(True)

    def fit(self):
        for step in range(400):
            look(step)
            self.after_step()

Stages(None, 6, 1_600).fit()
"""


def test_a_product_of_settings_under_a_stage_that_the_code_sets(missed):
    found = missed(STAGED)
    assert (found.why, found.condition) == ("samples", "self.seen >= self.settle, which is 9,600")


def test_a_product_that_is_made_whole(missed):
    found = missed(STAGED.replace("epochs * items", "int(0.5 * (epochs * items))"))
    assert found.condition == "self.seen >= self.settle, which is 4,800"


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ('self.stage = "all"', "self.done = True"),
        ("epochs * items", "epochs * 100_000"),
        ("epochs * items", "items"),
        ("epochs * items", "int(items)"),
    ],
)
def test_a_stage_or_a_number_that_somebody_sets(missed, was, now):
    assert missed(STAGED.replace(was, now)) is None


ROUNDS = """
class Net:
    def requires_grad_(self, flag):
        pass

class Tuner:
    def __init__(self, net, at=3, per=1000):
        self.net, self.at, self.per = net, at, per
        self.steps = self.epoch = 0

    def begin(self{given}):
        {made}
        if {test}:
            self.net.requires_grad_(True)

    def fit(self):
        for turn in {turns}:
            self.begin({gives})
            for batch in range(50):
                look(self.steps)
                self.steps += {by}

Tuner(Net()).fit()
"""


def rounds(made="epoch = self.steps // 1000", test="epoch == self.at", given="", gives="", turns="range(8)", by=1):
    given = f", {given}" if given else ""
    return ROUNDS.format(made=made, test=test, given=given, gives=gives, turns=turns, by=by)


@pytest.mark.parametrize(
    ("source", "counted"),
    [
        (rounds(), "self.steps // 1000"),
        (rounds(made="epoch = int(self.steps / self.per)"), "int(self.steps / self.per)"),
        (rounds(made="self.epoch = self.steps // self.per", test="self.epoch >= 3"), "self.steps // self.per"),
        (rounds(made="", given="epoch", gives="self.steps // 1000"), "self.steps // 1000"),
        (rounds(made="", test="self.epoch >= self.at"), "self.epoch"),
    ],
)
def test_a_round_that_is_not_counted_by_rounds(missed, source, counted):
    found = missed(source)
    assert (found.why, found.counted, found.low, found.high) == ("rounds", counted, 8, 0)


@pytest.mark.parametrize(
    "source",
    [
        rounds(made="epoch = self.steps // 50"),
        rounds(made="epoch = self.steps // 133"),
        rounds(made="part = self.steps // 1000", test="part == self.at"),
        rounds(test="epoch == 8"),
        rounds(test="epoch == 12"),
        rounds(turns="range(3)"),
        rounds(made="", test="self.epoch >= self.at").replace(
            "per=1000):", "per=1000, first=0):\n        self.epoch = first"
        ),
        rounds(turns="forever()").replace("class Tuner", "def forever(): return iter([1] * 8)\nclass Tuner"),
        rounds(by=32).replace("look(self.steps)", "look(self.steps // 32)"),
        rounds(made="epoch = self.steps // unknown()").replace(
            "class Tuner", "def unknown(): return 1000\nclass Tuner"
        ),
        rounds(made="", test="self.epoch >= self.at").replace(
            "range(50):", "range(50):\n                self.epoch += 1"
        ),
        rounds(made="", test="self.epoch >= self.at").replace("range(50):", "range(1):"),
    ],
)
def test_a_round_that_is_counted_or_not_meant(missed, source):
    assert missed(source) is None


def handler(name="on_epoch_begin", guard="if epoch == self.at:", hook='"on_epoch_start"', at=3):
    return HANDLER.format(name=name, guard=guard, hook=hook, at=at)


def test_a_method_that_nothing_calls(missed):
    found = missed(handler())
    assert (found.why, found.condition) == ("uncalled", "Thaw.on_epoch_begin")


@pytest.mark.parametrize(
    "source",
    [
        handler(hook='"on_epoch_begin"'),
        handler(hook='"on_" + "epoch_begin"'),
        handler(hook='f"on_{1}"'),
        handler(guard="if self.at:"),
        handler(at="None"),
        handler(at=5000),
        handler().replace("class Base:", "class Base(dict):"),
        handler().replace('"on_start"', '"on_other"'),
        handler().replace("[Thaw(3)]", "[]"),
        handler().replace("    def on_epoch_begin", "    @property\n    def on_epoch_begin"),
        handler() + "\nrun = Thaw.on_epoch_begin\n",
    ],
)
def test_a_method_that_may_be_called_or_is_not_meant(missed, source):
    assert missed(source) is None


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "broken.py").write_text("def f(:\n")
    assert missed_unfreezing(str(tmp_path / "broken.py"), Run(Witnessed(), 1, 1)) is None
    assert guards.tree_of(str(tmp_path / "broken.py")) is None


def test_nothing_is_kept_alive_or_put_into_what_locals_returned(missed, tmp_path):
    source = SHARE.replace(
        "acc = 0.1",
        "acc, loss = 0.1, Loss()\n    gone = ref(loss)\n    look(0)\n    del loss\n    assert gone() is None",
    )
    given = source.format(test="acc >= at", at=30).replace(
        "\nclass Net", "\nfrom weakref import ref\nclass Loss: ...\nclass Net"
    )
    assert missed(given).why == "percent"
    asked = SHARE.replace("acc = 0.1", "acc, had = 0.1, locals()\n    before = list(had)")
    assert missed(asked.format(test="acc >= at", at=30) + "\n") is None


def test_nothing_is_read_while_a_debugger_traces(missed):
    """A tracer writes what was read of a frame's names back into it."""
    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: None)
    try:
        assert missed(SHARE.format(test="acc >= at", at=30)) is None
    finally:
        sys.settrace(before)
