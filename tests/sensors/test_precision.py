"""What half precision loses, measured, and measured again in a slow and plain way."""

from __future__ import annotations

import contextlib
import math
import warnings

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import LossNotFinite, OptimizerStateSampled, PrecisionObserved, RunEnded, ScalerObserved
from flatline.sensors.live import LiveSensors
from flatline.sensors.own_squares import spread
from flatline.sensors.precision import counts, half_step


def train(model, optimizer, *, scaler=None, dtype=torch.float16, shrink=1.0, count=4, autocast=True):
    """A small regression loop under autocast."""

    def act():
        torch.manual_seed(0)
        own = next(model.parameters()).dtype
        for _ in range(count):
            x = torch.randn(16, 8).to(own)
            with torch.autocast("cpu", dtype=dtype, enabled=autocast):
                loss = (model(x) - 1).float().square().mean() * shrink
            optimizer.zero_grad()
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

    return act


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


# --------------------------------------------------------------------------- numbers


def test_counts_by_hand():
    torch.manual_seed(0)
    gradient = (torch.randn(500) * 10 ** torch.empty(500).uniform_(-9, 0)).half()
    gradient[:3] = torch.tensor([float("nan"), float("inf"), 0.0])
    values = [abs(v) for v in gradient.tolist() if math.isfinite(v)]
    naive = [
        len(values),
        sum(v == 0 for v in values),
        sum(0 < v < 2**-14 for v in values),
        sum(0 < v < 2.5e-7 for v in values),
    ]
    finite = gradient[gradient.isfinite()]
    assert counts(finite).tolist() == naive
    assert counts(gradient)[0] == naive[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_step_is_where_rounding_begins(dtype):
    torch.manual_seed(0)
    value = torch.randn(300).to(dtype)
    step = half_step(value)
    away = value.float().sign()
    assert torch.equal((value.float() + away * step * 0.99).to(dtype), value)
    assert not bool(((value.float() + away * step * 1.01).to(dtype) == value).any())


def test_spread_is_the_same_for_tensors_of_one_shape():
    a = torch.randn(40, 100)
    stride = next(n for n in range(-(-a.numel() // 512), 99) if math.gcd(n, a[0].numel()) == 1)
    assert torch.equal(spread(a), a.reshape(-1)[::stride])
    assert len(spread(a)) == len(spread(a.clone()))


# --------------------------------------------------------------------------- backward


def test_float16_without_a_scaler():
    model = net()
    events = seen(train(model, sgd(model), shrink=1e-5), PrecisionObserved)
    assert {(e.dtype, e.parameters, e.scaled) for e in events} == {("float16", "float32", False)}
    assert all(e.elements > 100 and e.coarse + e.zeros > 0.5 * e.elements for e in events)


def test_float16_with_a_scaler_is_not_sampled():
    model = net()
    events = seen(train(model, sgd(model), scaler=torch.amp.GradScaler("cpu")), PrecisionObserved)
    assert {(e.dtype, e.scaled, e.elements) for e in events} == {("float16", True, 0)}


def test_scaled_by_hand_whatever_the_unit_of_the_loss():
    def act():
        model = net()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(8, 8)).square().mean()
        (loss * 1e-6 * 2.0**22).backward()

    assert all(event.scaled for event in seen(act, PrecisionObserved))


def test_scaled_by_hand():
    model = net()
    assert all(e.scaled for e in seen(train(model, sgd(model), shrink=1024.0), PrecisionObserved))


@pytest.mark.parametrize(
    ("dtype", "autocast", "name"), [(torch.bfloat16, True, "bfloat16"), (torch.float16, False, "float32")]
)
def test_other_dtypes(dtype, autocast, name):
    model = net()
    events = seen(train(model, sgd(model), dtype=dtype, autocast=autocast), PrecisionObserved)
    assert {(e.dtype, e.elements) for e in events} == {(name, 0)}


def test_looking_changes_nothing():
    plain, watched = net(), net()
    train(plain, sgd(plain), shrink=1e-4)()
    seen(train(watched, sgd(watched), shrink=1e-4), PrecisionObserved)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))


def under_anomaly_mode(rounds):
    """A loop of 40 steps with the mode on in these."""

    def act():
        model = net()
        optimizer = sgd(model)
        for at in range(4):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                mode = torch.autograd.detect_anomaly() if at in rounds else contextlib.nullcontext()
            with mode:
                train(model, optimizer, count=10, autocast=False)()

    return [e for e in seen(act, PrecisionObserved) if e.step == 40]


def test_anomaly_mode_around_every_epoch():
    assert [e.anomaly_mode for e in under_anomaly_mode(range(4))] == [True]


@pytest.mark.parametrize("rounds", [(), (0, 1, 2), (1, 2, 3)])
def test_anomaly_mode_around_some_epochs(rounds):
    assert not any(e.anomaly_mode for e in under_anomaly_mode(rounds))


# --------------------------------------------------------------------------- GradScaler


@pytest.mark.parametrize("fused", [False, True])
def test_skipped_steps_are_counted(fused):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    events = seen(train(model, optimizer, scaler=scaler, count=40), ScalerObserved)
    calm = events[-1]
    assert calm.skipped == 40 - math.log2(scaler.get_scale())
    assert (calm.scale, calm.first_scale) == (scaler.get_scale(), 2.0**40)
    assert events[0].in_a_row == 1


@pytest.mark.parametrize("fused", [False, True])
def test_scalers_in_succession_are_told_from_one(fused):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)

    def act():
        for _ in range(24):
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
            train(model, optimizer, scaler=scaler, count=1)()

    last = seen(act, ScalerObserved)[-1]
    assert (last.begun, last.lately, last.updates, last.in_a_row) == (24, 24, 1, 1)


