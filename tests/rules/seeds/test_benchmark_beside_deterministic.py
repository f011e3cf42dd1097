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
