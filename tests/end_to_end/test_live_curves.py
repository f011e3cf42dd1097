"""Curves of running scripts, judged while they run and at their end."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from torch.nn import functional as F

import flatline
from flatline.events import Curve, LinePrinted
from flatline.meanwhile import Bare, Curves


def train(steps: int, loss_of, optimizers) -> None:
    for step in range(steps):
        for at, optimizer in enumerate(optimizers):
            optimizer.zero_grad()
            loss_of(step, at).backward()
            optimizer.step()


def labelled():
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    return torch.nn.Linear(6, 3), x, x[:, :3].argmax(1)


def reasons(run) -> dict[str, str]:
    return {rule.code: rule.reason for rule in run.report.not_checked}


def test_a_loss_that_never_moves():
    net, x, y = labelled()
    idle = torch.nn.Parameter(torch.zeros(1))
    with flatline.watch(select="C") as run:
        train(60, lambda *_: F.cross_entropy(net(x).detach() + 0 * idle, y), [torch.optim.SGD([idle], 0.1)])
    assert [finding.code for finding in run.findings] == ["C10"]
    assert reasons(run)["C4"] == "no val loss was logged"


def test_a_loss_that_falls():
    net, x, y = labelled()
    with flatline.watch(select="C", hints=True) as run:
        train(300, lambda *_: F.cross_entropy(net(x), y), [torch.optim.Adam(net.parameters(), 1e-2)])
    assert run.findings == []
    assert {"C1", "C2", "C3", "C6", "C10", "C11"} <= set(run.report.checked)


def test_adversaries_are_not_judged():
    net, x, y = labelled()
    other = torch.nn.Linear(6, 3)
    both = torch.optim.SGD(net.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1)
    with flatline.watch(select="C") as run:
        train(60, lambda step, at: (1 + step) * F.cross_entropy((net, other)[at](x), y), both)
    assert run.findings == []
    assert reasons(run)["C1"].startswith("several optimizers trained")


def test_nothing_trained():
    with flatline.watch(select="C1") as run:
        pass
    assert reasons(run) == {"C1": "no loss was read"}


def test_the_same_training_as_without():
    weights = []
    for watched in (False, True):
        net, x, y = labelled()
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        if watched:
            with flatline.watch(select="C"):
                train(100, lambda *_: F.cross_entropy(net(x), y), [optimizer])  # noqa: B023
        else:
            train(100, lambda *_: F.cross_entropy(net(x), y), [optimizer])  # noqa: B023
        weights.append(net.weight.detach().clone())
    assert torch.equal(*weights)


def memorise(epochs: int, decay: float) -> None:
    """Twenty samples of noise and a little signal, in a wide net; the validation loss is printed after each epoch."""
    torch.manual_seed(0)
    x, y = torch.randn(220, 30), torch.randn(220)
    y = ((x[:, 0] + 1.5 * y) > 0).long()
    net = torch.nn.Sequential(torch.nn.Linear(30, 128), torch.nn.ReLU(), torch.nn.Linear(128, 2))
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=decay)
    for epoch in range(epochs):
        for part in torch.randperm(120)[:100].split(10):
            optimizer.zero_grad()
            F.cross_entropy(net(x[:120][part]), y[:120][part]).backward()
            optimizer.step()
        with torch.no_grad():
            print(f"epoch {epoch} val loss {F.cross_entropy(net(x[120:]), y[120:]):.4f}")


def test_a_validation_loss_that_is_only_printed(tmp_path):
    out = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with contextlib.redirect_stdout(out), flatline.watch(select="C", record=tmp_path / "run") as run:
        memorise(40, 0.0)
    assert [finding.code for finding in run.findings] == ["C4"]
    assert "validation loss turned" in run.findings[0].message


def test_near_miss_a_validation_loss_that_stays_down():
    out = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with contextlib.redirect_stdout(out), flatline.watch(select="C") as run:
        memorise(10, 0.0)
    assert run.findings == []


def bare(tell, epochs=12) -> Bare:
    """Lines of a run whose loss falls from 2 to 0.5; ``tell`` makes the two numbers of each."""
    lines = Bare()
    for epoch in range(1, epochs + 1):
        mean = 2 * 0.88 ** (epoch - 0.5)
        lines.take(10 * epoch, [(name, value, None) for name, value in tell(mean, epoch).items()])
    return lines


LOSS = Curve(steps=tuple(range(120)), values=tuple(2 * 0.88 ** (at / 10) for at in range(120)))


def test_numbers_of_training_and_validation_without_a_name():
    curve = bare(lambda mean, epoch: {"ep": epoch, "Train": mean, "Val": 2.0 - 0.1 * epoch, "acc": 0.9}).curve(LOSS)
    assert (curve.role, curve.steps[0], curve.values[:2]) == ("val_loss", 10.0, (1.9, 1.8))


@pytest.mark.parametrize(
    "tell",
    [
        lambda mean, epoch: {"train": 1 - mean / 4, "val": 0.5},
        lambda mean, epoch: {"train": 100 * mean, "val": 50.0},
        lambda mean, epoch: {"train": mean, "acc": 0.5},
        lambda mean, epoch: {"train": mean, "val": 0.5, "test": 0.6},
        lambda mean, epoch: {"train": mean, "val": 0.5} if epoch < 4 else {},
        lambda mean, epoch: {"train": mean if epoch % 3 else 1.0 - mean, "val": 0.5},
    ],
    ids=["accuracies", "in percent", "nothing of validation", "two of them", "few lines", "now and then"],
)
def test_numbers_without_a_name_that_may_be_anything(tell):
    assert bare(tell).curve(LOSS) is None


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("Epoch 3/10 | train_loss 0.41 | val_loss 0.52 | val_acc 0.81 | lr 1e-3 | 3.2s", [0.52, 0.81]),
        ("Test set: average loss: 0.1, accuracy: 93/100", [0.1, 0.93]),
        ("epoch 19 [shifted, for information] val loss 4.1228", None),
        ("epoch 23: eval with noise 4.4: loss 9.1797", None),
        ("epoch 23 horizon 47 val loss 6.9534", None),
        ("round 29: total test loss 611.78", None),
        ("(baseline) val loss: 1.39503", None),
        ("epoch 9: [corrupted] test loss 9.7594 [clean] accuracy 0.954", None),
        ("validation begins 3", None),
    ],
)
def test_printed_lines_are_taken_where_every_word_is_understood(line, values):
    told = Curves([], budget=0.01, on_broken=print).scalars_in(LinePrinted(step=7, text=line))
    assert (told and [value for _, value in told.values]) == values
