"""The plug-in of flake8."""

from __future__ import annotations

import ast

from flatline.flake8 import Plugin

SICK = """import torch
import torch.nn.functional as F
probs = F.softmax(net(x), dim=1)
loss = F.cross_entropy(probs, y)
"""


def found(name):
    return list(Plugin(ast.parse(SICK), str(name), SICK.splitlines(keepends=True)).run())


def test_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SICK)
    ((line, column, text, kind),) = found("./train.py")
    assert (line, column, kind) == (4, 0, Plugin)
    assert text.startswith("FLO12 ")


def test_standard_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [line for line, *_ in found("stdin")] == [4]
