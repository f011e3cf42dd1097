"""What imbalance.py tells of rare classes, against a second way to count it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from flatline.sensors import imbalance
from flatline.sensors.imbalance import Imbalance, loss_under, ranking, weighted
from flatline.sensors.loop import Loop
from flatline.sensors.patching import Patches


def train(labels, steps=60, *, loss=functional.cross_entropy, outputs=2, shift=1.0, again=0):
    """A frozen model, looked at when it is due."""
    torch.manual_seed(0)
    told = []
    loop = Loop(told.append, wants=lambda event: True, budget=1.0, patches=Patches(on_broken=lambda *_: None))
    watch, net = Imbalance(loop), nn.Linear(6, outputs)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.tensor([2.0, -2.0][:outputs] if outputs > 1 else [-2.0]))
    loop.optimizers[1] = object()
    looks = 0
    for step in range(steps):
        y = labels(step)
        x = torch.randn(len(y), 6) + shift * y[:, None]
        loop.steps, loop.dense = step, step < 5 or 0 <= step - again < 5
        if again and step == again:
            loop.begin()
        scores = net(x)
        value = loss(scores, y) if outputs > 1 else loss(scores[:, 0], y.float())
        if loop.dense or step >= watch.due:
            looks += 1
            watch.look(value)
    watch.tell()
    return told, looks, watch


def rarely(step):
    return (torch.arange(40) == step % 40).long()


def test_a_rare_class():
    (told,), looks, _ = train(rarely, steps=300)
    assert (told.common, told.classes, told.answered) == (0, 2, 0)
    assert (told.labels, told.rare) == (40 * told.looks, told.looks)
    assert 40 < looks < 300 / imbalance.GAP + 6
    assert told.ranking == 0.5
    assert told.surprise > told.entropy * 0.99
    assert told.by_means > 0.9


def test_a_rare_class_under_bce():
    (told,), _, _ = train(rarely, loss=functional.binary_cross_entropy_with_logits, outputs=1)
    assert (told.common, told.answered) == (0, 0)


def test_another_training_has_a_first_quarter_of_its_own():
    *_, told = train(rarely, steps=300, again=100)[0]
    assert 150 <= told.first < 160


def test_inputs_that_tell_nothing():
    (told,), _, _ = train(rarely, steps=300, shift=0.0)
    assert 0.3 < told.by_means < 0.7


def test_labels_in_balance_are_looked_at_on_close_steps_only():
    told, looks, watch = train(lambda step: torch.arange(40) % 2)
    assert (told, looks, watch.due) == ([], 5, float("inf"))


def test_weights_switch_it_off():
    told, looks, _ = train(rarely, loss=lambda s, y: functional.cross_entropy(s, y, weight=torch.tensor([1.0, 9.0])))
    assert (told, looks) == ([], 5)


def test_several_optimizers_are_not_judged():
    watch = Imbalance(Loop(print, wants=lambda _: True, budget=1.0, patches=Patches(on_broken=lambda *_: None)))
    watch.loop.optimizers.update({1: object(), 2: object()})
    watch.look(functional.cross_entropy(torch.randn(4, 2, requires_grad=True), torch.zeros(4, dtype=torch.long)))
    assert watch.due == float("inf")


def test_ranking_counts_pairs():
    torch.manual_seed(3)
    scores, positive = torch.randn(50).round(), torch.rand(50) > 0.7
    pairs = [(a, b) for a in scores[positive].tolist() for b in scores[~positive].tolist()]
    expected = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    assert ranking(scores, positive) == pytest.approx(expected)
    assert ranking(scores, torch.zeros(50, dtype=torch.bool)) == 0.5


def test_the_loss_is_found_under_a_scale_and_beside_a_penalty():
    scores, y = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0])
    loss = functional.cross_entropy(scores, y)
    assert loss_under((loss * 1024.0).grad_fn) is loss.grad_fn
    assert loss_under((loss + scores.pow(2).sum()).grad_fn) is loss.grad_fn
    assert not weighted(loss.grad_fn)
    none = functional.cross_entropy(scores, y, reduction="none")
    assert loss_under((none * torch.rand(4)).mean().grad_fn) is None
    assert loss_under((loss + functional.cross_entropy(2 * scores, y)).grad_fn) is None
