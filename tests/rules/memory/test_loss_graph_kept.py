import pytest

from flatline.events import LossesKept, OptimizerStepped, Where
from flatline.rules.memory.loss_graph_kept import LossGraphKept
from flatline.testing import lint, play


def test_fires_with_the_statement():
    event = LossesKept(step=8, where=Where("train.py", 41), alive=8, seen=8, nodes=900, holder="total += loss")
    (finding,) = play(LossGraphKept, event)
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 41)
    assert finding.message == (
        "the graphs of 8 of the last 8 losses are still alive, 900 nodes each; `total += loss` keeps them"
    )
    assert finding.fix == "write .item() (or .detach()) after the loss in `total += loss`"


def test_small_graphs_are_a_warning():
    (finding,) = play(LossGraphKept, LossesKept(alive=8, seen=8, nodes=20))
    assert finding.severity == "warning"
    assert "a meter" in finding.fix


def test_near_miss_nothing_kept():
    assert play(LossGraphKept) == []


def test_near_miss_ordinary_steps():
    assert play(LossGraphKept, *[OptimizerStepped(step=step, index=step) for step in range(1, 9)]) == []


LOOP = """
import torch
def run(loader):
    {}
    for x, y in loader:
        loss = criterion(net(x), y)
        loss.backward()
        opt.step()
        {}
"""


@pytest.mark.parametrize(
    ("start", "keep"),
    [
        ("total = 0.0", "total += loss"),
        ("total = 0", "total = total + loss * len(x)"),
        ("losses = []", "losses.append(loss)"),
        ("mean = torch.zeros(())", "mean = 0.9 * mean + 0.1 * loss"),
    ],
)
def test_source_loss_kept(start, keep):
    """Seen as a SourceParsed."""
    (finding,) = lint(LossGraphKept, LOOP.format(start, keep))
    assert finding.where.line == 8
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    ("start", "keep"),
    [
        ("total = 0.0", "total += loss.item()"),
        ("total = 0.0", "total += float(loss)"),
        ("losses = []", "losses.append(loss.detach())"),
        ("total = 0.0", "loss = loss.item()\n        total += loss"),
        ("total = 0.0", "with torch.no_grad():\n            total += loss"),
        ("total = 0.0", "total = 0.0\n        total += loss"),
    ],
)
def test_near_miss_source_a_number(start, keep):
    assert lint(LossGraphKept, LOOP.format(start, keep)) == []


def test_near_miss_source_a_sum_that_is_sent_backward():
    code = LOOP.format("total = 0.0", "total += loss").replace("loss.backward()", "total.backward()")
    assert lint(LossGraphKept, code) == []


METER = """
import torch
class Meter:
    def __init__(self):
        self.sum, self.n = 0.0, 0
    def update(self, value, n=1):
        {}
        self.n += n
def run(loader):
    meter = Meter()
    for x, y in loader:
        loss = criterion(net(x), y)
        loss.backward()
        {}
"""


def test_source_kept_by_a_meter():
    assert len(lint(LossGraphKept, METER.format("self.sum += value * n", "meter.update(loss, len(x))"))) == 1


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("self.sum += value * n", "meter.update(loss.item(), len(x))"),
        ("self.sum += float(value) * n", "meter.update(loss, len(x))"),
        ("value = value.detach()\n        self.sum += value", "meter.update(loss)"),
        ("self.sum = value", "meter.update(loss)"),
        ("self.sum += value", "meter = Meter()\n        meter.update(loss)"),
        ("self.sum += value", "meter.reset()\n        meter.update(loss)"),
    ],
)
def test_near_miss_source_a_meter_of_numbers(body, line):
    assert lint(LossGraphKept, METER.format(body, line)) == []


