"""An unfreezing by names that no parameter has."""

from __future__ import annotations

import sys
import types

import pytest
from torch import nn

from flatline.sensors.unmatched import Spellings, unmatched_unfreezing

LOOP = "for name, p in net.named_parameters():\n"
TRAINING = "for epoch in range(9):\n    thaw(net)\n"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)


def found(tmp_path, source):
    file, spellings = tmp_path / "train.py", Spellings()
    file.write_text(source)
    spellings.update([Net()])
    return unmatched_unfreezing(str(file), spellings.names)


def thawing(test, *, head="def thaw(net):\n", body="p.requires_grad = True"):
    return f"{head}    {LOOP}        if {test}:\n            {body}\n{TRAINING}"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (thawing("name.startswith('backbone.')"), ("backbone.",)),
        (thawing("'layer4' in name", body="p.requires_grad_()"), ("layer4",)),
        (thawing("any(k in name for k in ('layer3', 'layer4'))"), ("layer3", "layer4")),
        (thawing("name.startswith(('a.', 'b.')) or 'c.' in name"), ("a.", "b.", "c.")),
        (thawing("name.startswith(prefix)", head="def thaw(net, prefix='backbone.'):\n"), ("backbone.",)),
        (thawing("prefix in name", head="def thaw(net, prefix):\n").replace("thaw(net)\n", "thaw(net, 'trunk')\n"), ("trunk",)),
        (thawing("name.startswith(f'stem.layer.{i}.')", head="def thaw(net, i=0):\n"), ("stem.layer.{}.",)),
        (thawing("name.startswith(prefix)", head="def thaw(net, i=0):\n    prefix = f'trunk.{i}.'\n"), ("trunk.{}.",)),
        (thawing("'layer.%d.' % i in name", head="def thaw(net, i=0):\n"), ("layer.{}.",)),
        (thawing("name.startswith('net.' + str(i))", head="def thaw(net, i=0):\n"), ("net.{}",)),
        (thawing("name.startswith('net.{}.'.format(i))", head="def thaw(net, i=0):\n"), ("net.{}.",)),
        (thawing("any(k in name for k in keys)", head="def thaw(net):\n    keys = [f'block{i}' for i in (1, 2)]\n"), ("block{}",)),
        (f"for epoch in range(9):\n    {LOOP}        if 'trunk' in name:\n            p.requires_grad = True\n", ("trunk",)),
    ],
)  # fmt: skip
def test_no_name_is_such(tmp_path, source, words):
    unmatched = found(tmp_path, source)
    assert unmatched is not None
    assert unmatched.words == words
    assert "requires_grad" in source.splitlines()[unmatched.line - 1]


@pytest.mark.parametrize(
    "source",
    [
        thawing("name.startswith('stem.')"),
        thawing("name.startswith('0.')"),  # as net.stem tells them
        thawing("'trunk' in name or 'head' in name"),
        thawing("name.startswith(prefix)"),
        thawing("'trunk' not in name"),
        thawing("name.startswith(f'stem.{i}.')", head="def thaw(net, i=7):\n"),
        thawing("name.startswith(f'{part}.')", head="def thaw(net, part='x'):\n"),
        thawing("prefix in name", head="def thaw(net, i=0):\n    prefix = 'trunk'\n    prefix = f'stem.{i}'\n"),
        thawing("k in name", head="def thaw(net):\n  for k in config.parts:\n").replace("thaw(net)", "thaw(0)", 1),
        thawing("p.dim() > 1"),
        thawing("'trunk' in name", body="p.requires_grad = False"),
        thawing("'trunk' in name") + "        else:\n            p.requires_grad = True\n",
        thawing("'trunk' in name").replace(TRAINING, "thaw(net)\n"),
        thawing("prefix in name", head="def thaw(net, prefix='x'):\n").replace("thaw(net)\n", "thaw(net, config.part)\n"),
        "def broken(:\n",
    ],
)  # fmt: skip
def test_a_name_is_or_may_be(tmp_path, source):
    if "else" in source:
        source = source.replace(TRAINING, "", 1) + TRAINING
    assert found(tmp_path, source) is None


SETTINGS = "class CFG:\n    release = ['layer3', 'layer4']\n"


class Whole(nn.Module):
    """Its names begin with backbone, and those of its part do not."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.ModuleDict({"layer4": nn.Linear(4, 4)})
        self.head = nn.Linear(4, 2)


def asked(tmp_path, monkeypatch, source, **variables):
    """With the variables that the script has when it is over."""
    file, spellings, script = tmp_path / "train.py", Spellings(), types.ModuleType("__main__")
    file.write_text(source)
    script.__dict__.update(variables, __file__=str(file))
    script.CFG = type("CFG", (), {"release": ["layer3", "layer4"], "__module__": "__main__"})
    monkeypatch.setitem(sys.modules, "__main__", script)
    spellings.update([Whole()])
    return unmatched_unfreezing(str(file), spellings.names)


def released(names="CFG.release"):
    head = f"{SETTINGS}def thaw(model, names):\n    for name, p in model.named_parameters():\n"
    test = "        if any(name.startswith(k) for k in names):\n            p.requires_grad_(True)\n"
    return head + test + f"for epoch in range(9):\n    thaw(net, {names})\n"


def test_names_of_a_part_asked_of_the_whole(tmp_path, monkeypatch):
    """The words stand in a class of settings."""
    unmatched = asked(tmp_path, monkeypatch, released(), net=Whole())
    assert unmatched is not None
    assert unmatched.words == ("layer3", "layer4")


def test_near_miss_names_of_a_part_asked_of_it(tmp_path, monkeypatch):
    assert asked(tmp_path, monkeypatch, released(), net=Whole().backbone) is None


def test_near_miss_a_model_that_is_not_known(tmp_path, monkeypatch):
    """Some part of some model has such a name."""
    assert asked(tmp_path, monkeypatch, released()) is None
