"""The command ``flatline lint``."""

from __future__ import annotations

import io
import json
import sys
from xml.etree import ElementTree

import pytest

from flatline.cli import main

SICK = """import torch
import torch.nn.functional as F
probs = F.softmax(net(x), dim=1)
loss = F.cross_entropy(probs, y)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lint(capsys, *arguments):
    status = main(["lint", *map(str, arguments)])
    return status, capsys.readouterr()


def test_a_finding_shows_its_line(here, capsys):
    (here / "train.py").write_text(SICK)
    status, said = lint(capsys)
    assert status == 1
    assert "O12 double-softmax · error · train.py:4" in said.out
    assert "▸ 4 │ loss = F.cross_entropy(probs, y)" in said.out


def test_lines_are_shown_as_they_are_now(here, capsys):
    (here / "train.py").write_text(SICK)
    lint(capsys)
    (here / "train.py").write_text("# the first line\n" + SICK.replace("probs", "q"))
    assert "▸ 5 │ loss = F.cross_entropy(q, y)" in lint(capsys)[1].out


def test_clean(here, capsys):
    (here / "train.py").write_text("import torch\n")
    status, said = lint(capsys, "train.py")
    assert status == 0
    assert "0 findings" in said.out


def test_nothing_is_written(here, capsys):
    (here / "train.py").write_text(SICK)
    lint(capsys)
    assert [path.name for path in here.iterdir()] == ["train.py"]
    assert (here / "train.py").read_text() == SICK


@pytest.mark.parametrize("form", ["json", "sarif", "github", "junit"])
def test_formats(here, capsys, form):
    (here / "train.py").write_text(SICK)
    status, said = lint(capsys, "--format", form)
    assert status == 1
    assert "O12" in said.out
    if form == "junit":
        assert ElementTree.fromstring(said.out).find(".//failure").get("type") == "error"
    elif form != "github":
        json.loads(said.out)


def test_output(here, capsys):
    (here / "train.py").write_text(SICK)
    assert lint(capsys, "--format", "json", "--output", "out.json")[0] == 1
    assert json.loads((here / "out.json").read_text())["findings"][0]["where"] == {"file": "train.py", "line": 4}


def test_standard_input(here, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SICK.encode())))
    status, said = lint(capsys, "-")
    assert status == 1
    assert "<stdin>:4" in said.out


def test_broken_standard_input(here, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"import torch\ndef f(:")))
    status, said = lint(capsys, "-")
    assert (status, said.err.count("\n")) == (2, 1)
    assert "<stdin>:2" in said.err


@pytest.mark.parametrize(("comment", "status"), [("ignore[O12]", 0), ("ignore", 0), ("ignore[O4]", 1)])
def test_comment(here, capsys, comment, status):
    (here / "train.py").write_text(SICK.rstrip() + f"  # flatline: {comment}\n")
    assert lint(capsys)[0] == status


@pytest.mark.parametrize(
    ("comment", "told"), [("ignore[O12]", ""), ("ignore[double-softmax, O4]", "ignore[O4]"), ("ignore", ""), ("O4", "")]
)
def test_unused_comment(here, capsys, comment, told):
    (here / "train.py").write_text(SICK.rstrip() + f"  # flatline: {comment}\n")
    status, said = lint(capsys, "--unused-ignores")
    assert status == int(bool(told) or comment == "O4")
    assert (f"train.py:4: {told} silences nothing" in said.out) == bool(told)
    assert "silences nothing" not in lint(capsys)[1].out


def test_confidence_and_repair(here, capsys):
    (here / "train.py").write_text(SICK.replace("F.softmax", "F.log_softmax") + "opt.step\n")
    shown = json.loads(lint(capsys, "--format", "json", "--hints")[1].out)["findings"]
    evidence = {finding["code"]: finding["evidence"] for finding in shown}
    assert evidence["O4"]["confidence"] == "high"
    assert evidence["O4"]["repair"] == "--fix"
    assert evidence["O12"]["confidence"] == "low"
    assert evidence["O12"]["confirm"] == "flatline run --select O12 train.py"


@pytest.mark.parametrize(
    ("options", "status"), [(["--select", "G"], 0), (["--ignore", "O12"], 0), (["--select", "O12"], 1)]
)
def test_choice_of_rules(here, capsys, options, status):
    (here / "train.py").write_text(SICK)
    assert lint(capsys, *options)[0] == status


@pytest.mark.parametrize(
    ("table", "status"), [('"old/*" = ["O12"]', 0), ('"old/*" = ["ALL"]', 0), ('"new/*" = ["O12"]', 1)]
)
def test_per_file_ignores(here, capsys, table, status):
    (here / "old").mkdir()
    (here / "old" / "train.py").write_text(SICK)
    (here / "pyproject.toml").write_text(f"[tool.flatline.per-file-ignores]\n{table}\n")
    assert lint(capsys)[0] == status


def test_tests_are_left_out_unless_they_are_named(here, capsys):
    (here / "tests").mkdir()
    (here / "tests" / "sick.py").write_text(SICK)
    assert lint(capsys)[0] == 0
    assert lint(capsys, "tests/sick.py")[0] == 1


def test_broken_files_are_named_and_the_rest_goes_on(here, capsys):
    (here / "broken.py").write_text("import torch\ndef f(:\n")
    (here / "old.py").write_text("import torch\nprint 'x'\n")
    (here / "train.py").write_text(SICK)
    status, said = lint(capsys)
    assert status == 1
    assert "broken.py:2: cannot be parsed" in said.out
    assert "old.py:2: cannot be parsed" in said.out
    assert "O12" in said.out


def test_nothing_to_read(here, capsys):
    status, said = lint(capsys, "gone.py")
    assert (status, said.err.count("\n")) == (2, 1)


def test_a_function_of_two_files_is_told_once(here, capsys):
    (here / "step.py").write_text(SICK.replace("probs", "def go(net, x, y):\n  probs", 1).replace("\nloss", "\n  loss"))
    for name in ("a.py", "b.py"):
        (here / name).write_text("import torch\nfrom step import go\nfor x, y in data:\n    go(net, x, y).backward()\n")
    assert lint(capsys)[1].out.count("O12 double") == 1


def test_notebook(here, capsys):
    cells = [{"cell_type": "code", "source": "%time\nimport torch"}, {"cell_type": "code", "source": SICK}]
    (here / "n.ipynb").write_text(json.dumps({"cells": cells}))
    status, said = lint(capsys)
    assert status == 1
    assert "n.ipynb:cell 2:4" in said.out
    assert "▸ 4 │ loss" in said.out


# --------------------------------------------------------------------------- fixes

FIXABLE = """import torch
from torch.optim.lr_scheduler import StepLR
opt = torch.optim.SGD(net.parameters(), 0.1)
sched = StepLR(opt, 3)
torch.autograd.set_detect_anomaly(True)  # ä
def run():
    total = 0.0
    for x, y in data:
        opt.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        opt.step;  s = "ä"; sched.step()
        total += loss  # kept
    print(sched.get_lr())
