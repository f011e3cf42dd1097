"""Probabilities that several softmaxes were mixed into, and numbers that only look like some."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from watching import seen

from flatline.events import LossComputed

ROWS, EXPERTS, CLASSES = 12, 3, 5
EYE = torch.eye(CLASSES)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts, self.gate = nn.Linear(4, EXPERTS * CLASSES), nn.Linear(4, EXPERTS)
        self.memory = nn.Parameter(torch.randn(CLASSES, CLASSES))

    def forward(self, x):
        return self.experts(x).view(-1, EXPERTS, CLASSES), self.gate(x)


def fed(scores, targets=None):
    labels = torch.arange(ROWS) % CLASSES if targets is None else targets

    def run():
        torch.manual_seed(0)
        out, gate = Heads()(torch.randn(ROWS, 4))
        functional.cross_entropy(scores(out, gate), labels).backward()

    return [event.fed_by for event in seen(run, LossComputed)]


def gated(out, gate):
    probs, share = out.softmax(-1), torch.sigmoid(gate[:, :1])
    return share * probs[:, 0] + (1 - share) * probs.unbind(1)[1]


def averaged(out, gate):
    first, second, third = out.softmax(-1).unbind(1)
    return (first + second + third) / 3


MIXTURES = {
    "weighted sum": lambda out, gate: (gate.softmax(-1).unsqueeze(-1) * out.softmax(-1)).sum(1),
    "einsum": lambda out, gate: torch.einsum("bk,bkv->bv", gate.softmax(-1), out.softmax(-1)),
    "mean of a stack": lambda out, gate: torch.stack(list(out.softmax(-1).unbind(1))).mean(0),
    "mean by hand": averaged,
    "constant shares": lambda out, gate: sum(
        w * p for w, p in zip((0.5, 0.2, 0.3), out.softmax(-1).unbind(1), strict=True)
    ),
    "a gate between two": gated,
    "bmm": lambda out, gate: torch.bmm(gate.softmax(-1).unsqueeze(1), out.softmax(-1)).squeeze(1),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_of_softmaxes_under_cross_entropy(name):
    assert fed(MIXTURES[name]) == ["mixture of softmaxes"]


def test_under_soft_targets():
    assert fed(MIXTURES["weighted sum"], EYE[torch.arange(ROWS) % CLASSES]) == ["mixture of softmaxes"]


def test_in_half_precision():
    assert fed(lambda out, gate: MIXTURES["weighted sum"](out.bfloat16(), gate.bfloat16())) == ["mixture of softmaxes"]


HEALTHY = {
    "logits": lambda out, gate: out[:, 0],
    "positive logits": lambda out, gate: out[:, 0].exp(),
    "log of the mixture": lambda out, gate: MIXTURES["weighted sum"](out, gate).log(),
    "a temperature": lambda out, gate: MIXTURES["weighted sum"](out, gate) * 20,
    "mixture of logits": lambda out, gate: (gate.softmax(-1).unsqueeze(-1) * out).sum(1),
    "products of attention": lambda out, gate: out[:, 0].softmax(-1) @ torch.randn(CLASSES, CLASSES),
    "softmax times logits": lambda out, gate: out[:, 0].softmax(-1) * out[:, 1],
    "features of length one": lambda out, gate: functional.normalize(out[:, 0].relu() + 0.1, dim=1),
    "shares over experts": lambda out, gate: (out.softmax(1) * out).sum(1),
    "sum of softmaxes": lambda out, gate: out.softmax(-1).sum(1),
    "copies of positions": lambda out, gate: gate.softmax(-1) @ EYE[:EXPERTS],
}


@pytest.mark.parametrize("name", HEALTHY)
def test_near_miss_no_probabilities_over_the_classes(name):
    assert fed(HEALTHY[name])[0] in ("", "linear", "log")
