"""An unfreezing that goes over an iterator that was used up."""

from __future__ import annotations

import pytest

from flatline.sensors.exhausted import exhausted_unfreezing

FREEZE = "for p in body:\n    p.requires_grad_(False)\n"
THAW = "for epoch in range(9):\n    if epoch == 3:\n        for p in body:\n            p.requires_grad = True\n"
METHODS = """
class Job:
    def __init__(self, net):
        self.body = {made}
        for p in self.body:
            p.requires_grad = False

    def thaw(self):
        for p in self.body:
            p.requires_grad = True
"""
HELPER = "def switch(params, on):\n    for p in params:\n        p.requires_grad = on\n"
WITHIN = "def thaw():\n    for p in body:\n        p.requires_grad = True\n"


def found(tmp_path, source):
    file = tmp_path / "train.py"
    file.write_text(source)
    return exhausted_unfreezing(str(file))


def made(value, then=FREEZE + THAW):
    return f"body = {value}\n{then}"


def within(source):
    return "def main(net):\n" + "".join(f"    {line}\n" for line in source.splitlines())


@pytest.mark.parametrize(
    "source",
    [
        made("net.body.parameters()"),
        within(made("net.body.parameters()")),
        made("filter(lambda p: p.dim() > 1, net.parameters())"),
        made("(p for n, p in net.named_parameters() if 'head' not in n)"),
        made("itertools.chain(net.a.parameters(), net.b.parameters())"),
        made("net.body.parameters()", "count = sum(p.numel() for p in body)\n" + THAW),
        made("net.named_parameters()", f"print(len(list(body)))\n{THAW.replace('for p in', 'for n, p in')}"),
        made("net.parameters()", f"{HELPER}switch(body, False)\nfor e in range(9):\n    switch(body, True)\n"),
        made("net.modules()", f"{FREEZE}print('frozen')\n{WITHIN}"),
        METHODS.format(made="net.parameters()"),
    ],
)
def test_nothing_is_left(tmp_path, source):
    exhausted = found(tmp_path, source)
    assert exhausted is not None
    assert "body" in exhausted.name
    assert exhausted.used_up < exhausted.line or "def thaw" in source
    assert "body" in source.splitlines()[exhausted.line - 1]


@pytest.mark.parametrize(
    "source",
    [
        made("list(net.body.parameters())"),
        made("[p for p in net.parameters() if p.dim() > 1]"),
        made("net.body.parameters()", THAW),
        made("net.body.parameters()", f"{FREEZE}body = net.body.parameters()\n{THAW}"),
        made(
            "net.body.parameters()",
            f"{FREEZE}for body in (net.a.parameters(), net.b.parameters()):\n    {FREEZE}{THAW}",
        ),
        made("net.body.parameters()", f"if frozen:\n    {FREEZE.replace('    ', '        ')}{THAW}"),  # not in any case
        made("net.parameters()", f"{FREEZE}    break\n{THAW}"),  # the rest of them
        made("net.parameters()", f"{FREEZE}{FREEZE.replace('False', 'epoch < 3')}"),
        made("net.parameters()", f"optimizer = torch.optim.SGD(net.parameters(), 0.1)\n{THAW}"),
        made("net.parameters()", f"first = next(body)\n{THAW}"),
        made("net.parameters()", f"{FREEZE}{THAW.replace('in body', 'in net.parameters()')}"),
        "class Net:\n    def parameters(self):\n        return []\n" + made("net.parameters()"),
        made("net.parameters()", f"{FREEZE}def thaw(body):\n    for p in body:\n        p.requires_grad = True\n"),
        METHODS.format(made="list(net.parameters())"),
        METHODS.format(made="net.parameters()") + "    def again(self, net):\n        self.body = net.parameters()\n",
        "def freeze(net):\n    " + made("net.parameters()", FREEZE).replace("\n", "\n    ") + "\n" + WITHIN,
        "def broken(:\n",
    ],
)
def test_near_miss_something_may_be_left(tmp_path, source):
    assert found(tmp_path, source) is None
