"""A checkpoint that is put into a dictionary, and no further."""

from __future__ import annotations

import pytest

from flatline.sensors.merging import merged_only

READ = 'import torch\nckpt = torch.load("a.pt")\n'


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('weights = net.state_dict()\nweights.update(ckpt["model"])\ntrain(net)\n', 4),
        ("own = self.net.state_dict()\nstate = ckpt['model']\nprint(len(own))\nown.update(state)\n", 6),
        ("own = net.state_dict()\nown.update({k: v for k, v in ckpt.items() if k in own.keys()})\n", 4),
        ("own = net.state_dict()\nown.update(ckpt)\nnet.load_state_dict(own)\n", None),
        ("own = net.state_dict()\nown.update(ckpt)\nreturned = merge(own)\n", None),
        ("own = net.state_dict()\nown.update(ckpt)\ndef late():\n    return own\n", None),
        ("own = net.state_dict()\nown.update(other)\n", None),
        ("own = dict(net.named_parameters())\nown.update(ckpt)\n", None),
        ("own = net.state_dict()\nfor k in own:\n    own[k].copy_(ckpt[k])\n", None),
        ("net.load_state_dict(ckpt)\n", None),
        ("own = net.state_dict(\n", None),
    ],
)
def test_merged_only(tmp_path, source, line):
    file = tmp_path / "train.py"
    file.write_text(READ + source, encoding="utf-8")
    assert merged_only(str(file), 2) == line


def test_each_function_for_itself(tmp_path):
    file = tmp_path / "train.py"
    body = "def {}(net):\n    ckpt = torch.load('a.pt')\n    own = net.state_dict()\n    own.update(ckpt)\n"
    file.write_text(f"{body.format('one')}{body.format('two')}    net.load_state_dict(own)\n", encoding="utf-8")
    assert merged_only(str(file), 2) == 4
    assert merged_only(str(file), 6) is None


def test_no_file():
    assert merged_only("/nowhere.py", 1) is None
