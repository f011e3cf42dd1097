"""Tables that classes put themselves into as they are defined, and what ``self(x)`` runs."""

import pytest
from parsed import parsed

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""

NETS = """
TABLE = {{}}
class Net(nn.Module):
    table = {{}}
    kind = ""
    def __init_subclass__(cls, {given}**more):
        super().__init_subclass__(**more)
        {put}
    @classmethod
    def build(cls, name):
        return cls.table[name]()
class Plain(Net{plain}):
    kind = "plain"
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)
    def forward(self, x):
        return self.out(x)
class Soft(Plain{soft}):
    kind = "soft"
    def forward(self, x):
        return self.out(x).softmax(-1)
"""
TRAINS = """from nets import Net, TABLE
net = {made}
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x, y in data:
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
"""
NAMED = {"given": "name=None, ", "plain": ", name='a'", "soft": ", name='b'"}


def fed(made, put, **changed):
    """What feeds the cross entropy."""
    nets = NETS.format(**{"put": put, "given": "", "plain": "", "soft": "", **changed})
    return {loss.fed_by for loss in parsed(HEAD, TRAINS.format(made=made), nets=nets).losses}


@pytest.mark.parametrize(
    ("made", "put", "changed"),
    [
        ("Net.table['soft']()", "cls.table[cls.kind] = cls", {}),
        ("Net.build('soft')", "cls.table[cls.kind] = cls", {}),
        ("Net.table['Soft']()", "Net.table[cls.__name__] = cls", {}),
        ("TABLE['soft']()", "TABLE[cls.__name__.lower()] = cls", {}),
        ("TABLE['b']()", "TABLE[name] = cls", NAMED),
        ("TABLE['b']()", "if name:\n            TABLE[name] = cls", NAMED | {"plain": ""}),
        ("Net.table['b']()", "if name is not None:\n            cls.table[name] = cls", NAMED | {"plain": ""}),
        ("Net.table['b']()", "cls.table[name] = cls", NAMED | {"plain": ""}),
    ],
)
def test_classes_that_are_put_into_a_table_as_they_are_defined(made, put, changed):
    assert fed(made, put, **changed) == {"softmax"}


@pytest.mark.parametrize(
    ("made", "put", "changed"),
    [
        ("Net.table['plain']()", "cls.table[cls.kind] = cls", {}),
        ("TABLE['soft']()", "cls.TABLE[cls.kind] = cls", {}),
        ("Net.table['b']()", "if cls.ready:\n            cls.table[name] = cls", NAMED),
        ("Net.table['b']()", "cls.table[name] = wrapped(cls)", NAMED),
        ("Net.table[name]()", "cls.table[name] = cls", NAMED),
    ],
)
def test_near_miss_classes_that_are_put_into_a_table_as_they_are_defined(made, put, changed):
    assert "softmax" not in fed(made, put, **changed)


STEPS = """
class Base(nn.Module):
    {above}
    def training_step(self, x, y):
        return F.cross_entropy(self(x), y)
class Net(Base):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)
    {below}
{more}
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x, y in data:
    optimizer.zero_grad()
    net.training_step(x, y).backward()
    optimizer.step()
"""
SOFT = "def forward(self, x):\n        return self.out(x).softmax(-1)"
RAW = "def forward(self, x):\n        return self.out(x)"
ABSTRACT = "def forward(self, x):\n        raise NotImplementedError"


@pytest.mark.parametrize(
    ("above", "below", "more", "expected"),
    [
        ("pass", SOFT, "", {"softmax"}),
        (ABSTRACT, SOFT, "", {"softmax"}),
        (SOFT, "pass", "", {"softmax"}),
        ("pass", RAW, "", {"linear"}),
        (SOFT, RAW, "", {"linear"}),
        ("pass", SOFT, f"class Other(Base):\n    {RAW}", {"softmax"}),
        ("pass", SOFT, f"class Other(Net):\n    {RAW}\nNet = pick(Net, Other)", set()),
        ("def __call__(self, x):\n        return x", SOFT, "", set()),
    ],
)
def test_a_module_that_calls_itself(above, below, more, expected):
    code = STEPS.format(above=above, below=below, more=more)
    assert {loss.fed_by for loss in parsed(HEAD, code).losses} == expected
