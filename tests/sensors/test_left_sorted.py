"""Forwards that sort the samples of their batch."""

from __future__ import annotations

import ast
import textwrap

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from watching import seen

from flatline.events import PairingProbed
from flatline.sensors.left_sorted import _taken, sorted_alone
from flatline.sensors.pairing import Probe

DRAW = torch.Generator().manual_seed(0)
LABELS = torch.arange(256) % 2
TEXTS = [
    torch.randint(2 + 20 * label, 22 + 20 * label, (int(torch.randint(4, 16, (), generator=DRAW)),), generator=DRAW)
    for label in LABELS.tolist()
]


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(50, 8), nn.GRU(8, 12, batch_first=True), nn.Linear(12, 2)

    def packed(self, x, lengths):
        return self.head(self.rnn(pack_padded_sequence(self.embed(x), lengths, batch_first=True))[1][-1])


class LeavesThem(Reader):
    def forward(self, x, lengths):
        lengths, order = lengths.sort(descending=True)
        return self.packed(x[order], lengths)


class PutsThemBack(Reader):
    def forward(self, x, lengths):
        lengths, order = lengths.sort(descending=True)
        return self.packed(x[order], lengths)[order.argsort()]


def probed(model, *, longest_first=False):
    def act():
        torch.manual_seed(0)
        net = model()
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        for _ in range(40):
            rows = torch.randperm(256)[:32].tolist()
            if longest_first:
                rows.sort(key=lambda row: -len(TEXTS[row]))
            x = pad_sequence([TEXTS[row] for row in rows], batch_first=True)
            x = torch.cat([x, x.new_zeros(32, 16 - x.shape[1])], 1)
            y = LABELS[rows] if not longest_first else torch.randint(0, 2, (32,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x, torch.tensor([len(TEXTS[row]) for row in rows])), y).backward()
            optimizer.step()

    return [event.left_sorted for event in seen(act, PairingProbed)]


def test_rows_that_are_sorted_and_never_put_back():
    assert "x[order]" in probed(LeavesThem)


def test_near_miss_rows_that_are_put_back_or_come_longest_first():
    assert not any(probed(PutsThemBack))
    assert not any(probed(LeavesThem, longest_first=True))


def taken(source):
    (function,) = ast.parse(textwrap.dedent(source)).body
    found = _taken(function)
    return ast.unparse(found) if found is not None else None


@pytest.mark.parametrize(
    ("source", "statement"),
    [
        ("def forward(self, x, n):\n    order = n.argsort(descending=True)\n    return self.rnn(x[order])", "x[order]"),
        (
            "def forward(self, x, n):\n    n, i = torch.sort(n, 0, True)\n    return self.rnn(x.index_select(0, i), n)",
            "x.index_select(0, i)",
        ),
        ("def forward(self, x, n):\n    order = n.argsort()\n    return self.rnn(x[order]), order", None),
        (
            "def forward(self, x, n):\n    order = n.argsort()\n    self.order = order\n    return self.rnn(x[order])",
            None,
        ),
        (
            "def forward(self, x, n):\n    order = n.argsort()\n    back = order.argsort()\n    return x[order][back]",
            None,
        ),
        (
            "def forward(self, x, n, y):\n    order = n.argsort()\n    return self.loss(self.rnn(x[order]), y[order])",
            None,
        ),
        ("def forward(self, x, edges):\n    order = edges.argsort()\n    return self.sum(x, edges[order])", None),
        ("def forward(self, x, n):\n    values, order = x.sort()\n    return values", None),
        ("def forward(self, x, n):\n    order = n.argsort()\n    back[order] = 1\n    return x[order][back]", None),
    ],
)
def test_what_becomes_of_the_order(source, statement):
    assert taken(source) == statement


MADE = "def batches(items):\n    for seqs, labels in items:\n"
LOOP = "for x, lengths, y in loader:\n"


@pytest.mark.parametrize(
    ("source", "statement"),
    [
        (MADE + "        n, p = lens(seqs).sort(descending=True)\n        x = pad(seqs)[p]\n        yield x, n, labels", "pad(seqs)[p]"),
        (LOOP + "    lengths, i = lengths.sort(0, True)\n    loss(model(x[i], lengths), y)", "x[i]"),
        (LOOP + "    lengths, i = lengths.sort(0, True)\n    x = x.index_select(0, i)\n    loss(model(x), y)", "x.index_select(0, i)"),
        (MADE + "        n, p = lens(seqs).sort()\n        x = pad(seqs)[p]\n        yield x, n, labels[p]", ""),
        (MADE + "        n, p = lens(seqs).sort()\n        x, y = pad(seqs)[p], labels[p]\n        yield x, n, y", ""),
        (MADE + "        n, p = lens(seqs).sort()\n        yield pad(seqs)[p], n, labels, p", ""),
        (LOOP + "    lengths, i = lengths.sort(0, True)\n    x, y = x[i], y[i]\n    loss(model(x, lengths), y)", ""),
        (LOOP + "    lengths, i = lengths.sort(0, True)\n    out = model(x[i], lengths)[i.argsort()]\n    loss(out, y)", ""),
        ("values, order = scores.sort()\nbest = names[order]\nprint(best)", ""),
    ],
)  # fmt: skip
def test_what_comes_with_the_sorted_samples(tmp_path, source, statement):
    file = tmp_path / "train.py"
    file.write_text(source)
    assert sorted_alone(str(file))[0] == statement


def test_texts_of_any_length_are_kept():
    probe = Probe()
    for width in (5, 9, 40):
        ids = torch.randint(1, 50, (64, width), generator=DRAW)
        assert not probe.foreign(ids)
        probe.add(ids, torch.arange(64) % 2)
    assert probe.rows == 192
    assert len(probe.accuracy()) == 3
