"""``flatline preflight`` on whole scripts."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatline.findings import Report
from flatline.reporters.preflight import render, sparkline

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
X = torch.randn(256, 12)
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, 3))
"""
LOADER = """
from torch.utils.data import DataLoader, TensorDataset
opt = torch.optim.AdamW(net.parameters(), lr={rate}, weight_decay=0.1)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda e: min(1.0, (e + 1) / 1000))
for epoch in range(3):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        sched.step()
"""
BY_HAND = """
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(600):
    at = {draw}
    loss = F.cross_entropy(net(X[at]), Y[at])
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
ADVERSARIES = """
other = nn.Linear(12, 1)
one, two = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)
for step in range(50):
    one.zero_grad(); F.cross_entropy(net(X), Y).backward(); one.step()
    two.zero_grad(); other(X).pow(2).mean().backward(); two.step()
"""


def preflight(tmp_path, source, *options):
    """The stages' answers by name, and the codes that were found."""
    script = tmp_path / "train.py"
    script.write_text(source, encoding="utf-8")
    words = [sys.executable, "-m", "flatline", "preflight", "--format", "json", *options, str(script)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1, 2), done.stderr
    told = json.loads(done.stdout)
    return {stage["stage"]: stage for stage in told["stages"]}, [finding["code"] for finding in told["findings"]]


@pytest.mark.parametrize(
    "loop",
    [
        LOADER.format(rate=1e-3),
        BY_HAND.format(draw="torch.randint(0, 256, (32,))"),
        BY_HAND.format(draw="slice(step * 32 % 256, step * 32 % 256 + 32)"),
    ],
    ids=["loader, warm-up, decay", "drawn", "in turn"],
)
def test_a_healthy_script_passes(tmp_path, loop):
    stages, found = preflight(tmp_path, HEAD + loop)
    assert {name: stage["verdict"] for name, stage in stages.items()} == dict.fromkeys(
        ("look", "memorise", "rates", "probe"), "passed"
    )
    assert found == []
    assert stages["memorise"]["losses"][-1] < 0.02 * stages["memorise"]["losses"][0]
    assert 1e-4 < stages["rates"]["steepest"] < 1
    assert sum(math.prod(each["shape"]) for each in stages["look"]["parameters"]) == 12 * 48 + 48 + 48 * 3 + 3


def test_a_rate_of_nothing_learns_no_batch(tmp_path):
    stages, found = preflight(tmp_path, HEAD + LOADER.format(rate=1e-9), "--stages", "memorise", "--fail-on", "error")
    assert (stages["memorise"]["verdict"], found) == ("failed", ["O1"])


def test_what_the_steps_show_explains_the_batch(tmp_path):
    broken = HEAD.replace("(X[:, 1] > 0).long()", "(X[:, 1] > 0).long()\nX = X * 0 + 1") + LOADER.format(rate=1e-3)
    stages, found = preflight(tmp_path, broken, "--stages", "look,memorise", "--steps", "150")
    assert stages["look"]["verdict"] == "failed"
    assert found
    assert "O1" not in found


def test_two_players_are_not_judged(tmp_path):
    stages, found = preflight(tmp_path, HEAD + ADVERSARIES, "--stages", "memorise,rates")
    assert {stage["verdict"] for stage in stages.values()} == {"not done"}
    assert {stage["why"] for stage in stages.values()} == {"several optimizers train against or beside each other"}
    assert found == []


