import pytest

from flatline.events import Where
from flatline.rules.distributed.sampler_epoch_not_set import SamplerEpochNotSet
from flatline.testing import lint

INLINE = """
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
for epoch in range(10):
    for x, y in loader:
        net(x).mean().backward()
        opt.step()
"""
FUNCTIONS = """
import torch
from torch.utils.data import DataLoader, DistributedSampler
class Trainer:
    def __init__(self, data):
        self.loader = DataLoader(data, batch_size=8, shuffle=False, sampler=DistributedSampler(data))
    def batch(self, x, y):
        net(x).mean().backward()
        opt.step()
    def epoch(self):
        for x, y in self.loader:
            self.batch(x, y)
    def train(self, epochs):
        for epoch in range(epochs):
            self.epoch()
"""
OPTIONAL = INLINE.replace("DistributedSampler(data)\n", "DistributedSampler(data) if ranks > 1 else None\n")


@pytest.mark.parametrize(("code", "line"), [(INLINE, 6), (FUNCTIONS, 13), (OPTIONAL, 6)])
def test_source(code, line):
    """Seen as a SourceParsed."""
    (finding,) = lint(SamplerEpochNotSet, code)
    assert (finding.code, finding.severity, finding.where) == (
        "P1",
        "warning",
        Where("train.py", line, "Trainer.train" if "class" in code else ""),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    for x", "    loader.sampler.set_epoch(epoch)\n    for x"),
        ("    for x", "    setattr(sampler, 'epoch', epoch)\n    for x"),
        ("    for x", "    sampler.seed = 1000 + epoch\n    for x"),
        ("range(10)", "range(1)"),
        ("DistributedSampler(data)", "DistributedSampler(data, shuffle=False)"),
        ("DistributedSampler(data)", "DistributedSampler(data, 2, 0, False)"),
        ("DistributedSampler(data)", "DistributedSampler(data, **options)"),
        ("DistributedSampler(data)", "make(data)"),
        ("import torch\n", "import torch\nfrom accelerate import Accelerator\n"),
    ],
)
def test_near_miss_source(old, new):
    assert lint(SamplerEpochNotSet, INLINE.replace(old, new)) == []


def test_near_miss_source_validation_is_not_trained():
    code = INLINE.replace("net(x).mean().backward()", "score(net(x), y)").replace("        opt.step()\n", "")
    assert lint(SamplerEpochNotSet, code) == []


def test_near_miss_source_set_in_a_file_that_is_imported():
    code = INLINE.replace("    for x", "    begin(epoch)\n    for x").replace(
        "import torch\n", "from helpers import begin\n", 1
    )
    assert lint(SamplerEpochNotSet, code, helpers="\ndef begin(epoch):\n    sampler.set_epoch(epoch)") == []


OVERRIDDEN = """
import torch
from torch.utils.data import DataLoader, DistributedSampler
class Base:
    def __init__(self, data):
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=8, sampler=self.sampler)
    def begin(self, epoch):
        self.sampler.set_epoch(epoch)
    def run(self, epochs):
        for epoch in range(epochs):
            self.begin(epoch)
            for x, y in self.loader:
                self.batch(x, y)
class Mine(Base):
    def {hook}(self, epoch):
        {first}
        self.started = epoch
    def batch(self, x, y):
        net(x).mean().backward()
        opt.step()
{more}
{made}(torch.load("d.pt")).run(8)
"""
MINE = {"hook": "begin", "first": "print(epoch)", "more": "", "made": "Mine"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 1),
        ({"more": "class Other(Mine):\n    pass", "made": "Other"}, 1),
        ({"hook": "end"}, 0),
        ({"first": "super().begin(epoch)"}, 0),
        ({"first": "super(Mine, self).begin(epoch)"}, 0),
        ({"first": "Base.begin(self, epoch)"}, 0),
        ({"first": "self.sampler.set_epoch(epoch)"}, 0),
        ({"more": "Base(torch.load('e.pt')).run(8)"}, 0),
        ({"more": "class Other(Base):\n    pass", "made": "Other"}, 0),
        ({"more": "@register\nclass Other(Base):\n    pass"}, 0),
    ],
)
def test_source_of_a_hook_that_a_class_below_replaces(changed, expected):
    assert len(lint(SamplerEpochNotSet, OVERRIDDEN.format(**{**MINE, **changed}))) == expected
