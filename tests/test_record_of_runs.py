"""The record of real trainings: what is in it, and that the training is the same with and without it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flatline.readers._log import Log
from flatline.readers.tensorboard import TensorBoard
from flatline.record import open_record

pytest.importorskip("torch")

SOURCE = Path(__file__).resolve().parents[1] / "src"
START = """
import hashlib, sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
x = torch.randn(96, 8); y = x[:, :3].argmax(1)
criterion = nn.CrossEntropyLoss()
def loss_of(step):
    rows = torch.randint(0, 96, (24,))
    return criterion(model(x[rows]), y[rows])
def tell():
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest(), torch.rand(1).item())
"""
LOOP = """
for step in range(1, STEPS + 1):
    optimizer.zero_grad()
    loss = loss_of(step)
    loss.backward()
    AFTER_BACKWARD
    optimizer.step()
    AFTER_STEP
"""


def loop(steps=60, *, build="optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", backward="pass", step="pass"):
    text = LOOP.replace("STEPS", str(steps)).replace("AFTER_BACKWARD", backward).replace("AFTER_STEP", step)
    return f"{START}{build}\n{text}tell()\n"


class Ended:
    def __init__(self, folder, process):
        self.folder, self.status = folder, process.returncode
        self.stdout, self.stderr = process.stdout, process.stderr

    @property
    def runs(self):
        shelf = self.folder / ".flatline"
        return sorted(path for path in shelf.iterdir() if path.is_dir()) if shelf.is_dir() else []

    @property
    def record(self):
        (run,) = self.runs
        return open_record(run)

    @property
    def series(self):
        with self.record as record:
            return {series.name: series for series in record.series()}


def run(folder, text, *options, watched=True, arguments=()):
    (folder / "train.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *(("-m", "flatline", "run", *options) if watched else ()), "train.py", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return Ended(folder, done)


def test_a_run_is_recorded_and_stays_the_same(tmp_path):
    text = loop(
        200,
        build="optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nscheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50)",
        backward="torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5); print(step, loss.item())",
        step="scheduler.step()",
    )
    ended = run(tmp_path, text, arguments=("--token", "hunter2"))
    plain, kept_off = run(tmp_path, text, watched=False), run(tmp_path, text, "--no-record")
    assert ended.stdout == plain.stdout == kept_off.stdout
    printed = [float(line.split()[1]) for line in plain.stdout.splitlines()[:200]]
    series = ended.series
    assert series["loss"].steps == series["lr"].steps == tuple(range(1, 201))
    assert series["loss"].values == tuple(printed)
    assert [series["lr"].values[at] for at in (0, 49, 50, 100, 199)] == pytest.approx([0.1, 0.1, 0.01, 0.001, 0.0001])
    assert set(series["clip_threshold"].values) == {0.5}
    assert all(norm <= 0.5 * 1.001 for norm in series["clipped_norm"].values)
    assert max(series["gradient_norm"].values) > 0.5
    with ended.record as record:
        assert record.ended
        assert (record.facts["steps"], record.facts["how"]) == (200, "finished")
        assert "hunter2" not in str(record.facts)
        assert {"weight_rms", "gradient_rms", "update_ratio", "activation_std", "zeros", "saturated"} <= {
            *record.quantities()
        }
        assert record.grid("weight_rms").names == tuple(
            f"{at}.{what}" for at in (0, 2, 4) for what in ("weight", "bias")
        )
        assert next((p.name, p.shape, p.optimizer) for p in record.parameters()) == ("0.weight", (16, 8), "SGD")
        names = {histogram.name for histogram in record.histograms()}
        assert {"weights/0.weight", "activations/1"} <= names
        assert all(
            sum(histogram.counts) == 128 for histogram in record.histograms() if histogram.name == "weights/0.weight"
        )
        assert {"optimizer built", "schedule"} <= {happening.kind for happening in record.happenings()}
        assert set(record.checked) | {rule.code for rule in record.not_checked} > {"O4", "O12"}
    assert ended.stderr.splitlines()[-1] == f"flatline: recorded in .flatline/{ended.runs[0].name}"
    report = json.loads((ended.runs[0] / "report.json").read_text())
    assert report["run"]["record"] == str(ended.runs[0])
    assert (tmp_path / ".flatline" / ".gitignore").read_text() == "*\n"


def test_the_scalars_go_to_tensorboard_too(tmp_path):
    ended = run(tmp_path, loop(50), "--tensorboard", "board")
    assert ended.stdout == run(tmp_path, loop(50), watched=False).stdout
    log = Log()
    (folder,) = (tmp_path / "board").iterdir()
    TensorBoard().read_all(list(folder.iterdir()), log)
    found = {curve.name: curve for curve in log.run().event().curves}
    assert folder.name == ended.runs[0].name
    assert found["flatline/loss"].steps == tuple(range(1, 51))
    assert found["flatline/loss"].values == pytest.approx(ended.series["loss"].values)
    assert {"flatline/lr", "flatline/gradient_norm"} <= {*found}


def test_tensorboard_needs_a_record(tmp_path):
    ended = run(tmp_path, loop(5), "--no-record", "--tensorboard", "board")
    assert (ended.status, ended.stdout) == (2, "")
    assert ended.stderr == "flatline: --tensorboard writes the scalars of the record, and none is kept here\n"


def test_a_script_that_never_steps_leaves_nothing(tmp_path):
    ended = run(tmp_path, START + "loss_of(1).backward()\n")
    assert ended.runs == []
    assert not (tmp_path / ".flatline").exists()
    assert "recorded" not in ended.stderr


@pytest.mark.parametrize("script", ["print(1)", "import torch", "raise SystemExit(3)", "def"])
def test_other_scripts_leave_nothing(tmp_path, script):
    run(tmp_path, script)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_two_optimizers_have_a_series_each(tmp_path):
    text = START + """