def test_nothing_of_the_scripts_own_is_touched(tmp_path):
    writes = """
import os, shutil
torch.save(net.state_dict(), "best.pt")
net.load_state_dict(torch.load("best.pt"))
open("log.csv", "a").write("new\\n")
assert open("log.csv").read() == "old\\nnew\\n"
os.replace("log.csv", "last.csv")
assert os.path.exists("last.csv") and os.path.getsize("best.pt") > 0 and not os.path.exists("log.csv.tmp")
shutil.copy("best.pt", "copy.pt")
import glob, tempfile
assert sorted(glob.glob("*.pt")) == ["best.pt", "copy.pt"] and "last.csv" in os.listdir(".")
with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
    file.write("whole")
os.replace(file.name, b"state.txt".decode())
assert open("state.txt").read() == "whole"
open(b"bytes.txt", "w").write("x")
os.truncate("keep.txt", 0)
os.rename("keep.txt", "kept.txt")
assert open("kept.txt").read() == ""
os.remove("kept.txt")
shutil.rmtree("runs")
"""
    (tmp_path / "log.csv").write_text("old\n", encoding="utf-8")
    (tmp_path / "keep.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "runs").mkdir()
    stages, _ = preflight(tmp_path, HEAD + writes + LOADER.format(rate=1e-3), "--stages", "look")
    assert stages["look"]["verdict"] == "passed", stages
    assert sorted(os.listdir(tmp_path)) == ["keep.txt", "log.csv", "runs", "train.py"]
    assert Path(tmp_path, "log.csv").read_text(encoding="utf-8") == "old\n"


READS_ON = """
from torch.utils.data import DataLoader, TensorDataset
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
data = DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=32)
for epoch in range(4):
    for x, y in data:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        sched.step()
        total = sum(F.cross_entropy(net(x), y).item() for x, y in data)
"""


def test_a_loader_that_is_read_on_and_a_schedule_with_an_end(tmp_path):
    stages, found = preflight(tmp_path, HEAD + READS_ON, "--stages", "memorise", "--seconds", "20")
    assert (stages["memorise"]["verdict"], found) == ("passed", [])


def test_a_script_that_crashes(tmp_path):
    stages, _ = preflight(tmp_path, "import torch\nraise ValueError('no data')", "--stages", "memorise")
    assert stages["memorise"]["why"] == "the script crashed: ValueError: no data"


CATCHES = """
import os, shutil, sys
class Config(dict):
    __getattr__ = dict.__getitem__
config = Config(lr=1e-3)
if os.path.exists("out"):
    shutil.rmtree("out")
os.makedirs("out")
opt = torch.optim.Adam(net.parameters(), lr=config.lr)
while True:
    try:
        opt.zero_grad()
        F.cross_entropy(net(X), Y).backward()
        opt.step()
    except:
        continue
"""


def test_a_script_that_catches_its_end(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.txt").write_text("mine", encoding="utf-8")
    stages, _ = preflight(tmp_path, HEAD + CATCHES, "--stages", "look", "--steps", "4")
    assert stages["look"]["verdict"] == "passed", stages
    assert (tmp_path / "out" / "old.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--stages", "everything", "x.py"], "--stages are some of look, memorise, rates, probe; it is 'everything'"),
        (["--steps", "0", "x.py"], "must be a whole number of at least 1; it is '0'"),
        (["x.py"], "there is no script 'x.py'"),
        ([], "there is no script to run"),
    ],
)
def test_bad_input(tmp_path, options, said):
    words = [sys.executable, "-m", "flatline", "preflight", *options]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_curve_in_one_line():
    assert sparkline([0.0, 1.0, 2.0]) == "▁▄█" or sparkline([0.0, 1.0, 2.0]) == "▁▅█"
    assert sparkline([1.0, math.nan]) == "▁×"
    assert len(sparkline(list(range(1000)))) <= 48


def test_no_line_is_longer_than_the_terminal_is_wide():
    lines = [[f"input {'x' * 90}", "16 × 4 float32; " + "0.497 ± 0.288, " * 20], ["model", "242 weights"]]
    answers = {
        "look": {"verdict": "failed", "why": "because " * 40, "lines": lines},
        "rates": {"verdict": "open", "why": "", "losses": [2.0] * 90, "rates": [1e-7 * 1.2**at for at in range(90)], "configured": 1e-4},
    }  # fmt: skip
    shown = render(Report(notes=("look: input is not shown: KeyError: 'x'",)), answers, width=80)
    assert max(map(len, shown.splitlines())) <= 80
    assert "    model" in shown
    assert "KeyError: 'x'" in shown
    assert "▲ falls fastest, | configured" in shown


# --------------------------------------------------------------------------- questions put to the model

SEQUENCES = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
X, Y = torch.randn(256, 20, 6), torch.randint(0, 2, (256,))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = {layer}, nn.Linear(16, 2)
    def forward(self, x):
        return self.head({state})
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(40):
    at = torch.randint(0, 256, (32,))
    opt.zero_grad()
    F.cross_entropy(net(X[at]), Y[at]).backward()
    opt.step()
