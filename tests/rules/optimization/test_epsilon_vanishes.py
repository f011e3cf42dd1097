from dataclasses import replace

import pytest

from flatline.events import OptimizerFacts, OptimizerStateSampled, Where
from flatline.rules.optimization.epsilon_vanishes import EpsilonVanishes
from flatline.testing import lint, play

ADAM = OptimizerFacts(name="Adam", adaptive=True, where=Where("train.py", 5))
GONE = OptimizerStateSampled(optimizer=ADAM, parameters="float16", state="float16", eps=1e-8, eps_stored=0.0)


def test_fires():
    (finding,) = play(EpsilonVanishes, GONE)
    assert (finding.code, finding.severity, finding.where) == ("O10", "warning", Where("train.py", 5))
    assert finding.message == "eps=1e-08 of Adam is 0 in float16, in which it keeps its state"


def test_error_where_the_squares_are_zero_too():
    (finding,) = play(EpsilonVanishes, replace(GONE, squares=100, squares_zero=90))
    assert finding.severity == "error"
    assert finding.message.endswith("v is exactly 0 for 90 of 100 sampled gradients that are not 0")


def test_near_miss_float32_and_bfloat16():
    for dtype in ("float32", "bfloat16"):
        assert play(EpsilonVanishes, replace(GONE, state=dtype, eps_stored=1e-8)) == []


def test_near_miss_an_eps_that_fits():
    assert play(EpsilonVanishes, replace(GONE, eps=1e-4, eps_stored=1e-4)) == []


def test_near_miss_fused_or_not_of_torch():
    assert play(EpsilonVanishes, replace(GONE, fused=True)) == []
    assert play(EpsilonVanishes, replace(GONE, stock=False)) == []


def test_near_miss_no_state():
    assert play(EpsilonVanishes, OptimizerStateSampled(eps=None, eps_stored=None)) == []
    assert play(EpsilonVanishes, OptimizerStateSampled(eps=0.0, eps_stored=0.0, state="float32")) == []


HALVED = """import torch
from torch import nn
def load():
    {}
def build(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3{})
net = load()
{}
opt = build(net)
for x, y in loader:
    loss = (net(x) - y).square().mean()
    loss.backward()
    opt.step()
"""
RETURNED = "net = nn.Linear(4, 2)\n    return net.half().cuda()"


@pytest.mark.parametrize(
    ("made", "eps"),
    [
        (RETURNED, ""),
        ("return nn.Linear(4, 2).half()", ", eps=1e-8"),
        ("net = nn.Linear(4, 2).half()\n    return net", ", betas=(0.9, 0.95)"),
    ],
)
def test_source_half_before_adam(made, eps):
    """Seen as a SourceParsed."""
    (finding,) = lint(EpsilonVanishes, HALVED.format(made, eps, ""))
    assert finding.where.line == (7 if "\n" in made else 6)
    assert "is 0 in float16" in finding.message


@pytest.mark.parametrize(
    ("made", "eps", "after"),
    [
        (RETURNED, ", eps=1e-4", ""),
        (RETURNED, ", **options", ""),
        (RETURNED, "", "masters = [p.float() for p in net.parameters()]"),
        ("net = nn.Linear(4, 2)\n    if fast:\n        net.half()\n    return net", "", ""),
        ("net = nn.Linear(4, 2)\n    return net", "", "other = nn.Linear(4, 2).half()"),
        ("net = nn.Linear(4, 2)\n    net.half()\n    net.float()\n    return net.half()", "", ""),
    ],
)
def test_near_miss_source_half(made, eps, after):
    assert lint(EpsilonVanishes, HALVED.format(made, eps, after)) == []


def test_near_miss_source_half_after_training():
    code = HALVED.format("return nn.Linear(4, 2)", "", "")
    assert lint(EpsilonVanishes, code + "net.half()\ntorch.save(net, 'net.pt')\n") == []


TRAINER = """import argparse
import torch
from torch import nn
def adam(params, options):
    return torch.optim.Adam(params, lr=options["lr"]{eps})
TABLE = {{"adam": {entry}, "sgd": lambda params, options: torch.optim.SGD(params, options["lr"])}}
DEFAULTS = {{"lr": 0.1, "eps": 1e-8}}
class Trainer:
    def __init__(self, net, options, small):
        self.net = net
        {before}
        self.optimizer = {built}
        {after}
    def shrink(self):
        {shrinks}
    def make(self, options):
        return torch.optim.Adam(self.net.parameters(), options["lr"]{eps})
    def fit(self, rows):
        for x, y in rows:
            self.optimizer.zero_grad()
            (self.net(x) - y).pow(2).mean().backward()
            self.optimizer.step()
parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
parser.add_argument("--small", action="store_true")
args = parser.parse_args()
Trainer(nn.Linear(4, 2), DEFAULTS, {small}).fit(rows)
"""
OF_TABLE = "TABLE['adam'](self.net.parameters(), options)"
LAMBDA = "lambda params, o: torch.optim.Adam(params, lr=o['lr'], eps=o['eps'])"


def trainer(
    eps="",
    entry="adam",
    before="self.shrink()",
    built=OF_TABLE,
    after="pass",
    shrinks="self.net.half()",
    small="not args.full",
):
    code = TRAINER.format(eps=eps, entry=entry, before=before, built=built, after=after, shrinks=shrinks, small=small)
    return lint(EpsilonVanishes, code)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"entry": LAMBDA},
        {"built": "self.make(options)"},
        {"before": "if small:\n            self.shrink()"},
        {"before": "if small:\n            self.shrink()", "built": "self.make(options)"},
        {"before": "if small:\n            self.shrink()", "entry": LAMBDA},
        {"before": "net.half()"},
    ],
)
def test_source_half_in_a_method_and_an_optimizer_of_a_table(changed):
    """Also one that a function or a lambda builds."""
    assert [finding.severity for finding in trainer(**changed)] == ["warning"]


@pytest.mark.parametrize(
    "changed",
    [
        {"eps": ", eps=1e-4"},
        {"entry": LAMBDA.replace("o['eps']", "1e-3")},
        {"entry": LAMBDA.replace("o['eps']", "o['unknown']")},
        {"before": "pass", "after": "self.shrink()"},
        {"before": "if small:\n            self.shrink()", "small": "args.small"},
        {"before": "if small:\n            self.shrink()", "small": "not ready()"},
        {"shrinks": "if torch.cuda.is_available():\n            self.net.half()"},
        {"after": "self.net.float()"},
        {"built": "TABLE['sgd'](self.net.parameters(), options)"},
    ],
)
def test_near_miss_source_half_in_a_method_and_an_optimizer_of_a_table(changed):
    """Nothing is certain of these."""
    assert trainer(**changed) == []