other = nn.Linear(8, 3)
one, two = torch.optim.Adam(model.parameters(), lr=0.01), torch.optim.SGD(other.parameters(), lr=0.5)
for step in range(1, 41):
    for net, optimizer, scale in ((model, one, 1.0), (other, two, 100.0)):
        optimizer.zero_grad()
        (criterion(net(x), y) * scale).backward()
        optimizer.step()
"""  # fmt: skip
    series = run(tmp_path, text).series
    losses = {name: found for name, found in series.items() if name.startswith("loss/")}
    assert len(losses) == 2
    assert sorted(len(found.steps) for found in losses.values()) == [40, 40]
    low, high = sorted(found.values[0] for found in losses.values())
    assert low < 3 < 50 < high
    assert sorted(found.values[0] for name, found in series.items() if name.startswith("lr/")) == [0.01, 0.5]


def test_accumulation_records_the_mean_of_a_step(tmp_path):
    text = START + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 41):
    optimizer.zero_grad()
    for part in range(4):
        loss = loss_of(step) / 4
        loss.backward()
        print(loss.item())
    optimizer.step()
"""  # fmt: skip
    ended = run(tmp_path, text)
    values = [float(line) for line in ended.stdout.splitlines()]
    means = [sum(values[at : at + 4]) / 4 for at in range(0, 160, 4)]
    assert ended.series["loss"].values == pytest.approx(means)


def test_a_rate_set_by_hand_is_recorded_at_every_step(tmp_path):
    text = loop(80, step="optimizer.param_groups[0]['lr'] = 0.1 / (step + 1)")
    assert run(tmp_path, text).series["lr"].values == pytest.approx([0.1 / step for step in range(1, 81)])


CRASHES = {
    "crash": ("raise ValueError('no')", 1, "crashed"),
    "exit": ("sys.exit(3)", 3, "crashed"),
    "leave": ("sys.exit()", 0, "finished"),
    "interrupt": ("raise KeyboardInterrupt", -signal.SIGINT, "interrupted"),
}


@pytest.mark.parametrize(("statement", "status", "how"), CRASHES.values(), ids=CRASHES)
def test_a_run_that_ends_early_has_its_record(tmp_path, statement, status, how):
    ended = run(tmp_path, loop(60, step=f"\n    if step == 30: {statement}"))
    assert ended.status == status
    assert ended.series["loss"].steps == tuple(range(1, 31))
    with ended.record as record:
        assert (record.facts["how"], record.ended) == (how, True)


def test_a_run_that_is_killed_has_its_record(tmp_path):
    finding = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1); criterion = lambda a, b: nn.functional.cross_entropy(a.softmax(1), b)"
    (tmp_path / "train.py").write_text(loop(10**9, build=finding, step="step % 50 or print(step, flush=True)"))
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "flatline", "run", "train.py"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    process.stdout.readline()
    began = time.monotonic()
    while time.monotonic() - began < 2.5:
        last = int(process.stdout.readline())
    process.kill()
    process.communicate()
    with open_record(tmp_path / ".flatline") as record:
        (loss,) = (series for series in record.series() if series.name == "loss")
        assert loss.steps == tuple(range(1, len(loss.steps) + 1))
        assert 50 <= len(loss.steps) <= last + 50
        assert "O12" in [finding.code for finding in record.findings]
        assert (record.ended, record.facts["python"]) == (False, sys.version.split()[0])


