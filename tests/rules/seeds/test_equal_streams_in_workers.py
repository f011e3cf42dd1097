import pytest

from flatline.events import Where, WorkersAlike, WorkersStarted
from flatline.rules.seeds.equal_streams_in_workers import EqualStreamsInWorkers
from flatline.testing import lint, play


def started(**facts):
    own = {"owner": "Noisy", "generator": "rng", "kind": "numpy.random.Generator"}
    return WorkersStarted(**{"step": 1, "where": Where("train.py", 20), "workers": 4, **own, **facts})


def test_fires_on_a_generator_of_the_data_set():
    (finding,) = play(EqualStreamsInWorkers, started())
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 20))
    assert finding.message == (
        "Noisy draws from its own numpy.random.Generator, rng, and each of the 4 workers gets a copy of it in the same state: "
        "they draw the same numbers, and the same again in every epoch"
    )


def test_says_nothing_of_epochs_where_workers_live_on():
    (finding,) = play(EqualStreamsInWorkers, started(persistent=True))
    assert finding.message.endswith("they draw the same numbers")


def test_near_miss_no_generator_of_its_own():
    assert play(EqualStreamsInWorkers, started(owner="", generator="", kind="")) == []


def test_near_miss_one_worker():
    assert play(EqualStreamsInWorkers, started(workers=1)) == []


@pytest.mark.parametrize(("asks", "fix"), [(False, "islice"), (True, "seed + info.id")])
def test_fires_on_a_stream_that_all_workers_serve(asks, fix):
    event = WorkersAlike(step=7, where=Where("data.py", 4), workers=4, owner="Stream", rows=24, asks=asks)
    (finding,) = play(EqualStreamsInWorkers, event)
    assert (finding.severity, finding.where, finding.key) == ("warning", Where("data.py", 4), "alike")
    assert finding.message == (
        "each of the 4 workers serves the same stream of Stream: their first batches of 24 samples are one and the same, and so "
        "are their second ones"
    )
    assert fix in finding.fix


def test_a_shared_generator_is_told_alone():
    (finding,) = play(EqualStreamsInWorkers, started(), WorkersAlike(step=7, owner="Noisy"))
    assert "draws from its own" in finding.message


def test_fires_on_one_seed_for_all():
    event = started(owner="", generator="", kind="", seeding="np.random.seed(1234)", seeded="numpy.random")
    (finding,) = play(EqualStreamsInWorkers, event)
    assert (finding.severity, finding.key) == ("warning", "seeded")
    assert finding.message == (
        "`np.random.seed(1234)` in worker_init_fn gives each of the 4 workers the same seed, and the data set draws from "
        "numpy.random: they draw the same numbers, and the same again in every epoch"
    )


def test_near_miss_one_seed_for_one_worker():
    assert (
        play(EqualStreamsInWorkers, started(generator="", seeding="random.seed(0)", seeded="random", workers=1)) == []
    )


ITEMS = """import functools, random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
SEED = 7
def augment(x):
    return x + np.random.rand()
class Tiles(Dataset):
    def __getitem__(self, i):
        {item}
def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
def start(worker_id, base=3):
    {body}
loader = DataLoader(Tiles(), 8, shuffle={mixed}, num_workers={workers}, worker_init_fn={given})
"""
USUAL = {"item": "return augment(i)", "mixed": "True", "workers": "4", "given": "start"}


@pytest.mark.parametrize(
    ("body", "given", "line"),
    [
        ("np.random.seed(SEED)", "start", 15),
        ("seed_all(SEED)", "start", 13),
        ("np.random.seed(args.seed)", "start", 15),
        ("np.random.seed(base)", "functools.partial(start, base=4)", 15),
    ],
)
def test_fires_source(body, given, line):
    """Seen as a SourceParsed."""
    (finding,) = lint(EqualStreamsInWorkers, ITEMS.format(**{**USUAL, "given": given}, body=body))
    assert (finding.code, finding.severity, finding.where.line) == ("S2", "warning", line)
    assert finding.message.endswith("the data set draws from numpy.random: they draw the same numbers")


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ("np.random.seed(SEED + worker_id)", {}),
        ("np.random.seed(torch.initial_seed() % 2**32)", {}),
        ("seed = torch.initial_seed() % 2**32\n    np.random.seed(seed)", {}),
        ("np.random.seed(torch.utils.data.get_worker_info().seed % 2**32)", {}),
        ("seed_all(SEED + worker_id)", {}),
        ("random.seed(SEED)", {}),
        ("np.random.seed(SEED)\n    np.random.seed(worker_id)", {}),
        ("np.random.seed(SEED)", {"workers": "1"}),
        ("np.random.seed(SEED)", {"mixed": "False"}),
        ("np.random.seed(SEED)", {"item": "return i"}),
        ("np.random.seed(SEED)", {"item": "np.random.seed(i); return augment(i)"}),
        ("np.random.seed(SEED)", {"item": "return np.random.default_rng(i).random()"}),
    ],
)
def test_near_miss_source(body, changed):
    assert lint(EqualStreamsInWorkers, ITEMS.format(**{**USUAL, **changed}, body=body)) == []


OWN = """import numpy as np
from torch.utils.data import DataLoader, Dataset
class Noisy(Dataset):
    def __init__(self, seed=0):
        self.stream = np.random.default_rng(seed)
    def __getitem__(self, i):
        {item}
data = Noisy()
{before}
loader = DataLoader(data, 8, shuffle={mixed}, num_workers=4)
"""
SEVERITIES = [
    ({}, ["warning"]),
    ({"item": "return self.noise()\n    def noise(self):\n        return self.stream.normal(size=4)"}, ["warning"]),
    ({"mixed": "mixed, **more", "before": "mixed, more = True, {'pin_memory': True}"}, ["warning"]),
    ({"mixed": "False"}, ["hint"]),
    ({"before": "data.stream = np.random.default_rng(8)"}, ["hint"]),
    ({"before": "setattr(data, 'stream', np.random.default_rng(8))"}, ["hint"]),
    ({"item": "self.stream.bit_generator.advance(i); return self.stream.normal(size=4)"}, ["hint"]),
    ({"item": "return np.random.normal(size=4)"}, []),
]


@pytest.mark.parametrize(("changed", "expected"), SEVERITIES)
def test_fires_source_on_copies_in_workers_that_train(changed, expected):
    code = OWN.format(**{"item": "return self.stream.normal(size=4)", "before": "pass", "mixed": "True", **changed})
    assert [found.severity for found in lint(EqualStreamsInWorkers, code)] == expected