METERS = """
import torch
from collections import OrderedDict
class Meter:
    def __init__(self):
        self.reset()
    def reset(self):
        self.total, self.count = 0.0, 0
    def update(self, value, n=1):
        self.total = self.total + value * n
        self.count += n
class Meters:
    def __init__(self, *names):
        self.meters = {}
    def update(self, n=1, **values):
        for name, value in values.items():
            {}
            self.meters[name].update(value, n)
def run(loader):
    meters = Meters("loss")
    for x, y in loader:
        loss = criterion(net(x), y)
        loss.backward()
        {}
"""
PAIRS, FILLED = "OrderedDict((n, Meter()) for n in names)", "{}\n        for n in names:\n            self.meters[n] = "


@pytest.mark.parametrize(
    ("begun", "body", "line"),
    [
        (PAIRS, "pass", "meters.update(n=2, loss=loss)"),
        (PAIRS.replace("OrderedDict", "dict"), "pass", "meters.update(loss=loss)"),
        (f"{FILLED}Meter()", "pass", "meters.update(loss=loss)"),
        ("{}", "if name not in self.meters: self.meters[name] = Meter()", "meters.update(loss=loss)"),
    ],
)
def test_source_kept_by_a_table_of_meters(begun, body, line):
    assert len(lint(LossGraphKept, METERS.format(begun, body, line))) == 1


@pytest.mark.parametrize(
    ("begun", "body", "line"),
    [
        (PAIRS, "pass", "meters.update(n=2, loss=loss.item())"),
        (PAIRS, "value = float(value)", "meters.update(loss=loss)"),
        (PAIRS.replace("Meter()", "Other()"), "pass", "meters.update(loss=loss)"),
        (f"{FILLED}other()", "pass", "meters.update(loss=loss)"),
        (PAIRS, "self.meters.clear()", "meters.update(loss=loss)"),
        (PAIRS, "pass", "meters = Meters('loss')\n        meters.update(loss=loss)"),
    ],
)
def test_near_miss_source_a_table_of_meters(begun, body, line):
    assert lint(LossGraphKept, METERS.format(begun, body, line)) == []


CALLED = """
import torch
class Track:
    def __init__(self):
        self.sum = 0.0
    def __call__(self, value):
        self.sum += {}
def run(loader):
    track = Track()
    for x, y in loader:
        loss = criterion(net(x), y)
        loss.backward()
        track({})
"""


def test_source_kept_by_an_object_that_is_called():
    assert len(lint(LossGraphKept, CALLED.format("value", "loss"))) == 1
    assert lint(LossGraphKept, CALLED.format("value", "loss.item()")) == []
    assert lint(LossGraphKept, CALLED.format("value.item()", "loss")) == []


@pytest.mark.parametrize(
    ("start", "keep"),
    [
        ("kept = {'loss': [], 'n': 0}", "kept['loss'].append(loss)"),
        ("kept = []", "kept.append((loss, len(x)))"),
        ("kept = []", "kept.append({'loss': loss})"),
    ],
)
def test_source_kept_in_something_else(start, keep):
    assert len(lint(LossGraphKept, LOOP.format(start, keep))) == 1


@pytest.mark.parametrize(
    ("start", "keep"),
    [
        ("kept = {'loss': []}", "kept['loss'].append(loss)\n        kept['loss'].clear()"),
        ("kept = {'loss': []}", "kept['loss'].append(loss)\n        kept['loss'] = []"),
        ("kept = load()", "kept['loss'].append(loss)"),
        ("kept = []", "kept.append(loss)\n        if len(kept) > 50:\n            kept = []"),
        ("kept = []", "kept.append(loss)\n        if step % 10 == 9:\n            done, kept = kept, []"),
        ("kept = []", "kept.append(loss)\n        kept[-1] = kept[-1].item()"),
        ("kept = []", "if len(kept) < 3:\n            kept.append(loss)"),
        ("kept = []", "kept.append(loss)\n        del kept[:]"),
        ("kept = []", "kept.append((loss.item(), len(x)))"),
    ],
)
def test_near_miss_source_emptied_again(start, keep):
    assert lint(LossGraphKept, LOOP.format(start, keep)) == []