"""
FIXED = (
    FIXABLE.replace("anomaly(True)", "anomaly(False)")
    .replace("opt.step;", "opt.step();")
    .replace("+= loss", "+= loss.detach()")
    .replace("get_lr", "get_last_lr")
)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_fixes(here, capsys, end, mark):
    (here / "train.py").write_bytes(mark + FIXABLE.replace("\n", end).encode())
    status, said = lint(capsys, "--diff")
    assert status == 1
    assert "+    print(sched.get_last_lr())" in said.out
    assert (here / "train.py").read_bytes() == mark + FIXABLE.replace("\n", end).encode()
    status, said = lint(capsys, "--fix")
    assert status == 0
    assert "fixed: train.py" in said.out
    assert (here / "train.py").read_bytes() == mark + FIXED.replace("\n", end).encode()
    assert lint(capsys, "--diff")[0] == 0


def test_what_is_silenced_or_not_utf_8_is_not_fixed(here, capsys):
    code = FIXABLE.replace("  # kept", "  # flatline: ignore[M1]").replace("opt.step;", "opt.step();")
    code = code.replace("anomaly(True)", "anomaly(False)").replace("get_lr", "get_last_lr")
    (here / "train.py").write_text(code)
    (here / "other.py").write_bytes(b"# coding: latin-1\n" + FIXABLE.encode("latin-1"))
    before = [(here / name).read_bytes() for name in ("train.py", "other.py")]
    assert lint(capsys, "--fix")[0] == 1
    assert [(here / name).read_bytes() for name in ("train.py", "other.py")] == before


# --------------------------------------------------------------------------- fixes that change what is computed

HEALTHY = """import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 8)])
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.hidden:
            x = layer(x).relu()
        return self.head(self.drop(x))

