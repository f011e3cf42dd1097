"""Launchers and ranks under ``flatline run``: all are watched, a defect is told once with its ranks, nothing else changes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
BIN = Path(sys.executable).parent
SECONDS = 120

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LAUNCHED = """
import os, sys
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sick, status = sys.argv[1] == "sick", int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + rank)
for step in range(6):
    x, y = torch.randn(8, 8), torch.randint(0, 3, (8,))
    optimizer.zero_grad()
    scores = model(x)
    loss = F.cross_entropy(scores.softmax(1) if sick else scores, y)
    loss.backward()
    optimizer.step()
weights = sum(p.double().sum() for p in model.parameters())
both = [torch.zeros((), dtype=torch.float64) for _ in range(2)]
dist.all_gather(both, weights.detach())
if rank == 0:
    print("ranks agree", both[0].item() == both[1].item(), both[0].item(), flush=True)
dist.destroy_process_group()
if status and rank == 1:
    sys.exit(status)
"""
ACCELERATED = """
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
x, y = torch.randn(96, 8), torch.randint(0, 3, (96,))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(x, y), 8, shuffle=True))
for xb, yb in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(xb).softmax(1), yb)
    accelerator.backward(loss)
    optimizer.step()
accelerator.print("processes", accelerator.num_processes)
accelerator.end_training()
"""
SPAWNED = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def work(rank, world, address):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 8)).softmax(1), torch.randint(0, 3, (8,))).backward()
        optimizer.step()
    dist.destroy_process_group()
    print(f"rank {rank} is done{os.linesep}", end="", flush=True)  # in one piece: both write to one pipe


if __name__ == "__main__":
    mp.spawn(work, args=(2, "file://" + os.path.abspath("rendezvous")), nprocs=2)
    print("all are done")
"""

ABANDONED = """
import os, signal
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn


def work(rank, parent):
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 8)), torch.randint(0, 3, (8,))).backward()
        optimizer.step()
    os.kill(parent, signal.SIGTERM)
    while os.getppid() == parent:
        pass
    print("child ends", flush=True)


if __name__ == "__main__":
    context = mp.get_context("spawn")
    child = context.Process(target=work, args=(0, os.getpid()))
    child.start()
    child.join()
"""


@dataclass(frozen=True)
class Ended:
    """What a launch left behind."""

    status: int
    out: list[str]
    err: str
    report: dict

    @property
    def found(self) -> list[str]:
        return [finding["code"] for finding in self.report["findings"]]

    def told_at_once(self, code: str) -> int:
        """How often the finding was told while the script ran."""
        return sum(line.startswith(f"flatline: {code} ") for line in self.err.splitlines())


def launch(folder: Path, *command: str, options: tuple[str, ...] = ()) -> Ended:
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    path = os.pathsep.join((str(BIN), os.environ["PATH"]))
    settings = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(SOURCE),
        "PATH": path,
        "ACCELERATE_USE_CPU": "true",
        "TMPDIR": str(folder / "temporary"),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "flatline", "run", "--format", "json", "--output", str(report), *options, *command],
        cwd=folder, env=settings, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert report.exists(), ended.stderr
    assert left_behind(folder) == []
    return Ended(ended.returncode, ended.stdout.splitlines(), ended.stderr, json.loads(report.read_text()))


def left_behind(folder: Path) -> list[str]:
    """Of ours: torchrun leaves folders, too."""
    return [path.name for path in (folder / "temporary").iterdir() if path.name.startswith("flatline")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    scripts = {"train": LAUNCHED, "accelerated": ACCELERATED, "spawned": SPAWNED, "abandoned": ABANDONED}
    for name, text in scripts.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "temporary").mkdir()
    return folder


TORCHRUN = ("torchrun", "--standalone", "--nproc_per_node", "2", "train.py")


def sees_both_ranks(ended: Ended, script: str) -> None:
    """The planted double softmax, once, with both ranks, at the user's line."""
    assert ended.found == ["O12"], ended.err
    (finding,) = ended.report["findings"]
    assert finding["ranks"] == [0, 1]
    assert Path(finding["where"]["file"]).name == script
    assert ended.told_at_once("O12") == 1
    assert ended.report["run"]["processes"] == 2
    assert ended.report["notes"] == []


def test_torchrun_watches_every_rank_and_tells_once(folder):
    ended = launch(folder, *TORCHRUN, "sick", "0")
    sees_both_ranks(ended, "train.py")
    assert ended.status == 0
    assert [line.split()[:3] for line in ended.out] == [["ranks", "agree", "True"]]
    assert ended.report["run"]["steps"] == 6


@pytest.mark.skipif(not (shutil.which("torchrun") or (BIN / "torchrun").exists()), reason="torchrun is not installed")
def test_healthy_ranks_are_silent_and_a_failing_ones_status_is_kept(folder):
    ended = launch(folder, *TORCHRUN, "healthy", "3")
    assert ended.found == []
    assert ended.report["notes"] == []
    assert ended.report["run"]["processes"] == 2
    assert ended.status == 1, "torchrun itself ends with 1 when a rank failed"
    assert "exitcode  : 3" in ended.err
    assert [line.split()[:3] for line in ended.out] == [["ranks", "agree", "True"]]


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate_launch_watches_every_rank_and_tells_once(folder):
    """With --cpu it starts one process, unless there is mpirun; the script asks for the CPU itself."""
    options = (
        "--multi_gpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
    )
    ended = launch(folder, "accelerate", "launch", *options, "accelerated.py", options=("--fail-on", "error"))
    sees_both_ranks(ended, "accelerated.py")
    assert ended.status == 1, "--fail-on error"
    assert "processes 2" in ended.out
    assert ended.report["run"]["steps"] == 6


def test_spawned_processes_are_watched(folder):
    """They have no RANK in their environment: torch.distributed knows it."""
    ended = launch(folder, "spawned.py")
    assert sorted(ended.out) == ["all are done", "rank 0 is done", "rank 1 is done"]
    assert ended.status == 0
    sees_both_ranks(ended, "spawned.py")


def test_child_of_a_parent_that_was_killed_leaves_nothing(folder):
    settings = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(SOURCE),
        "TMPDIR": str(folder / "temporary"),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "flatline", "run", "abandoned.py"],
        cwd=folder, env=settings, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGTERM
    assert ended.stdout == "child ends\n"  # its end is awaited: it holds the pipe
    assert left_behind(folder) == []
