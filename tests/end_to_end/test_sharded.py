"""Weights that lie in shards: FSDP takes away the storage of gathered ones, and a look at one of them is fatal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
SECONDS = 120

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = """
import sys
import warnings
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

kind, store = sys.argv[1:3]
warnings.filterwarnings("ignore")
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.body = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.mix = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        h = self.body(self.table(x)) if kind != "tensor parallel" else self.table(x)
        return self.head(torch.relu(self.mix(h)).mean(1))


model = Net()
if kind.startswith("fully_shard"):
    from torch.distributed.fsdp import fully_shard

    for part in (model.body, model.mix[0], model.mix[3], model.head):
        fully_shard(part)
    fully_shard(model)
elif kind == "tensor parallel":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    parallelize_module(model.mix, init_device_mesh("cpu", (1,)), {"0": ColwiseParallel(), "3": RowwiseParallel()})
else:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(model, use_orig_params="own" in kind, device_id=torch.device("cpu"))
held = model.body.parameters() if kind == "fully_shard, sick" else model.parameters()
optimizer = torch.optim.AdamW(held, lr=2e-3, foreach=False)
x = torch.randint(0, 50, (256, 10))
y = (x.float().mean(1) / 12.5).long().clamp(0, 3)
for _ in range(60):
    rows = torch.randint(0, 256, (32,))
    loss = F.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
print(repr(float(loss)), repr(sum(float(p.detach().double().abs().sum()) for p in whole)), torch.rand(1).item())
dist.destroy_process_group()
"""
KINDS = ("fully_shard", "flat", "flat, own parameters", "tensor parallel")


def ran(folder, kind, *before):
    script = folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    store = folder / f"store{len(before)}"
    return subprocess.run(
        [sys.executable, *before, str(script), kind, str(store)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


def watched(folder, kind):
    report = folder / "report.json"
    before = ("-m", "flatline", "run", "--no-record", "--hints", "--format", "json", "--output", str(report))
    done = ran(folder, kind, *before)
    assert done.returncode == 0, done.stderr
    return done, json.loads(report.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sharded_model_ends_the_same_and_is_found_healthy(tmp_path, kind):
    plain, (done, report) = ran(tmp_path, kind), watched(tmp_path, kind)
    assert plain.returncode == 0, plain.stderr
    assert done.stdout.splitlines() == plain.stdout.splitlines()
    assert [finding["message"] for finding in report["findings"] if finding["severity"] != "hint"] == []
    assert report["run"]["steps"] == 60
    assert "switched off" not in done.stderr


def test_parameters_left_out_of_the_optimizer_are_found_behind_their_shards(tmp_path):
    _, report = watched(tmp_path, "fully_shard, sick")
    (finding,) = [finding for finding in report["findings"] if finding["severity"] != "hint"]
    assert finding["code"] == "O2"
    assert "mix.0.weight" in finding["message"] or "table.weight" in finding["message"]
