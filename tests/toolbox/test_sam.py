"""SAM on a quadratic, by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from toolbox_state import everything, same
from torch import nn

from flatline.toolbox import SAM, overfit_one_batch, preserved, supervised

CURVATURE = torch.tensor([[4.0, 1.0], [1.0, 2.0]], dtype=torch.float64)


def bowl(start=(1.0, -2.0), **settings):
    x = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = SAM([x], torch.optim.SGD, **{"lr": 0.1, "rho": 0.5, **settings})

    def closure():
        optimizer.zero_grad()
        loss = 0.5 * x @ CURVATURE @ x
        loss.backward()
        return loss

    return x, optimizer, closure


def test_steps_on_a_quadratic_by_hand():
    x, optimizer, closure = bowl()
    at = x.detach().clone()
    for _ in range(5):
        loss = optimizer.step(closure)
        assert loss.item() == pytest.approx((0.5 * at @ CURVATURE @ at).item())
        gradient = CURVATURE @ at
        at = at - 0.1 * CURVATURE @ (at + 0.5 * gradient / gradient.norm())
        assert torch.allclose(x.detach(), at, atol=1e-10)


def test_adaptive_steps_by_hand():
    x, optimizer, closure = bowl(adaptive=True)
    at = x.detach().clone()
    optimizer.step(closure)
    gradient = CURVATURE @ at
    climb = 0.5 * at**2 * gradient / (at.abs() * gradient).norm()
    assert torch.allclose(x.detach(), at - 0.1 * CURVATURE @ (at + climb), atol=1e-10)


def test_radius_zero_is_the_base_optimizer():
    x, optimizer, closure = bowl(rho=0.0, momentum=0.9)
    y = torch.tensor((1.0, -2.0), dtype=torch.float64, requires_grad=True)
    plain = torch.optim.SGD([y], lr=0.1, momentum=0.9)
    for _ in range(4):
        optimizer.step(closure)
        plain.zero_grad()
        (0.5 * y @ CURVATURE @ y).backward()
        plain.step()
    assert torch.equal(x, y)


def test_norm_is_over_all_groups():
    a, b = (torch.tensor([v], requires_grad=True) for v in (3.0, 4.0))
    optimizer = SAM([{"params": [a]}, {"params": [b], "lr": 0.5}], torch.optim.SGD, lr=1.0, rho=1.0)

    def closure():
        optimizer.zero_grad()
        loss = 0.5 * (a.square() + b.square()).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert (a.item(), b.item()) == (pytest.approx(3 - 3.6), pytest.approx(4 - 0.5 * 4.8))


def test_schedulers_and_checkpoints_reach_the_base():
    x, optimizer, closure = bowl(momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step(closure)
    scheduler.step()
    assert optimizer.base_optimizer.param_groups[0]["lr"] == 0.05
    y, other, closure_of_other = bowl(momentum=0.9)
    y.data.copy_(x.data)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.step(closure)
    other.step(closure_of_other)
    assert torch.equal(x, y)


def test_an_exception_in_the_second_pass_leaves_the_weights():
    x, optimizer, closure = bowl()
    before, calls = x.detach().clone(), []

    def failing():
        calls.append(1)
        return closure() if len(calls) == 1 else 1 / 0

    with pytest.raises(ZeroDivisionError):
        optimizer.step(failing)
    assert torch.equal(x, before)


def test_probes_restore_it():
    torch.manual_seed(0)
    model, batch = (
        nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3)),
        (torch.randn(6, 4), torch.arange(6) % 3),
    )
    optimizer = SAM(model.parameters(), torch.optim.Adam, lr=1e-2)
    before = everything(model, optimizer)
    with preserved(model, optimizer):
        pass
    assert overfit_one_batch(model, batch, supervised(nn.functional.cross_entropy), optimizer).passed
    assert same(before, everything(model, optimizer))


def test_near_miss_parameters_without_gradient_stay():
    x, other = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    optimizer = SAM([x, other], torch.optim.SGD, lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = x.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert (x.item() < 1, other.item()) == (True, 1.0)


def test_bad_use():
    with pytest.raises(ValueError, match="rho must be 0 or more"):
        SAM([torch.ones(1, requires_grad=True)], torch.optim.SGD, lr=0.1, rho=-1.0)
    _, optimizer, _ = bowl()
    with pytest.raises(RuntimeError, match="step\\(closure\\)"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="must call backward"):
        optimizer.step(lambda: torch.zeros(()))
