"""Two threads that train at once crashed four runs of ten while the gradients of one were read from the other."""

import subprocess
import sys

import pytest

LOOP = """
import threading, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
models = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(1)) for _ in range(3)]
def work(at):
    draws = torch.Generator().manual_seed(at)
    optimizer = torch.optim.SGD(models[at].parameters(), lr=0.1)
    for _ in range({steps}):
        x = torch.randn(16, 8, generator=draws)
        optimizer.zero_grad()
        F.cross_entropy(models[at](x), x[:, :3].argmax(1)).backward()
        optimizer.step()
"""
AT_ONCE = """
for _ in range(6):
    threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
    [each.start() for each in threads], [each.join() for each in threads]
print("done")
"""
IN_TURN = """
work(0)
for at in (1, 2):
    thread = threading.Thread(target=work, args=(at,))
    thread.start(), thread.join()
print("done")
"""


def run(tmp_path, source):
    (tmp_path / "train.py").write_text(source, encoding="utf-8")
    words = [sys.executable, "-m", "flatline", "run", "--no-record", "train.py"]
    return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("attempt", range(3))
def test_threads_that_train_at_once_are_left_alone(tmp_path, attempt):
    done = run(tmp_path, LOOP.format(steps=60) + AT_ONCE)
    assert (done.returncode, done.stdout) == (0, "done\n")
    said = " ".join(done.stderr.split())
    assert "the watch was switched off: SeveralThreads: another thread began to train at the same time" in said


def test_threads_that_train_in_turn_are_watched(tmp_path):
    done = run(tmp_path, LOOP.format(steps=10) + IN_TURN)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "switched off" not in done.stderr
    assert "O12 double-softmax" in done.stderr
    assert "30 steps" in done.stderr
