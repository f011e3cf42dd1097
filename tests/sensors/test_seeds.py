"""Where the user's loop seeds a generator anew before it draws."""

from __future__ import annotations

import sys

import pytest

from flatline.sensors.seeds import seeded_draw

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


def found_by(tmp_path, code):
    path = tmp_path / "train.py"
    path.write_text(code)
    found = []
    names = dict.fromkeys(("torch", "np", "random", "model", "g", "seed_all"), Anything())
    names["look"] = lambda: found.append(seeded_draw(sys._getframe(1)))
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
