"""The command ``flatline lint``."""

from __future__ import annotations

import io
import json
import sys

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


@pytest.mark.parametrize("form", ["json", "sarif", "github"])
def test_formats(here, capsys, form):
    (here / "train.py").write_text(SICK)
    status, said = lint(capsys, "--format", form)
    assert status == 1
    assert "O12" in said.out
    if form != "github":
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
