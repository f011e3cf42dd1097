import pytest

from flatline.events import LossComputed, Where
from flatline.rules.optimization.nll_without_log_softmax import NllWithoutLogSoftmax
from flatline.testing import lint, play


def losses(fed_by, *, normalised=False, kind="nll", count=3, **facts):
    return [
        LossComputed(step=n, where=Where("train.py", 40), kind=kind, fed_by=fed_by, normalised=normalised, **facts)
        for n in range(1, count + 1)
    ]


def test_fires_on_raw_scores():
    (finding,) = play(NllWithoutLogSoftmax, *losses("linear", feed_where="head", classes=10))
    assert finding.severity == "error"
    assert finding.step == 2
    assert finding.count == 2
    assert finding.where == Where("train.py", 40)
    assert finding.message == (
        "nll_loss is given raw scores (from a linear operation) of head: exp of a row does not sum to 1"
    )
    assert finding.fix == "use cross_entropy on the raw scores"
    assert finding.evidence == {"fed_by": "linear", "classes": 10}


def test_fires_on_probabilities():
    (finding,) = play(NllWithoutLogSoftmax, *losses("softmax"))
    assert finding.message == "nll_loss is given probabilities (a softmax): exp of a row does not sum to 1"
    assert finding.fix == "use cross_entropy on the raw scores, without the softmax"


@pytest.mark.parametrize("fed_by", ["convolution", "relu", "tanh", "sigmoid"])
def test_fires_on_other_scores(fed_by):
    assert len(play(NllWithoutLogSoftmax, *losses(fed_by))) == 1


def test_near_miss_log_softmax():
    assert play(NllWithoutLogSoftmax, *losses("log_softmax", normalised=True)) == []


def test_near_miss_log_of_a_softmax():
    assert play(NllWithoutLogSoftmax, *losses("log", normalised=True)) == []


@pytest.mark.parametrize("normalised", [True, None])
def test_near_miss_log_probabilities_made_in_another_way(normalised):
    assert play(NllWithoutLogSoftmax, *losses("linear", normalised=normalised)) == []


def test_near_miss_unknown_feed():
    assert play(NllWithoutLogSoftmax, *losses("")) == []


def test_near_miss_cross_entropy():
    assert play(NllWithoutLogSoftmax, *losses("linear", kind="cross_entropy")) == []


def test_near_miss_seen_once():
    assert play(NllWithoutLogSoftmax, *losses("linear", count=1), *losses("linear", normalised=True)) == []


@pytest.mark.parametrize("last", ["self.fc(x)", "torch.softmax(self.fc(x), 1)", "self.fc(x).softmax(-1)"])
def test_source_raw_scores(last):
    """Seen as a SourceParsed."""
    assert [f.where.line for f in lint(NllWithoutLogSoftmax, NET.format(last))] == [11]


NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
    def forward(self, x):
        return {}
