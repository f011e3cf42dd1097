"""What a loss cannot fall below, against the loss of the best scores there are."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from flatline.preflight.hearing import CALLS, LOSSES, Hearing, Loss, paths

torch.manual_seed(0)
CLASSES = torch.randint(0, 7, (40,))
SHARES = torch.softmax(torch.randn(40, 7), 1)
GREY = torch.rand(40, 5)


def best(shares):
    return shares.clamp(min=1e-30).log()


@pytest.mark.parametrize(
    ("name", "scores", "target", "settings"),
    [
        ("cross_entropy", best(torch.nn.functional.one_hot(CLASSES, 7) * 0.9 + 0.1 / 7), CLASSES, {"label_smoothing": 0.1}),
        ("cross_entropy", best(SHARES), SHARES, {}),
        ("cross_entropy", best(SHARES * 0.8 + 0.2 / 7), SHARES, {"label_smoothing": 0.2}),
        ("binary_cross_entropy_with_logits", torch.logit(GREY), GREY, {}),
        ("binary_cross_entropy", GREY, GREY, {}),
    ],
)  # fmt: skip
def test_the_best_scores_cost_the_floor(name, scores, target, settings):
    loss = Loss(name, scores, target, (), settings)
    assert loss.floor() == pytest.approx(float(loss.again(target)), rel=1e-4)
    assert loss.floor() > 0.1


def test_there_is_none_under_plain_classes_or_in_other_forms():
    scores = torch.randn(40, 7)
    assert Loss("cross_entropy", scores, CLASSES, (), {}).floor() == pytest.approx(0.0, abs=1e-6)
    assert Loss("cross_entropy", scores, SHARES, (), {"reduction": "sum"}).floor() == 0.0
    assert Loss("cross_entropy", scores, SHARES, (), {"weight": torch.ones(7)}).floor() == 0.0
    assert Loss("mse_loss", scores, scores, (), {}).floor() == 0.0


def test_a_loss_again_with_other_targets():
    scores = torch.zeros(40, 7)
    loss = Loss("cross_entropy", scores, CLASSES, (), {})
    assert float(loss.again(CLASSES.flip(0))) == pytest.approx(math.log(7))
    assert torch.equal(loss.again(CLASSES), functional.cross_entropy(scores, CLASSES))


# --------------------------------------------------------------------------- what is heard


@pytest.fixture
def hearing(monkeypatch):
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)
    for name in LOSSES:
        monkeypatch.setattr(functional, name, getattr(functional, name))
    made = Hearing()
    made.attach()
    return made


def test_names_and_tensors_belong_together(hearing):
    class Both(nn.Linear):
        def forward(self, image, ids):
            return super().forward(image["pixels"]["raw"]["float"]) + ids

    net, image, ids = Both(3, 1), torch.ones(4, 3), torch.zeros(4, 1)
    net(ids=ids, image={"pixels": {"raw": {"float": image}}})
    ((call,), _) = hearing.step()
    assert [(name, id(tensor)) for name, tensor in call.named] == [
        ("ids", id(ids)),
        ("image.pixels.raw.float", id(image)),
    ]


def test_one_tensor_under_two_names_is_one(hearing):
    class Same(nn.Linear):
        def forward(self, ids, labels):
            return super().forward(ids + labels)

    ids = torch.ones(4, 3)
    Same(3, 1)(ids, labels=ids)
    assert [name for name, _ in hearing.step()[0][0].named] == ["ids"]


def test_no_graph_is_kept_and_not_every_call(hearing):
    net = nn.Linear(3, 1)
    for _ in range(20):
        functional.mse_loss(net(torch.ones(4, 3)), torch.zeros(4, 1))
    calls, losses = hearing.step()
    assert len(calls) == CALLS
    assert not any(loss.scores.requires_grad for loss in losses)


def test_calls_under_vmap_are_not_heard(hearing):
    net = nn.Linear(3, 1)
    torch.func.vmap(net)(torch.ones(4, 3))
    assert hearing.step() == ([], [])


def test_what_the_script_made_itself_never_breaks_it(hearing):
    told = []
    hearing.called, hearing.broken = lambda call: {}["x"], lambda what, error: told.append(what)
    assert nn.Linear(3, 1)(torch.ones(4, 3)).shape == (4, 1)
    assert told == ["hearing"]


@dataclass(frozen=True, slots=True)
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


def test_tensors_of_plain_objects():
    logits = torch.ones(2, 3)
    assert [path for path, _ in paths(Output(logits, logits.sum()))] == [".logits", ".loss"]
    assert [path for path, _ in paths([SimpleNamespace(ids=logits, name="a")])] == ["[0].ids"]
    assert list(paths(nn.Linear(2, 2))) == []
    assert list(paths("text")) == []