def test_nan_is_recorded_where_it_came(tmp_path):
    series = run(tmp_path, loop(40, step="\n    if step == 20: model[0].weight.data.fill_(float('nan'))")).series
    assert series["loss"].not_finite == tuple(range(21, 41))
    assert all(math.isnan(value) for value in series["loss"].values[20:])


def test_scalars_of_tensorboard_are_recorded(tmp_path):
    pytest.importorskip("tensorboard")
    text = loop(
        30,
        build="from torch.utils.tensorboard import SummaryWriter\nwriter = SummaryWriter('tb')\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        step="writer.add_scalar('train/loss', loss, step); step % 10 or writer.add_scalar('val/acc', step / 30, step)",
    )
    series = run(tmp_path, text).series
    assert series["logged/train/loss"].values == series["loss"].values
    assert (series["logged/val/acc"].steps, series["logged/val/acc"].values) == ((10, 20, 30), (10 / 30, 20 / 30, 1.0))


def test_scalars_of_mlflow_and_wandb_are_recorded(tmp_path):
    """With modules of the same names and form in their place."""
    for name, text in {
        "wandb/__init__.py": "from wandb.sdk.wandb_run import Run\nrun = Run()\nlog = run.log\n",
        "wandb/sdk/__init__.py": "",
        "wandb/sdk/wandb_run.py": "class Run:\n    def log(self, data, step=None):\n        return 7\n",
        "mlflow/__init__.py": "from mlflow.tracking.fluent import log_metric, log_metrics\n",
        "mlflow/tracking/__init__.py": "",
        "mlflow/tracking/fluent.py": "def log_metric(key, value, step=None):\n    return 8\ndef log_metrics(metrics, step=None):\n    return 9\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    text = loop(
        20,
        build="import mlflow, wandb\nwandb.run = wandb.Run()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        step="\n    assert (wandb.run.log({'a': step, 'text': 'x', 'flag': True}), mlflow.log_metric('b', loss.item()), mlflow.log_metrics({'c': torch.tensor(2)})) == (7, 8, 9)",
    )
    ended = run(tmp_path, text)
    assert ended.status == 0
    series = ended.series
    assert {name for name in series if name.startswith("logged/")} == {"logged/a", "logged/b", "logged/c"}
    assert series["logged/a"].values == tuple(range(1, 21))


def test_a_folder_may_be_named(tmp_path):
    for name in ("mine", "mine-2"):
        ended = run(tmp_path, loop(20), "--record", "mine")
        assert ended.stderr.splitlines()[-1] == f"flatline: recorded in {name}"
        assert (tmp_path / name / "record.sqlite").is_file()
    assert ended.runs == []


@pytest.mark.parametrize(
    ("table", "kept"),
    [
        ("record = false", None),
        ('record = "runs"', "runs"),
        ('record-limit = "1 MB"', ".flatline"),
        ('record_limit = "1 GB"', ".flatline"),
    ],
)
def test_settings_say_where(tmp_path, table, kept):
    (tmp_path / "pyproject.toml").write_text(f"[tool.flatline]\n{table}\n")
    ended = run(tmp_path, loop(20))
    assert ended.status == 0
    found = [path.parent.parent.name for path in tmp_path.glob("*/*/record.sqlite")]
    assert found == ([kept] if kept else [])