net = Net()
out = net(x)
loss = nn.functional.nll_loss(out, y)
"""


@pytest.mark.parametrize(
    "last",
    ["torch.log_softmax(self.fc(x), 1)", "self.fc(x).softmax(-1).log()", "normalise(self.fc(x))", "self.flow(x)"],
)
def test_near_miss_source_log_probabilities_or_unknown(last):
    assert lint(NllWithoutLogSoftmax, NET.format(last)) == []


GRAPH = """import torch
from torch import nn
import torch.nn.functional as F
from torch_geometric.nn import {name}
class Net(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.convs = nn.ModuleList({made} for a, b in zip(sizes[:-1], sizes[1:]))
    def forward(self, x, edges):
        for conv in self.convs[:-1]:
            x = conv(x, edges).relu()
        return {out}
model = Net([8, 16, 3])
loss = F.nll_loss(model(x, edges)[mask], y[mask])
"""
LAST = "self.convs[-1](x, edges)"


@pytest.mark.parametrize(
    ("name", "made", "out"),
    [
        ("GCNConv", "GCNConv(a, b)", LAST),
        ("SAGEConv", "SAGEConv(a, b, aggr='max')", LAST),
        ("GATv2Conv", "GATv2Conv(a, b, heads=1)", LAST),
        ("TransformerConv", "TransformerConv(a, b)", LAST),
    ],
)
def test_fires_source_graph_convolution(name, made, out):
    (finding,) = lint(NllWithoutLogSoftmax, GRAPH.format(name=name, made=made, out=out))
    assert (finding.code, finding.severity, finding.where.line) == ("O16", "error", 14)


@pytest.mark.parametrize(
    ("name", "made", "out"),
    [
        ("GCNConv", "GCNConv(a, b)", f"F.log_softmax({LAST}, 1)"),
        ("GINConv", "GINConv(inner(a, b))", LAST),
        ("ARMAConv", "ARMAConv(a, b)", LAST),
        ("SAGEConv", "SAGEConv(a, b, normalize=True)", LAST),
        ("GCNConv", "GCNConv(a, b) if a else other(a)", LAST),
    ],
)
def test_near_miss_source_graph_convolution(name, made, out):
    assert lint(NllWithoutLogSoftmax, GRAPH.format(name=name, made=made, out=out)) == []


CHOSEN = """
import torch
from torch import nn
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)
    def forward(self, x, log=True):
        out = self.fc(x)
        if log:
            return F.log_softmax(out, dim=1)
        return out
net = Net()
loss = F.nll_loss(net(x{}), y)
raw = net.forward(x, log=False)
"""


def test_near_miss_source_another_call_of_forward_chooses_raw_scores():
    assert lint(NllWithoutLogSoftmax, CHOSEN.format("")) == []


def test_source_forward_called_for_raw_scores():
    assert [f.where.line for f in lint(NllWithoutLogSoftmax, CHOSEN.format(", log=False"))] == [14]


HOOKED = """
import torch
from torch import nn
import torch.nn.functional as F
from tools import unknown
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
    def keep(self, module, given, out):
        self.kept = out
    @staticmethod
    def squash(module, given, out):
        return out.log_softmax(1)
    def forward(self, x):
        return self.fc(x)
def keep(module, given, out):
    kept.append(out)
def keeping(name):
    def hook(module, given, out):
        kept[name] = out
    return hook
def squashing(dim):
    def hook(module, given, out):
        return out.log_softmax(dim)
    return hook
net = Net()
net.fc.{hook}
loss = F.nll_loss(net(x), y)
"""


@pytest.mark.parametrize(
    ("hook", "found"),
    [
        ("register_forward_hook(keep)", 1),
        ("register_forward_hook(keeping('fc'))", 1),
        ("register_forward_hook(net.keep)", 1),
        ("register_forward_hook(lambda module, given, out: kept.append(out))", 1),
        ("register_forward_pre_hook(lambda module, given: given[0] / 2)", 1),
        ("register_forward_hook(net.squash)", 0),
        ("register_forward_hook(squashing(1))", 0),
        ("register_forward_hook(hook=lambda module, given, out: out.softmax(1).log())", 0),
        ("register_forward_hook(unknown)", 0),
    ],
)
def test_source_hook_behind_the_last_layer(hook, found):
    assert len(lint(NllWithoutLogSoftmax, HOOKED.format(hook=hook))) == found


CALLED = """
import torch
from torch import nn
import torch.nn.functional as F
class Base(nn.Module):
    def {name}(self, *given):
        return F.log_softmax(super().__call__(*given), dim=1)
class Net(Base):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
    def forward(self, x):
        return self.fc(x)
net = Net()
loss = F.nll_loss({net}(x), y)
"""


@pytest.mark.parametrize("net", ["net", "nn.Sequential(nn.Linear(3, 3), net)"])
@pytest.mark.parametrize(("name", "found"), [("scores", 1), ("__call__", 0)])
def test_source_call_that_a_class_above_puts_around_forward(name, found, net):
    assert len(lint(NllWithoutLogSoftmax, CALLED.format(name=name, net=net))) == found