SCORES = """
import torch
from torch import nn
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
curve = []
for x, y in data:
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    {}
"""


def test_source_scores_with_their_graphs():
    assert len(lint(LossGraphKept, SCORES.format("curve.append(nn.functional.mse_loss(net(v), w))"))) == 1
    assert len(lint(LossGraphKept, SCORES.format("s = nn.functional.mse_loss(net(v), w)\n    curve.append(s)"))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "with torch.no_grad(): curve.append(nn.functional.mse_loss(net(v), w))",
        "curve.append(nn.functional.mse_loss(net(v), w).item())",
        "curve.append(nn.functional.mse_loss(frozen(v), w))",
        "curve.append(nn.functional.mse_loss(net(v), w))\n    sum(curve).backward()",
    ],
)
def test_near_miss_source_scores(line):
    assert lint(LossGraphKept, SCORES.format(line)) == []


RETURNED = """
import torch
class Meter:
    def __init__(self):
        self.reset()
    def reset(self):
        self.sum = 0
    def update(self, value):
        self.sum += value
def step(x, y):
    loss = criterion(net(x), y)
    loss.backward()
    opt.step()
    return {}
def run(loader):
    meter, total, kept = Meter(), 0, []
    meter.reset()
    for x, y in loader:
        {}
"""


@pytest.mark.parametrize(
    ("result", "line"),
    [
        ("loss", "loss = step(x, y)\n        meter.update(loss)"),
        ("loss", "total += step(x, y)"),
        ("loss, len(x)", "loss, n = step(x, y)\n        kept.append(loss)"),
    ],
)
def test_source_a_loss_that_a_function_returns(result, line):
    (finding,) = lint(LossGraphKept, RETURNED.format(result, line))
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    ("result", "line"),
    [
        ("loss.item()", "meter.update(step(x, y))"),
        ("loss.detach()", "total += step(x, y)"),
        ("loss", "total += step(x, y).item()"),
        ("loss", "total += float(step(x, y))"),
        ("loss", "loss = step(x, y).detach()\n        meter.update(loss)"),
        ("loss", "meter.update(step(x, y))\n        meter.reset()"),
        ("loss, len(x)", "loss, n = step(x, y)\n        kept.append(n)"),
        ("criterion(net(y), x)", "total += step(x, y)"),  # another tensor: nothing is known of its graph
    ],
)
def test_near_miss_source_a_number_that_a_function_returns(result, line):
    assert lint(LossGraphKept, RETURNED.format(result, line)) == []


OUTPUTS = """
import torch
from torch import nn
def run():
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(3):
        scores = []
        for x, y in data:
            out = net(x)
            loss = nn.functional.cross_entropy(out, y)
            loss.backward()
            opt.step()
            {}
        {}
"""


def test_source_outputs_with_their_graphs():
    (finding,) = lint(LossGraphKept, OUTPUTS.format("scores.append(out)", "print(accuracy(scores))"))
    assert "keeps out of every step" in finding.message
    assert "detach()" in finding.fix
    assert len(lint(LossGraphKept, OUTPUTS.format("scores.append((out, y))", "print(accuracy(scores))"))) == 1


@pytest.mark.parametrize(
    ("keep", "then"),
    [
        ("scores.append(out.detach())", "pass"),
        ("scores.append(out.argmax(1))", "pass"),
        ("scores.append(y)", "pass"),
        ("scores.append(out)\n            scores.clear()", "pass"),
        ("scores.append(out)\n            if len(scores) > 5: scores = []", "pass"),
        ("scores.append(out)", "consistency(scores).backward()"),
        ("scores.append(out)", "return scores"),
        ("with torch.no_grad(): scores.append(net(x))", "pass"),
    ],
)
def test_near_miss_source_outputs(keep, then):
    assert lint(LossGraphKept, OUTPUTS.format(keep, then)) == []