@pytest.mark.parametrize(
    "table", ["record = 3", 'record = ""', 'record-limit = "much"', "record-limit = 5", 'record-limit = "0 MB"']
)
def test_wrong_settings_are_told_in_a_line(tmp_path, table):
    (tmp_path / "pyproject.toml").write_text(f"[tool.flatline]\n{table}\n")
    ended = run(tmp_path, "print(1)")
    assert (ended.status, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "record" in ended.stderr


def test_a_folder_that_cannot_be_written_is_one_note(tmp_path):
    (tmp_path / ".flatline").write_text("in the way")
    ended = run(tmp_path, loop(20))
    assert ended.status == 0
    assert ended.stderr.count("could not be written") == 1
    assert "recorded in" not in ended.stderr


def test_a_folder_deleted_by_the_script_is_one_note(tmp_path):
    ended = run(
        tmp_path,
        loop(60, step="\n    if step == 30: import shutil, time; shutil.rmtree('.flatline'); time.sleep(1.1)"),
    )
    assert ended.status == 0
    assert ended.stderr.count("could not be written") == 1
    assert "recorded in" not in ended.stderr


def test_watch_records_only_when_asked(tmp_path):
    text = loop(20).replace("import hashlib", "import flatline, hashlib")
    for call, names in (("", []), ("record='notebook'", ["notebook"])):
        watched = (
            text.replace("torch.manual_seed(0)", f"run_ = flatline.watch({call}); torch.manual_seed(0)")
            + "run_.close()\n"
        )
        assert run(tmp_path, watched, watched=False).status == 0
        assert [path.parent.name for path in tmp_path.glob("**/record.sqlite")] == names
    with open_record(tmp_path / "notebook") as record:
        assert record.ended
        assert [len(series.steps) for series in record.series() if series.name == "loss"] == [20]


def test_spawned_processes_share_the_folder(tmp_path):
    text = """
import os, sys, torch
import torch.multiprocessing as processes
def train(rank):
    os.environ["RANK"] = str(rank)
    model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(12):
        optimizer.zero_grad(); model(torch.randn(8, 4)).square().mean().backward(); optimizer.step()
if __name__ == "__main__":
    processes.spawn(train, nprocs=2)
"""
    ended = run(tmp_path, text)
    assert ended.status == 0, ended.stderr
    (folder,) = ended.runs
    assert sorted(path.name for path in folder.iterdir()) == [
        ".family",
        "record-rank1.sqlite",
        "record.sqlite",
        "report.json",
    ]
    for file in ("record.sqlite", "record-rank1.sqlite"):
        with open_record(folder / file) as record:
            assert [len(series.steps) for series in record.series() if series.name == "loss"] == [12]
    assert ended.stderr.splitlines()[-1].startswith("flatline: recorded in .flatline/")


def test_diagnose_reads_a_record(tmp_path):
    ended = run(
        tmp_path, loop(60, step="\n    if step == 40: optimizer.param_groups[0]['lr'] = 5000.0"), "--record", "rec"
    )
    done = subprocess.run(
        [sys.executable, "-m", "flatline", "diagnose", "--format", "json", "rec"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.status == 0
    facts = json.loads(done.stdout)["run"]
    assert (facts["steps"], facts["format"], facts["learning_rate"]) == (60, "flatline", "lr")
    assert {"train_loss", "gradient_norm"} <= {*facts}


FAR = (
    "torch.Tensor.is_cpu = property(lambda tensor: tensor.dim() != 0)  # single numbers seem to lie on an accelerator\n"
)


def test_losses_that_lie_on_an_accelerator_are_read_late_and_recorded(tmp_path):
    text = START + FAR + """
other = nn.Linear(8, 3)
one, two = torch.optim.Adam(model.parameters(), lr=0.01), torch.optim.SGD(other.parameters(), lr=0.5)
for step in range(1, 71):
    for net, optimizer, scale in ((model, one, 1.0), (other, two, 100.0)):
        optimizer.zero_grad()
        loss = criterion(net(x), y) * scale
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        optimizer.step()
        print(loss.item())
"""  # fmt: skip
    ended = run(tmp_path, text)
    printed = [float(line) for line in ended.stdout.splitlines()]
    series = ended.series
    names = [name.removeprefix("loss/") for name in series if name.startswith("loss/")]
    one, two = sorted(names, key=lambda name: series[f"loss/{name}"].values[0])
    assert series[f"loss/{one}"].values == pytest.approx(printed[::2])
    assert series[f"loss/{two}"].values == pytest.approx(printed[1::2])
    for name in names:
        assert series[f"gradient_norm/{name}"].steps == series[f"clipped_norm/{name}"].steps
        assert max(series[f"gradient_norm/{name}"].values) > 0.25


def test_a_loss_that_is_thrown_away_is_not_of_that_optimizer(tmp_path):
    """The generator's loss reaches the discriminator, too, whose next ``zero_grad`` throws it away."""
    text = """
import torch
from torch import nn
torch.manual_seed(0)
G, D = nn.Linear(4, 8), nn.Linear(8, 1)
og, od = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
for i in range(60):
    fake = G(torch.randn(16, 4))
    od.zero_grad(); loss = D(torch.randn(16, 8)).mean() - D(fake.detach()).mean() + 100; loss.backward(); od.step()
    print(loss.item())
    og.zero_grad(); loss = D(fake).mean() - 100; loss.backward(); og.step()
    print(loss.item())
"""
    ended = run(tmp_path, text)
    printed = [float(line) for line in ended.stdout.splitlines()]
    assert ended.series["loss/D"].values[:60] == pytest.approx(printed[::2])
    assert ended.series["loss/G"].values == pytest.approx(printed[1::2])
