"""Where random numbers are seeded: anew in the loop, in every worker alike, or not at all."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
import torch

from flatline.sensors.seeds import copied_generator, lost_step, seeded_draw

SEEDED = """
def get_batch(n):
    torch.manual_seed(0)  # <-
    i = torch.randint(0, 100, (n,))
    return i
for step in range(3):
    batch = get_batch(4)
    look()
---
class Data:
    seed = 3
    def draw(self, n):
        rng = np.random.default_rng(self.seed)  # <-
        return rng.choice(100, n)
def train(data):
    for step in range(3):
        inner(data.draw(4))
def inner(batch):
    look()
train(Data())
---
while True:
    seed_all(3)  # <-
    i = torch.randperm(10)[:4]
    look()
    break
def seed_all(n):
    random.seed(n)
"""
UNSEEDED = """
torch.manual_seed(0)
for step in range(3):
    i = torch.randint(0, 100, (4,))
    look()
---
def train():
    torch.manual_seed(0)
    i = torch.randperm(10)
    for step in range(3):
        model.train()
        look()
train()
---
for step in range(3):
    torch.manual_seed(step)
    x = torch.randn(3)
    look()
---
def get_batch():
    i = torch.randint(0, 100, (4,), generator=g)
    return i
for step in range(3):
    get_batch()
    look()
---
look()
"""


class Anything:
    """Stands for torch, numpy and the rest."""

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **kwargs):
        return self

    def __getitem__(self, key):
        return self


LOST = """
class Sampler:
    order, at, size = list(range(100)), 0, 4
    def draw(self):
        at = self.at
        rows = self.order[at:at + self.size]
        at += self.size  # <-
        return rows
def train(sampler):
    for step in range(3):
        rows = sampler.draw()
        look()
train(Sampler())
---
def window(x, begin):
    part = x[begin:begin + 4]
    begin += 4  # <-
    return part
begin = 0
for step in range(3):
    part = window(list(range(100)), begin)
    look()
"""
KEPT = """
class Sampler:
    order, at, size = list(range(100)), 0, 4
    def draw(self):
        at = self.at
        rows = self.order[at:at + self.size]
        at += self.size
        self.at = at
        return rows
sampler = Sampler()
for step in range(3):
    rows = sampler.draw()
    look()
---
def window(x, begin):
    part = x[begin:begin + 4]
    begin += 4
    return part, begin
begin = 0
for step in range(3):
    part, begin = window(list(range(100)), begin)
    look()
---
def windows(x):
    begin = 0
    while begin < len(x):
        yield x[begin:begin + 4]
        begin += 4
for step in range(3):
    part = next(windows(list(range(100))))
    look()
---
begin = 0
def window(x):
    global begin
    part = x[begin:begin + 4]
    begin += 4
    return part
for step in range(3):
    part = window(list(range(100)))
    look()
---
def window(x, begin, seen):
    part = x[begin:begin + 4]
    seen += 4
    return part
for step in range(3):
    part = window(list(range(100)), step, 0)
    look()
---
begin = 0
for step in range(3):
    part = list(range(100))[begin:begin + 4]
    begin += 4
    look()
"""


EPOCHS = """
def batch(x, step, size):
    batches = len(x) // size
    low = step // batches * size
    return x[low:low + size]
for step in range(3):
    part = batch(list(range(100)), step, 4)
    look()
