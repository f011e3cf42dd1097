"""The first tensor that was not finite: batch, targets, weights, or the operation and why."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from watching import seen

from flatline.events import GradientNotFinite, LossNotFinite
from flatline.sensors.forensics import rows


def steps(loss_of, *, bad_at=2, model=None, count=4):
    """A small loop; ``loss_of(model, x, broken)`` is given whether this is the batch that breaks it."""
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def act():
        for step in range(count):
            x = torch.randn(6, 5)
            loss = loss_of(model, x, step == bad_at)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return act


def origin_of(loss_of, **options):
    (event,) = seen(steps(loss_of, **options), LossNotFinite)
    return event.origin


@pytest.mark.parametrize(("factor", "told"), [(1.5, (1e-3, 1e-3 * 1.5**29)), (0.5, (None, 1e-3)), (1.0, (None, 1e-3))])
def test_tells_a_rate_that_was_raised_to_the_end(factor, told):
    def act():
        model = nn.Linear(5, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor**step)
        for step in range(30):
            optimizer.zero_grad()
            (model(torch.ones(6, 5)).mean() * (float("nan") if step == 29 else 1e-6)).backward()
            optimizer.step()
            schedule.step()

    (event,) = seen(act, LossNotFinite)
    assert (event.built_with, event.lr) == pytest.approx(told)


def masked(model, x, broken):
    scores = model(x) @ model(x).T
    hidden = torch.zeros(6, 6, dtype=torch.bool)
    hidden[:, 5] = True
    if broken:
        hidden[2] = True
    return scores.masked_fill(hidden, float("-inf")).softmax(-1).square().mean()


@pytest.mark.parametrize(
    ("loss_of", "detail"),
    [
        (lambda m, x, bad: (m(x).softmax(1) * (0 if bad else 1)).log().mean(), "log of 0"),
        (lambda m, x, bad: m(x).mean() / (m(x) * (0 if bad else 1)).sum(), "division by 0, a sum"),
        (lambda m, x, bad: (m(x).std(0) - (9 if bad else 0)).sqrt().mean(), "nan in the result of sqrt"),
        (lambda m, x, bad: (m(x) * (1e5 if bad else 1)).exp().mean(), "inf in the result of exp"),
        (lambda m, x, bad: m(x)[torch.full((6,), not bad)].mean(), "mean of 0 elements"),
        (lambda m, x, bad: F.cross_entropy(m(x), torch.full((6,), -100 if bad else 1)), "mean of 0 labels"),
        (lambda m, x, bad: m(x[:1] if bad else x).std(0).mean(), "std of a single value"),
        (masked, "softmax over rows of -inf only (1 of 6 are masked completely)"),
    ],
)
@pytest.mark.filterwarnings("ignore:std")
def test_names_the_operation(loss_of, detail):
    origin = origin_of(loss_of)
    assert origin.kind == "operation"
    assert origin.detail.startswith(detail)


def test_near_miss_scores_that_overflow_are_not_masked():
    def loss_of(model, x, bad):
        pull = torch.full((model(x).shape[1], 4), -3e38 if bad else 1.0)
        return (100 * model(x).abs() @ pull).softmax(1).square().mean()

    assert "masked" not in origin_of(loss_of).detail


def test_names_the_rows_of_the_batch():
    def loss_of(model, x, bad):
        x[3, 1] = float("nan") if bad else 0.0
        return model(x).square().mean()

    origin = origin_of(loss_of)
    assert origin.kind == "inputs"
    assert origin.detail == "1 of 30 values of the batch, row 3 of 6"


@pytest.mark.parametrize("by_hand", [True, False])
def test_names_the_targets(by_hand):
    def loss_of(model, x, bad):
        y = torch.ones(6, 3)
        y[4, 0] = float("nan") if bad else 0.0
        return ((model(x) - y) ** 2).mean() if by_hand else F.mse_loss(model(x), y)

    origin = origin_of(loss_of)
    assert (origin.kind, origin.detail) == ("targets", "nan in 1 of 18 values, row 4 of 6")


def test_names_the_weights_and_what_may_have_broken_them():
    def loss_of(model, x, bad):
        return (model(x) - model(x if bad else -x)).square().sum(1).sqrt().mean()

    (event,) = seen(steps(loss_of), LossNotFinite)
    assert (event.origin.kind, event.origin.count, event.origin.total) == ("weights", 4, 4)
    assert event.gradient_note == "sqrt"


def test_a_scaler_is_told_of():
    scaler = torch.amp.GradScaler("cpu")

    def loss_of(model, x, bad):
        return scaler.scale(model(x).mean() * (float("inf") if bad else 1.0))

    (event,) = seen(steps(loss_of, count=3), LossNotFinite)
    assert (event.scaled, event.in_a_row) == (True, 1)


def test_losses_that_a_scaler_skips_now_and_then_are_counted():
    scaler = torch.amp.GradScaler("cpu")
    broken = iter([False, True] * 5)

    def loss_of(model, x, bad):
        return scaler.scale(model(x).mean() + (float("nan") if next(broken) else 0.0))

    events = seen(steps(loss_of, count=10), LossNotFinite)
    assert [(event.in_a_row, event.in_all) for event in events] == [(1, n) for n in range(1, 6)]


def test_near_miss_an_overflow_of_the_scaled_loss():
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38)

    def loss_of(model, x, bad):
        return scaler.scale(model(x).square().sum() + 100) + scaler.scale(model(x).square().sum() + 100)

    assert seen(steps(loss_of, count=1), LossNotFinite) == []


@pytest.mark.parametrize("shape", [(4,), (1, 3)])
def test_rows_are_told_only_where_they_say_something(shape):
    assert rows(torch.full(shape, float("nan"))) == ""


def test_rows_by_hand():
    torch.manual_seed(0)
    for _ in range(20):
        tensor = torch.randn(7, 3)
        tensor[torch.rand(7, 3) < 0.1] = float("inf")
        naive = [n for n in range(7) if any(v in (float("inf"), float("-inf")) for v in tensor[n].tolist())]
        told = rows(tensor)
        assert (told != "") == (0 < len(naive) < 7)
        if told:
            assert told.startswith(f"row{'s' if len(naive) > 1 else ''} {', '.join(map(str, naive[:3]))}")


# --------------------------------------------------------------------------- gradients (sensors/derivatives.py)


def gradient_of(loss_of, **options):
    (event,) = seen(steps(loss_of, **options), GradientNotFinite)
    return event


@pytest.mark.parametrize(
    ("loss_of", "detail"),
    [
        (lambda m, x, bad: (m(x) - m(x if bad else -x)).square().sum(1).sqrt().mean(), "sqrt of 0"),
        (lambda m, x, bad: (m(x) - m(x if bad else -x)).abs().sum(1).pow(0.5).mean(), "pow(0, 0.5)"),
        (lambda m, x, bad: torch.where(torch.tensor(bad), 1.0, (m(x) * (0 if bad else 1) + 3 * (not bad)).log()).mean(), "log of 0"),
        (lambda m, x, bad: (m(x)[:, 0] * 0 + (1 if bad else 0.5)).acos().mean(), "acos at 1 or -1"),
        (lambda m, x, bad: torch.logsumexp(m(x) + (float("-inf") if bad else 0), 1).clamp(min=-9).mean(), "logsumexp"),
    ],
)  # fmt: skip
def test_names_the_derivative(loss_of, detail):
    event = gradient_of(loss_of)
    assert event.detail.startswith(detail)
    assert (event.step, event.bad, event.total) == (3, 4, 4)
    assert event.parameters[0] == "0.weight"


def test_near_miss_a_guarded_where():
    def loss_of(model, x, bad):
        p = torch.relu(model(x))
        safe = torch.where(p > 0, p, torch.ones_like(p))
        return torch.where(p > 0, safe * safe.log(), torch.zeros_like(p)).mean()

    assert seen(steps(loss_of), GradientNotFinite, LossNotFinite) == []


def test_near_miss_the_step_is_left_out():
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def act():
        for step in range(4):
            optimizer.zero_grad()
            ((model(torch.randn(6, 5)) * (step != 2)).square().sum(1).sqrt().mean()).backward()
            if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
                optimizer.step()

    assert seen(act, GradientNotFinite, LossNotFinite) == []


def test_near_miss_gradients_filled_by_hand():
    def loss_of(model, x, bad):
        for parameter in model.parameters():
            if not parameter._backward_hooks:
                parameter.register_hook(torch.nan_to_num)
        return (model(x) - model(x if bad else -x)).square().sum(1).sqrt().mean()

    assert seen(steps(loss_of), GradientNotFinite, LossNotFinite) == []
