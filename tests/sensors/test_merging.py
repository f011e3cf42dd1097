"""A state dict that is filled, and loaded by nobody."""

from __future__ import annotations

import pytest

from flatline.sensors.merging import filled_for_nothing

OWN = "own = net.state_dict()\n"
FIT = "fit = {k: v for k, v in ckpt.items() if k in own and v.shape == own[k].shape}\n"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('own = net.state_dict()\nown.update(ckpt["model"])\ntrain(net)\n', 2),
        ("own = self.net.state_dict()\nstate = ckpt['model']\nprint(len(own))\nown.update(state)\n", 4),
        (OWN + FIT + "own.update(fit)\nprint(len(fit), 'of', len(own))\n", 3),
        (OWN + "own.update({k: v for k, v in ckpt.items() if k in own.keys()})\n", 2),
        (OWN + "for k, v in ckpt.items():\n    if k in own:\n        own[k] = v\n", 4),
        (OWN + "for k, v in own.items():\n    if ckpt[k].size() == v.size():\n        own[k] = ckpt[k]\n", 4),
        (OWN + FIT + "merged = {**own, **fit}\n", 3),
        (OWN + "merged = dict(own)\nmerged |= ckpt\n", 3),
        (OWN + "merged = copy.deepcopy(own)\nmerged['head.weight'] = ckpt['fc.weight']\n", 3),
        ("new = {k: ckpt.get(k, v) for k, v in net.state_dict().items()}\n", 1),
        ("new = {**net.state_dict(), **ckpt}\ntrain(net)\n", 1),
        ("own = copy.deepcopy(net.state_dict())\nown.update(ckpt)\n", 2),
        (OWN + "own.update(ckpt)\ndef other(own):\n    return own\n", 2),
        (OWN + "own.update(ckpt)\nnet.eval()\nprint(vars(args))\n", 2),
        ("own: dict[str, Tensor] = net.state_dict()\nown.update(ckpt)\n", 2),
        ("net.state_dict().update(ckpt)\n", 1),
        ("net.state_dict()['head.weight'] = ckpt['fc.weight']\n", 1),
        (OWN + "own.update(ckpt)\nfor x in data:\n    loss(net(x)).backward()\n    mean.mul_(0.9)\n", 2),
        (OWN + "own.update(ckpt)\nnet.load_state_dict(own)\n", None),
        (OWN + "own.update(ckpt)\nreturned = merge(own)\n", None),
        (OWN + "own.update(ckpt)\nself.weights = own\n", None),
        (OWN + "own.update(ckpt)\ndef late():\n    return own\n", None),
        (OWN + "own.update(ckpt)\nfor n, p in net.named_parameters():\n    p.data = own[n]\n", None),
        (OWN + "own.update(ckpt)\nprint(max(v.norm() for v in own.values()))\n", None),
        (OWN + "merged = {**own, **ckpt}\nnet.load_state_dict(merged)\n", None),
        (OWN + "merged = {**own, **ckpt}\nother.load_state_dict({k: merged[k] for k in own})\n", None),
        (OWN + "for k in own:\n    own[k].copy_(ckpt[k])\n", None),
        (OWN + "for k, v in own.items():\n    v.copy_(ckpt[k])\n    own[k] = v\n", None),
        (OWN + "own.update(ckpt)\nexec(code, locals())\n", None),
        (OWN + "own.update(ckpt)\nfor n, p in net.named_parameters():\n    p.data.copy_(ckpt[n])\n", None),
        (OWN + "own.update(ckpt)\nkept = vars()\n", None),
        ("net.state_dict()['head.weight'][:] = ckpt['fc.weight']\n", None),
        ("net.state_dict()['head.weight'].copy_(ckpt['fc.weight'])\n", None),
        ("table = {}\ntable.update(net.state_dict())\n", None),
        (OWN + "print(len(own))\n", None),
        ("best = {k: v.detach().clone() for k, v in net.state_dict().items()}\n", None),
        ("best = {k: torch.clone(v) for k, v in net.state_dict().items()}\n", None),
        ("new = {k: ckpt[k] if k in ckpt else v for k, v in net.state_dict().items()}\n", 1),
        ("own = dict(net.named_parameters())\nown.update(ckpt)\n", None),
        ("torch.save(net.state_dict(), path)\n", None),
        ("own = net.state_dict(\n", None),
    ],
)
def test_filled_for_nothing(tmp_path, source, line):
    file = tmp_path / "train.py"
    file.write_text(source, encoding="utf-8")
    assert filled_for_nothing(str(file), 1) == line


def test_each_function_for_itself(tmp_path):
    file = tmp_path / "train.py"
    body = "def {}(net):\n    ckpt = torch.load('a.pt')\n    own = net.state_dict()\n    own.update(ckpt)\n"
    file.write_text(f"{body.format('one')}{body.format('two')}    net.load_state_dict(own)\n", encoding="utf-8")
    assert filled_for_nothing(str(file), 3) == 4
    assert filled_for_nothing(str(file), 7) is None


def test_no_file():
    assert filled_for_nothing("/nowhere.py", 1) is None