"""
LANGUAGE = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
text = torch.randint(0, 27, (3000,))
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(27, 16), nn.Linear(16, 48), nn.Linear(16, 27)
    def forward(self, ids, targets=None):
        q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
        seen = F.scaled_dot_product_attention(q, k, v{mask})
        scores = self.head(seen)
        return scores, F.cross_entropy(scores.flatten(0, 1), targets.flatten())
net = Decoder()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(40):
    at = torch.randint(0, 2900, (16,)).tolist()
    ids = torch.stack([text[i:i + 24] for i in at])
    loss = net(ids, {labels})[1]
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
NEXT = "torch.stack([text[i + 1:i + 25] for i in at])"
PADDED = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
texts = [torch.randint(1, 40, (int(n),)) for n in torch.randint(4, 25, (300,))]
Y = torch.tensor([int((t < 20).float().mean() > 0.5) for t in texts])
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.conv = nn.Embedding(40, 16, padding_idx=0), nn.Conv1d(16, 16, 3)
        self.rnn, self.head = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 2)
    def forward(self, ids):
        e, real = self.embed(ids), (ids != 0)
        return self.head({state})
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(40):
    at = torch.randint(0, 300, (32,))
    ids = nn.utils.rnn.pad_sequence([texts[i] for i in at], batch_first=True)
    opt.zero_grad()
    F.cross_entropy(net(ids), Y[at]).backward()
    opt.step()
"""
PACKED = "self.rnn(nn.utils.rnn.pack_padded_sequence(e, real.sum(1), batch_first=True, enforce_sorted=False))[1][-1]"
PICTURES = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
image, question = torch.randn(300, 3, 8, 8), torch.randint(0, 20, (300, 6))
answer = (image.mean((1, 2, 3)) > 0).long() + 2 * (question[:, 0] > 9).long()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.read, self.head, self.gate = nn.EmbeddingBag(20, 8), nn.Linear(8, 4), nn.Parameter(torch.zeros(1))
    def forward(self, image, question):
        seen, read = self.see(image), self.read(question)
        return self.head({mixed})
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(40):
    at = torch.randint(0, 300, (32,))
    opt.zero_grad()
    F.cross_entropy(net(image[at], question[at]), answer[at]).backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("source", "code", "line", "cause"),
    [
        (
            SEQUENCES.format(layer="nn.LSTM(6, 16)", state="self.rnn(x)[0][:, -1]"),
            "D12",
            "self.rnn(x)",
            "rnn (LSTM) takes the first dimension",
        ),
        (
            SEQUENCES.format(layer="nn.GRU(6, 16)", state="self.rnn(x.view(20, len(x), 6))[0][-1]"),
            "D12",
            "F.cross_entropy(net",
            "Net itself is the first to mix samples",
        ),
        (LANGUAGE.format(mask="", labels=NEXT), "L13", "net(ids,", "Decoder itself is the first to mix later"),
        (PADDED.format(state="e.mean(1)"), "L14", "F.cross_entropy(net", "Net itself is the first to mix padding"),
        (PADDED.format(state="self.rnn(e)[0][:, -1]"), "L14", "self.rnn(e)", "rnn (GRU) is the first to mix padding"),
        (PICTURES.format(mixed="read"), "X5", "net(image[at]", "image (32 × 3 × 8 × 8) reaches the output nowhere"),
    ],
    ids=["samples as time", "view", "no mask", "mean", "last state", "image"],
)
def test_what_the_model_must_not_do(tmp_path, source, code, line, cause):
    script = tmp_path / "train.py"
    script.write_text(source, encoding="utf-8")
    words = [sys.executable, "-m", "flatline", "preflight", "--format", "json", "--stages", "probe", str(script)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["code"] == code
    assert finding["cause"].startswith(cause)
    assert line in source.splitlines()[finding["where"]["line"] - 1]


@pytest.mark.parametrize(
    "source",
    [
        SEQUENCES.format(layer="nn.LSTM(6, 16, batch_first=True)", state="self.rnn(x)[0][:, -1]"),
        SEQUENCES.format(layer="nn.LSTM(6, 16)", state="self.rnn(x.transpose(0, 1))[0][-1]"),
        SEQUENCES.format(layer="nn.Linear(6, 16)", state="torch.softmax(x[:, 0] @ x[:, 0].T, 1) @ self.rnn(x[:, 0])"),
        LANGUAGE.format(mask=", is_causal=True", labels=NEXT),
        LANGUAGE.format(mask="", labels="ids.roll(7, 1)"),
        PADDED.format(state="(e * real.unsqueeze(2)).sum(1) / real.sum(1, keepdim=True)"),
        PADDED.format(state="self.conv(e.mT).relu().amax(2)"),
        PADDED.format(state=PACKED),
        PICTURES.format(mixed="read + self.gate.tanh() * seen"),
    ],
    ids=["batch first", "transposed", "set", "mask", "both sides", "masked mean", "maximum", "packed", "gate"],
)
def test_what_a_model_may_do(tmp_path, source):
    stages, found = preflight(tmp_path, source, "--stages", "probe")
    assert stages["probe"]["verdict"] in ("passed", "open"), stages
    assert found == []


def test_a_sweep_fits_into_the_steps_that_a_script_takes(tmp_path):
    short = BY_HAND.format(draw="torch.randint(0, 256, (32,))").replace("range(600)", "range(60)")
    stages, _ = preflight(tmp_path, HEAD + short, "--stages", "rates")
    assert stages["rates"]["verdict"] == "passed", stages["rates"]["why"]
    assert len(stages["rates"]["rates"]) <= 60
    assert stages["rates"]["rates"][-1] > 0.1


def test_a_page_of_its_own(tmp_path):
    (tmp_path / "train.py").write_text(HEAD + LOADER.format(rate=1e-3), encoding="utf-8")
    words = [sys.executable, "-m", "flatline", "preflight", "--stages", "look,probe", "--format", "html"]
    done = subprocess.run(
        [*words, "--output", "page.html", "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )  # fmt: skip
    assert done.returncode == 0
    made = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Ready for the long run" in made
    assert made.count('<section class="stage') == 2


UNUSED = """
import torch
from torch import nn
torch.manual_seed(0)
X, Y = torch.randn(256, 6), torch.randn(256, 1)
net, mse = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)), nn.MSELoss()
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(40):
    out = net(X)
    loss = mse({used} + 0 * Y, Y) + 1e-4 * sum(p.square().sum() for p in net.parameters())
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(("used", "codes"), [("Y.mean()", ["O3"]), ("out", [])])
def test_a_loss_that_the_output_does_not_reach(tmp_path, used, codes):
    _, found = preflight(tmp_path, UNUSED.format(used=used), "--stages", "probe")
    assert found == codes


def test_a_rate_far_inside_what_diverges_explains_the_nan(tmp_path):
    wild = HEAD.replace("nn.ReLU(), ", "") + BY_HAND.replace("Adam", "SGD").format(draw="torch.randint(0, 256, (32,))")
    wild = wild.replace("lr=3e-3", "lr=300.0").replace(
        "F.cross_entropy(net(X[at]), Y[at])", "net(X[at]).square().mean()"
    )
    stages, found = preflight(tmp_path, wild, "--stages", "look,rates")
    assert stages["rates"]["verdict"] == "failed"
    assert found == ["O28"]


def test_labels_that_are_not_shifted_under_a_mask(tmp_path):
    _, found = preflight(tmp_path, LANGUAGE.format(mask=", is_causal=True", labels="ids"), "--stages", "probe")
    assert found == ["L11"]


@pytest.mark.parametrize(("rate", "verdict"), [(1e-2, "passed"), (1e-9, "failed")])
def test_smoothed_labels_have_a_floor(tmp_path, rate, verdict):
    smoothed = HEAD + LOADER.format(rate=rate).replace(
        "F.cross_entropy(net(x), y)", "F.cross_entropy(net(x), y, label_smoothing=0.1)"
    )
    stages, found = preflight(tmp_path, smoothed, "--stages", "memorise")
    assert stages["memorise"]["verdict"] == verdict, stages["memorise"]["why"]
    assert "its targets cost 0.2" in stages["memorise"]["why"]
    assert found == (["O1"] if verdict == "failed" else [])