def test_scalers_of_two_optimizers_are_no_succession():
    def act():
        for _ in range(6):
            model = net()
            train(model, sgd(model), scaler=torch.amp.GradScaler("cpu", init_scale=2.0**40), count=12)()

    assert {event.begun for event in seen(act, ScalerObserved)} == {1}


def test_scaled_losses_are_read_unscaled_on_every_step():
    model = net()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    losses = []

    def act():
        for at in range(60):
            loss = (model(torch.randn(16, 8)) - 1).square().mean() * (math.inf if at == 57 else 1)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())

    bad, ended = seen(act, (LossNotFinite, RunEnded))
    assert (bad.scaled, bad.value, bad.last_finite, bad.in_a_row) == (True, "inf", losses[56], 1)
    assert ended.loss == losses[-1]


def test_a_step_of_a_scaler_is_no_validation():
    model = net()
    sensors = LiveSensors(lambda event: None, wants=lambda event: True, budget=1.0, on_broken=lambda *why: None)
    sensors.attach()
    try:
        train(model, sgd(model), scaler=torch.amp.GradScaler("cpu"), count=60)()
        assert not sensors.loop.stepping
        hooked = []
        for block in (torch.no_grad, lambda: torch.set_grad_enabled(mode=False)):
            with block():
                hooked.append(sensors.models._quick_handle is not None)
            hooked.append(sensors.models._quick_handle is not None)
        assert sensors.loop.dense or hooked == [True, False, True, False]
    finally:
        sensors.detach()


def test_a_disabled_scaler_is_silent():
    model = net()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    assert seen(train(model, sgd(model), scaler=scaler), ScalerObserved) == []


# --------------------------------------------------------------------------- state of optimizers


def test_largest_gradients_in_float16():
    """What Adamax keeps in the place of squares."""
    model = net().half()
    act = train(model, torch.optim.Adamax(model.parameters(), lr=1e-3), autocast=False, count=1)
    event = seen(act, OptimizerStateSampled)[0]
    assert (event.state, event.eps, event.eps_stored, event.squares) == ("float16", 1e-8, 0.0, 0)


def test_state_in_float16():
    model = net().half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    event = seen(train(model, optimizer, autocast=False, count=1), OptimizerStateSampled)[0]
    assert (event.state, event.parameters, event.eps, event.eps_stored) == ("float16", "float16", 1e-8, 0.0)
    naive = [
        (int((p.grad != 0).sum()), int(((p.grad != 0) & (optimizer.state[p]["exp_avg_sq"] == 0)).sum()))
        for p in model.parameters()
    ]
    assert (event.squares, event.squares_zero) == tuple(map(sum, zip(*naive, strict=True)))


def test_state_in_float32_under_autocast():
    model = net()
    events = seen(train(model, torch.optim.Adam(model.parameters())), OptimizerStateSampled)
    assert {(e.state, e.eps_stored is not None and e.eps_stored > 0, e.wanted) for e in events} == {
        ("float32", True, 0)
    }


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_lost_updates_by_hand(name):
    model = net().bfloat16()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3 if name == "SGD" else 1e-4, weight_decay=0.0)
    before = [p.detach().clone() for p in model.parameters()]
    event = seen(train(model, optimizer, autocast=False, count=1), OptimizerStateSampled)[0]
    same = sum(int((p.detach() == old).sum()) for p, old in zip(model.parameters(), before, strict=True))
    total = sum(p.numel() for p in model.parameters())
    assert event.wanted == total
    assert abs(event.lost - same) <= 0.03 * total  # rounding within the optimizer shifts a few
    assert 0 < event.lost < total


def test_optimizers_without_squares():
    model = net()
    events = seen(train(model, sgd(model)), OptimizerStateSampled)
    assert {(e.state, e.eps) for e in events} == {("", None)}