def evaluate(model):
    right = 0
    model.eval()
    with torch.no_grad():
        for x, y in batches[:2]:
            right += (model(x).argmax(1) == y).sum().item()
    model.train()
    return right

torch.manual_seed(0)
batches = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(4)]
criterion = nn.CrossEntropyLoss()
net = Net()
net.head = nn.Linear(8, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(opt, 2)
for epoch in range(3):
    for x, y in batches:
        opt.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        opt.step()
    scheduler.step()
    evaluate(net)
"""
CLIP = "        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)\n"
BUILT = "opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)\nscheduler = torch.optim.lr_scheduler.StepLR(opt, 2)\n"
ZERO, STEP, BACK = "        opt.zero_grad()\n", "        opt.step()\n", "        loss.backward()\n"
TURN, LOOP = "    scheduler.step()\n", "    for x, y in batches:\n"
UNSCHEDULED = [(TURN, ""), (BUILT, BUILT.splitlines(keepends=True)[0])]
PLANTED = {
    "O4 never zeroed": (ZERO, ""),
    "O4 zeroed outside of the loop": (LOOP + ZERO, "    opt.zero_grad()\n" + LOOP),
    "O4 zeroed before the step": [(ZERO, ""), (STEP, ZERO + STEP)],
    "O4 stepped before the backward": [(STEP, ""), (ZERO, ""), (BACK + CLIP, ZERO + STEP + BACK)],
    "O4 never stepped": [(STEP, ""), *UNSCHEDULED],
    "O4 not called": (STEP, "        opt.step\n"),
    "G5": [(CLIP, ""), (STEP, STEP + CLIP)],
    "G6": [(CLIP, ""), (BACK, CLIP + BACK)],
    "O8 before the optimizer": [(TURN, ""), (LOOP, TURN + LOOP)],
    "E1": [("    model.eval()\n", ""), ("    model.train()\n", "")],
    "E2": ("    model.train()\n", ""),
    "O2 rebound": [(BUILT, ""), ("net.head =", BUILT + "net.head =")],
    "O2 plain list": ("nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 8)])", "[nn.Linear(4, 8), nn.Linear(8, 8)]"),
}


def trained(code):
    torch = pytest.importorskip("torch")
    space = {}
    exec(compile(code, "train.py", "exec"), space)
    return torch.nn.utils.parameters_to_vector(space["net"].parameters()).tolist()


def changed(code, changes):
    for old, new in [changes] if isinstance(changes, tuple) else changes:
        assert old in code
        code = code.replace(old, new, 1)
    return code


def without_clip(name):
    return HEALTHY.replace(CLIP, "") if name == "O4 stepped before the backward" else HEALTHY


@pytest.mark.parametrize("name", PLANTED)
def test_a_repaired_script_trains_like_its_healthy_twin(here, capsys, name):
    sick, file = changed(HEALTHY, PLANTED[name]), here / "train.py"
    file.write_text(sick)
    assert name[:2] in lint(capsys)[1].out
    lint(capsys, "--diff", "--unsafe-fixes")
    assert file.read_text() == sick
    status, said = lint(capsys, "--fix", "--unsafe-fixes")
    assert status == 0, said.out
    repaired = file.read_text()
    lint(capsys, "--fix", "--unsafe-fixes")
    assert file.read_text() == repaired
    assert trained(repaired) == trained(
        changed(HEALTHY, UNSCHEDULED) if name == "O4 never stepped" else without_clip(name)
    )


def repaired(here, capsys, code):
    (here / "train.py").write_text(code)
    lint(capsys, "--fix", "--unsafe-fixes")
    return (here / "train.py").read_text()


SCALED = """import torch
opt = torch.optim.SGD(net.parameters(), 0.1)
scaler = torch.amp.GradScaler()
for x, y in data:
    opt.zero_grad()
    loss = criterion(net(x), y)
    scaler.scale(loss).backward()
    if clip:
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
"""
CLOSURE = """import torch
opt = torch.optim.LBFGS(net.parameters())
for x, y in data:
    def closure():
        loss = criterion(net(x), y)
        loss.backward()
        return loss
    opt.step(closure)
"""
ACCUMULATED = """import torch
opt = torch.optim.SGD(net.parameters(), 0.1)
for i, (x, y) in enumerate(data):
    loss = criterion(net(x), y) / 4
    loss.backward()
    if i % 4 == 3:
        opt.zero_grad()  # for the next ones
        opt.step()
"""
SUMMED = """import torch
opt = torch.optim.SGD(net.parameters(), 0.1)
for i, (x, y) in enumerate(data):
    loss = torch.nn.functional.cross_entropy(net(x), y)
    loss.backward()
    if (i + 1) % 4 == 0:
        opt.step()
        opt.zero_grad()
"""
FOLDER = """from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
loader = DataLoader(ImageFolder("train"), batch_size=8{})
for x, y in loader:
    criterion(net(x), y).backward()
    opt.step()
"""


RANKS = """from torch.utils.data import DataLoader, DistributedSampler
{}
for epoch in range(9):
    for x, y in loader:
        criterion(net(x), y).backward()
        opt.step()
"""
NAMED = RANKS.format("sampler = DistributedSampler(data)\nloader = DataLoader(data, 8, sampler=sampler)")
UNNAMED = RANKS.format("loader = DataLoader(data, 8, sampler=DistributedSampler(data))")
LOGGED = (
    "import torch\nlogp = torch.log(torch.softmax(net(x), dim=1))\ntorch.nn.functional.nll_loss(logp, y).backward()\n"
)
EVALUATED = """import torch
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
opt = torch.optim.SGD(net.parameters(), 0.1)
net.eval()
print(net(x))
for x, y in data:
    opt.zero_grad()
    criterion(net(x), y).backward()
    opt.step()
"""
PER_BATCH = """import torch
opt = torch.optim.SGD(net.parameters(), 0.1)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=epochs)
for epoch in range(epochs):
    for x, y in data:
        opt.zero_grad()
        criterion(net(x), y).backward()
        opt.step()
        sched.step()
    print(epoch)
