"""Loops without an optimizer of torch: what counts as a step, and what does not."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from watching import seen

from flatline.events import LossNotFinite, NumbersSampled, OptimizerCreated, OptimizerStepped, RunEnded
from flatline.sensors.loop import StandIn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def batch():
    x = torch.randn(16, 6)
    return x, x[:, :3].argmax(1)


def loss_of(net):
    x, y = batch()
    return F.cross_entropy(net(x), y)


def in_place(p):
    with torch.no_grad():
        p -= 0.1 * p.grad


def by_data(p):
    p.data.sub_(0.1 * p.grad)


def replaced(p):
    p.data = p.data - 0.1 * p.grad


def forget(p):
    p.grad = None


def train(net, count=12, update=in_place, zero=forget, every=1):
    for at in range(count * every):
        loss_of(net).backward()
        if at % every == every - 1:
            for p in net.parameters():
                update(p)
                zero(p)


def watched(act):
    events = seen(act, RunEnded, OptimizerStepped, OptimizerCreated, NumbersSampled)
    steps = [event for event in events if isinstance(event, OptimizerStepped)]
    return events[-1].step, steps, events


@pytest.mark.parametrize("update", [in_place, by_data, replaced])
def test_every_way_to_change_a_weight_is_a_step(update):
    count, steps, events = watched(lambda: train(model(), update=update))
    assert count == 12
    assert steps
    assert all(step.optimizer.by_hand and not step.leftover for step in steps)
    assert not [event for event in events if isinstance(event, OptimizerCreated)]


def test_gradients_that_nobody_zeroes_are_left_over():
    _, steps, _ = watched(lambda: train(model(), zero=lambda p: None))
    assert [step.leftover for step in steps[1:6]] == [True] * 5  # those in a row that were looked at


@pytest.mark.parametrize("shrink", [lambda p: p.grad.mul_(0.9), lambda p: p.grad.data.mul_(0.9)])
def test_gradients_that_are_a_momentum_are_not_left_over(shrink):
    count, steps, _ = watched(lambda: train(model(), zero=shrink))
    assert count == 12
    assert not any(step.leftover for step in steps)


def test_sums_of_gradients_that_are_meant_are_not_left_over():
    """Dual averaging writes the weights from where they began."""
    net = model()
    begun = {id(p): p.detach().clone() for p in net.parameters()}

    def anchored(p):
        with torch.no_grad():
            p.copy_(begun[id(p)] - 0.02 * p.grad)

    _, steps, _ = watched(lambda: train(net, update=anchored, zero=lambda p: None))
    assert steps
    assert not any(step.leftover for step in steps)


def test_several_backwards_for_one_step():
    count, steps, _ = watched(lambda: train(model(), every=3))
    assert count == 12
    assert steps[-1].tape.count("backward") == 3


def test_what_the_next_batch_does_is_not_of_this_step():
    _, steps, _ = watched(lambda: train(model()))
    assert {step.tape[-1] for step in steps} == {"backward"}


def test_numbers_are_those_of_the_update():
    _, _, events = watched(lambda: train(model()))
    numbers = [event for event in events if isinstance(event, NumbersSampled)]
    layer = numbers[-1].layers[0]
    assert layer.update_ratio == pytest.approx(0.1 * layer.gradient_rms / layer.weight_rms, rel=0.5)


def test_a_class_of_ones_own():
    class Descent:
        def __init__(self, parameters):
            self.parameters = list(parameters)

        def zero_grad(self):
            for p in self.parameters:
                p.grad = None

        @torch.no_grad()
        def step(self):
            for p in self.parameters:
                p.add_(p.grad, alpha=-0.1)

    def act():
        net = model()
        descent = Descent(net.parameters())
        for _ in range(12):
            descent.zero_grad()
            loss_of(net).backward()
            descent.step()

    count, steps, _ = watched(act)
    assert count == 12
    assert not any(step.leftover for step in steps)


def test_plain_tensors_without_a_module():
    def act():
        w = torch.zeros(6, 3, requires_grad=True)
        for _ in range(12):
            x, y = batch()
            F.cross_entropy(x @ w, y).backward()
            in_place(w)
            forget(w)

    assert watched(act)[0] == 12


def attack():
    net, (x, y) = model(), batch()
    moved = x.clone().requires_grad_()
    for _ in range(12):
        F.cross_entropy(net(moved), y).backward()
        with torch.no_grad():
            moved += 0.01 * moved.grad.sign()
        moved.grad = None


def picture():
    net = model().requires_grad_(False)
    image = torch.randn(1, 6, requires_grad=True)
    for _ in range(12):
        net(image).square().sum().backward()
        in_place(image)
        forget(image)


def saliency():
    net = model()
    for _ in range(12):
        net.zero_grad()
        x = batch()[0].requires_grad_()
        net(x).sum().backward()


def functional():
    net = model()
    fast = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    for _ in range(12):
        x, y = batch()
        F.cross_entropy(torch.func.functional_call(net, fast, (x,)), y).backward()
        fast = {name: (p - 0.1 * p.grad).detach().requires_grad_() for name, p in fast.items()}


def teacher():
    net = model()
    slow = copy.deepcopy(net)
    for _ in range(12):
        loss_of(net).backward()
        with torch.no_grad():
            for p, q in zip(slow.parameters(), net.parameters(), strict=True):
                p.lerp_(q, 0.1)


def restored():
    net = model()
    kept = copy.deepcopy(net.state_dict())
    for _ in range(12):
        net.load_state_dict(kept)
        loss_of(net).backward()


def two_players():
    nets = model(), model()
    for _ in range(12):
        for net in nets:
            loss_of(net).backward()
            for p in net.parameters():
                in_place(p)
                forget(p)


@pytest.mark.parametrize("act", [attack, picture, saliency, functional, teacher, restored, two_players])
def test_is_no_training_by_hand(act):
    assert watched(act)[0] == 0


def test_an_optimizer_of_torch_ends_it():
    def act():
        net = model()
        train(net, 6)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(6):
            optimizer.zero_grad()
            loss_of(net).backward()
            optimizer.step()

    count, steps, _ = watched(act)
    assert 10 <= count <= 12
    assert not any(step.optimizer.by_hand for step in steps[-6:])


def test_weights_changed_beside_an_optimizer_of_torch():
    def act():
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(6):
            optimizer.zero_grad()
            loss_of(net).backward()
            optimizer.step()
            for p in net.parameters():
                in_place(p)

    count, steps, _ = watched(act)
    assert count == 6
    assert not any(step.optimizer.by_hand for step in steps)


def test_keeps_no_parameter_alive():
    net = model()
    stand_in = StandIn(list(net.parameters()))
    assert len(stand_in.param_groups[0]["params"]) == 4
    del net
    assert stand_in.gone
    assert stand_in.param_groups == [{"params": []}]


def test_a_loss_that_is_not_a_number_has_its_step():
    def act():
        net = model()
        for at in range(8):
            loss = loss_of(net) * (float("nan") if at == 5 else 1.0)
            loss.backward()
            for p in net.parameters():
                in_place(p)
                forget(p)

    (event,) = seen(act, LossNotFinite)
    assert (event.step, event.last_finite_step, event.lr) == (6, 5, None)