"""


def test_a_window_that_moves_by_the_epoch(tmp_path):
    text, where = found_by(tmp_path, EPOCHS, lost_step)
    assert (text, where.line) == ("low = step // batches * size", 4)


@pytest.mark.parametrize(
    ("right", "instead"),
    [
        ("step // batches", "step % batches"),
        ("len(x) // size", "5"),
        ("* size\n", "* 3\n"),
        ("[low:low + size]", "[low]"),
    ],
)
def test_near_miss_a_window_that_moves_by_the_step_or_waits_on_purpose(tmp_path, right, instead):
    assert found_by(tmp_path, EPOCHS.replace(right, instead), lost_step) == ("", None)


def found_by(tmp_path, code, judge=seeded_draw):
    path = tmp_path / "train.py"
    path.write_text(code)
    found = []
    names = dict.fromkeys(("torch", "np", "random", "model", "g", "seed_all"), Anything())
    names["look"] = lambda: found.append(judge(sys._getframe(1)))
    exec(compile(code, str(path), "exec"), names)
    return found[0]


@pytest.mark.parametrize("code", SEEDED.split("---\n"))
def test_seeded_anew(tmp_path, code):
    text, where = found_by(tmp_path, code)
    line = code.splitlines()[where.line - 1]
    assert text in line
    assert "# <-" in line


@pytest.mark.parametrize("code", UNSEEDED.split("---\n"))
def test_not_seeded_anew(tmp_path, code):
    assert found_by(tmp_path, code) == ("", None)


@pytest.mark.parametrize("code", LOST.split("---\n"))
def test_a_window_moved_for_nothing(tmp_path, code):
    text, where = found_by(tmp_path, code, lost_step)
    line = code.splitlines()[where.line - 1]
    assert text in line
    assert "# <-" in line


@pytest.mark.parametrize("code", KEPT.split("---\n"))
def test_a_window_that_moves(tmp_path, code):
    assert found_by(tmp_path, code, lost_step) == ("", None)


# --------------------------------------------------------------------------- generators that workers copy


class Plain:
    def __init__(self, generator):
        self.rng, self.x = generator, list(range(10))

    def __getitem__(self, index):
        return self.x[index] + self.rng.random()


class Helped(Plain):
    def __getitem__(self, index):
        return self.noisy(index)

    def noisy(self, index):
        return [self.x[index] + self.rng.random() for _ in range(2)]


class SeededForEachIndex(Plain):
    def __getitem__(self, index):
        self.rng.seed(index)
        return self.rng.random()


class AsksForItsWorker(Plain):
    def __getitem__(self, index):
        return torch.utils.data.get_worker_info(), self.rng.random()


class TakesItsShare(Plain):
    def __getitem__(self, index):
        return index // torch.utils.data.get_worker_info().num_workers, self.rng.random()


class TakesEverySo(Plain):
    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        return index % info.num_workers == info.id, self.rng.random()


class Unused(Plain):
    def __getitem__(self, index):
        return self.x[index]


class DrawsForEachEpoch(Plain):
    """In the main process; its samples are what was drawn there."""

    def __getitem__(self, index):
        return self.x[index]

    def set_epoch(self):
        self.x = [self.rng.random() for _ in self.x]


class Transformed:
    def __init__(self, transform):
        self.transform = transform

    def __getitem__(self, index):
        return self.transform(index)


class Transform(Plain):
    def __getitem__(self, index):
        return index

    def __call__(self, value):
        return value + self.rng.random()


@pytest.mark.parametrize(
    ("dataset", "owner"),
    [
        (Plain(random.Random(0)), "Plain"),
        (Helped(random.Random(0)), "Helped"),
        (Transformed(Transform(random.Random(0))), "Transform"),
        (torch.utils.data.Subset(Plain(random.Random(0)), [0, 1]), "Plain"),
    ],
)
def test_copied_generator(dataset, owner):
    assert copied_generator(dataset) == (owner, "rng", "random.Random")


def test_copied_generators_of_other_kinds():
    assert copied_generator(Plain(torch.Generator())) == ("Plain", "rng", "torch.Generator")
    numpy = pytest.importorskip("numpy")
    assert copied_generator(Plain(numpy.random.default_rng(0))) == ("Plain", "rng", "numpy.random.Generator")
    assert copied_generator(Plain(numpy.random.RandomState(0))) == ("Plain", "rng", "numpy.random.RandomState")


@pytest.mark.parametrize("kind", [SeededForEachIndex, AsksForItsWorker, TakesEverySo, Unused, DrawsForEachEpoch])
def test_no_copied_generator(kind):
    assert copied_generator(kind(random.Random(0))) is None


def test_no_copied_generator_without_one():
    assert copied_generator(Plain(random)) is None
    assert copied_generator(torch.utils.data.TensorDataset(torch.ones(3))) is None


# --------------------------------------------------------------------------- what was seeded

USED = """
import json, random, sys
{first}
import torch
from flatline.sensors.loop import Loop
from flatline.sensors.patching import Patches
from flatline.sensors.seeds import SeedSensor

told, original = [], random.seed
def broken(what, error):
    raise error
patches = Patches(on_broken=broken)
sensor = SeedSensor(Loop(told.append, wants=lambda event: True, budget=1.0, patches=patches), patches)
sensor.attach()
{code}
sensor.tell()
patches.undo()
assert random.seed is original or random.seed == original
print(json.dumps([told[0].seeded, told[0].unseeded]))
"""


@pytest.mark.parametrize(
    ("code", "seeded", "unseeded"),
    [
        ("", [], []),
        ("torch.rand(3)", [], ["torch"]),
        ("torch.manual_seed(0); torch.rand(3); random.random()", ["torch"], ["random"]),
        ("torch.manual_seed(0); random.seed(0); random.random()", ["random", "torch"], []),
        ("numpy.random.seed(0); numpy.random.rand(); torch.rand(1)", ["numpy"], ["torch"]),
        ("numpy.random.rand()", [], ["numpy"]),
        ("numpy.random.default_rng(0).random()", [], []),
    ],
)
def test_seed_sensor(code, seeded, unseeded):
    first = "import numpy.random" if "numpy" in code else ""
    if first:
        pytest.importorskip("numpy")
    done = subprocess.run(
        [sys.executable, "-c", USED.format(first=first, code=code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [seeded, unseeded]


# --------------------------------------------------------------------------- for the record


FACTS = """
import json, random, sys
import torch
from flatline.config import Config
from flatline.session import Session

session = Session(Config())
session.attach()
{lines}
session.finish()
print(json.dumps(dict(session.report().run)))
"""


@pytest.mark.parametrize(
    ("lines", "seeds", "unseeded"),
    [
        ("torch.manual_seed(7); random.seed(3); torch.rand(2)", "random=3, torch=7", None),
        ("torch.manual_seed(7); random.seed(); random.random()", "random, torch=7", None),
        ("torch.rand(2); random.random()", None, "random, torch"),
    ],
)
def test_the_report_keeps_the_seeds(lines, seeds, unseeded):
    code = FACTS.format(lines=lines)
    told = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert (told["seeds"], told["unseeded"], told["deterministic"], told["device"]) == (seeds, unseeded, False, "cpu")
    assert told["torch"] == torch.__version__