"""


HELD_OUT = """import torch
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
opt = torch.optim.SGD(net.parameters(), 0.1)
def evaluate():
    net.eval()
    with torch.no_grad():
        return criterion(net(held), targets)
for epoch in range(3):
    for x, y in data:
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
    print(evaluate())
"""


@pytest.mark.parametrize(
    ("sick", "old", "new"),
    [
        (NAMED, "    for x", "    sampler.set_epoch(epoch)\n    for x"),
        (UNNAMED, "    for x", "    loader.sampler.set_epoch(epoch)\n    for x"),
        (NAMED.replace("(data)\n", "(data) if many else None\n"), "", ""),  # it would have to be asked for
        (LOGGED, "torch.log(torch.softmax(net(x), dim=1))", "torch.log_softmax(net(x), dim=1)"),
        (EVALUATED, "for x", "net.train()\nfor x"),
        (SUMMED, "loss.backward()", "(loss / 4).backward()"),
        (HELD_OUT, "    for x", "    net.train()\n    for x"),
        (PER_BATCH, "        sched.step()\n", "    sched.step()\n"),
        (SCALED, "    if clip", "    scaler.unscale_(opt)\n    if clip"),
        (CLOSURE, "        loss = ", "        opt.zero_grad()\n        loss = "),
        (ACCUMULATED, "opt.zero_grad()  # for the next ones\n        opt.step()",
         "opt.step()\n        opt.zero_grad()  # for the next ones"),
        (FOLDER.format(""), "size=8", "size=8, shuffle=True"),
        (FOLDER.format(", shuffle=False"), "shuffle=False", "shuffle=True"),
    ],
)  # fmt: skip
def test_repairs(here, capsys, sick, old, new):
    assert repaired(here, capsys, sick) == sick.replace(old, new)


def test_repairs_keep_the_ends_of_lines(here, capsys):
    (here / "train.py").write_bytes(b"\xef\xbb\xbf" + SCALED.replace("\n", "\r\n").encode())
    lint(capsys, "--fix", "--unsafe-fixes")
    new = SCALED.replace("    if clip", "    scaler.unscale_(opt)\n    if clip")
    assert (here / "train.py").read_bytes() == b"\xef\xbb\xbf" + new.replace("\n", "\r\n").encode()


@pytest.mark.parametrize(
    "code",
    [
        SCALED.replace("step(opt)", "step(build())"),  # it is not called twice
        SCALED.replace("    if clip:\n    ", "").replace("(loss).backward()\n    ", "(loss).backward(); "),
        SCALED.replace("    scaler.step(opt)", "    advance(opt)").replace("data:", "data:\n    # flatline: ignore"),
    ],
)
def test_what_cannot_be_repaired_stays(here, capsys, code):
    assert repaired(here, capsys, code) == code


def test_unsafe_fixes_are_not_for_fix_alone(here, capsys):
    (here / "train.py").write_text(SCALED)
    lint(capsys, "--fix")
    assert (here / "train.py").read_text() == SCALED
    assert lint(capsys, "--unsafe-fixes")[0] == 2


CELLS = ["%matplotlib inline\nimport torch\n", HEALTHY.replace(ZERO, ""), "!ls\nprint('größe')"]


def written(cells, **form):
    parts = [{"cell_type": "markdown", "source": ["# title"], "metadata": {}}]
    parts += [{"cell_type": "code", "metadata": {}, "outputs": [], "source": cell} for cell in cells]
    return json.dumps({"cells": parts, "metadata": {"n": 1.5}, "nbformat": 4}, **form)


@pytest.mark.parametrize("form", [{"indent": 1, "ensure_ascii": False}, {"indent": 2}, {}, {"separators": (",", ":")}])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_notebook_is_fixed_in_its_cells(here, capsys, form, split, end):
    file = here / "n.ipynb"
    sources = [cell.splitlines(keepends=True) if split else cell for cell in CELLS]
    file.write_bytes((written(sources, **form) + end).encode())
    before = file.read_bytes()
    status, said = lint(capsys, "--fix", "--unsafe-fixes")
    assert status == 0, said.out
    after = file.read_bytes().decode()
    cell = "".join(json.loads(after)["cells"][2]["source"])
    assert "opt.zero_grad()" in cell
    sources[1] = cell.splitlines(keepends=True) if split else cell
    assert after == written(sources, **form) + end
    assert before != file.read_bytes()
    lint(capsys, "--fix", "--unsafe-fixes")
    assert file.read_bytes().decode() == after


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t.replace('"n": 1.5', '"n":  1.5'),
        lambda t: t.replace("1.5", "1.50"),
        lambda t: "\ufeff" + t,
        lambda t: t + " ",
    ],
)
def test_a_notebook_that_cannot_be_written_back_is_left_alone(here, capsys, spoil):
    file = here / "n.ipynb"
    file.write_text(spoil(written(CELLS, indent=1)))
    before = file.read_bytes()
    status, said = lint(capsys, "--fix", "--unsafe-fixes")
    assert status == 1
    assert "byte for byte" in said.out
    assert file.read_bytes() == before
    assert "byte for byte" in lint(capsys, "--diff", "--unsafe-fixes")[1].err
