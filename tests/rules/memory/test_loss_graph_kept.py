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
