import pytest

from flatline.events import SeedsObserved
from flatline.rules.seeds.benchmark_beside_deterministic import BenchmarkBesideDeterministic
from flatline.testing import lint, play


def test_hints_at_the_contradiction():
    (finding,) = play(BenchmarkBesideDeterministic, SeedsObserved(cuda=True, benchmark=True, deterministic=True))
    assert finding.severity == "hint"
    assert finding.message == "cudnn.deterministic is set, and cudnn.benchmark beside it"


def test_near_miss_benchmark_alone():
    assert play(BenchmarkBesideDeterministic, SeedsObserved(cuda=True, benchmark=True)) == []


def test_near_miss_no_gpu():
    assert play(BenchmarkBesideDeterministic, SeedsObserved(benchmark=True, deterministic=True)) == []


FLAGS = """
import torch
import torch.backends.cudnn as cudnn
torch.backends.cudnn.deterministic = True
{}
"""


def test_source():
    """Seen as a SourceParsed."""
    (finding,) = lint(BenchmarkBesideDeterministic, FLAGS.format("cudnn.benchmark = True"))
    assert (finding.severity, finding.where.line) == ("hint", 4)


@pytest.mark.parametrize(
    "then",
    ["cudnn.benchmark = False", "if fast:\n    cudnn.benchmark = True", "config.benchmark = True"],
)
def test_near_miss_source(then):
    assert lint(BenchmarkBesideDeterministic, FLAGS.format(then)) == []


TABLE = """
from dataclasses import dataclass, field
import torch
import torch.backends.cudnn as cudnn
FLAGS = {flags}
@dataclass
class Runtime:
    seed: int = 0
    fast: bool = {fast}
    flags: dict = field(default_factory=lambda: {flags})
    def start(self):
        {start}
{made}.start()
"""
BOTH = '{"enabled": True, "deterministic": True, "benchmark": True}'
OF_TABLE = "for name, on in {}.items():\n            setattr(torch.backends.cudnn, name, on)"
OF_SETTINGS = "cudnn.deterministic = True\n        cudnn.benchmark = self.fast"


@pytest.mark.parametrize("start", [OF_TABLE.format("FLAGS"), OF_TABLE.format("self.flags"), OF_SETTINGS])
def test_source_settings(start):
    (finding,) = lint(BenchmarkBesideDeterministic, TABLE.format(flags=BOTH, fast=True, start=start, made="Runtime()"))
    assert (finding.severity, finding.where.line) == ("hint", 12)


@pytest.mark.parametrize(
    "changed",
    [
        {"flags": BOTH.replace('"benchmark": True', '"benchmark": False')},
        {"flags": BOTH.replace('"benchmark": True', '"benchmark": chosen')},
        {"start": OF_TABLE.format("given")},
        {"start": OF_TABLE.format("self.flags"), "made": "Runtime(flags=other)"},
        {"start": OF_TABLE.format("FLAGS").replace("torch.backends.cudnn", "settings")},
        {"start": OF_SETTINGS, "fast": False},
        {"start": OF_SETTINGS, "made": "Runtime(fast=quick)"},
    ],
)
def test_near_miss_source_settings(changed):
    usual = {"flags": BOTH, "fast": True, "start": OF_TABLE.format("FLAGS"), "made": "Runtime()"}
    assert lint(BenchmarkBesideDeterministic, TABLE.format(**{**usual, **changed})) == []
