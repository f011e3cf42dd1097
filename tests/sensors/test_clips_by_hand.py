"""Gradients that the script clips itself."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from watching import seen

from flatline.events import ForwardObserved, GradientNotFinite, OptimizerStepped, StepMissing

X = torch.randn(64, 12, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (64,), generator=torch.Generator().manual_seed(1))


def trained(change, steps=6, final=nn.Identity, killed=None):
    def run():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4), final())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(steps):
            if step == killed:
                nn.init.constant_(model[2].bias.data, -100.0)
            optimizer.zero_grad()
            loss = functional.mse_loss(model(X), X[:, :4]) if killed else functional.cross_entropy(model(X), Y)
            loss.backward()
            change([p.grad for p in model.parameters()])
            optimizer.step()

    return run


def to_one_norm(gradients, most=1e-3):
    norm = torch.stack([g.norm() for g in gradients]).norm()
    for gradient in gradients:
        gradient.mul_(min(1.0, most / (float(norm) + 1e-6)))


def test_a_norm_that_is_always_the_same():
    events = seen(trained(to_one_norm), OptimizerStepped)
    assert all(event.rescaled_by_hand for event in events)
    clips = [event.clip_by_hand for event in events]
    assert clips[0] is None  # one norm is not yet a threshold
    assert [clip.threshold for clip in clips[1:]] == pytest.approx([1e-3] * (len(clips) - 1), rel=0.01)
    assert all(0.05 < clip.norm < 5 for clip in clips[1:])


def halve(gradients):
    for gradient in gradients:
        gradient.div_(2)


def grow(gradients):
    norm = torch.stack([g.norm() for g in gradients]).norm()
    for gradient in gradients:
        gradient.mul_(50 / norm)


@pytest.mark.parametrize("change", [halve, grow, lambda gradients: to_one_norm(gradients, 1e6)])
def test_near_miss_another_change(change):
    assert {event.clip_by_hand for event in seen(trained(change), OptimizerStepped)} == {None}


def test_a_matrix_without_gradient_is_looked_at():
    """The answers died between two looks, which are far apart by then."""
    events = seen(trained(lambda gradients: None, steps=150, final=nn.ReLU, killed=100), ForwardObserved)
    late = [event for event in events if 100 < event.step < 130 and event.dead]
    assert late
    assert late[-1].dead[-1].dead == late[-1].dead[-1].units == 4


def scaled(change, *, before):
    """Clipping before or behind unscale_."""

    def run():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(5):
            optimizer.zero_grad()
            scaler.scale(functional.cross_entropy(model(X), Y)).backward()
            gradients = [p.grad for p in model.parameters()]
            if before:
                change(gradients)
            scaler.unscale_(optimizer)
            if not before:
                change(gradients)
            scaler.step(optimizer)
            scaler.update()

    return [event.clip_by_hand for event in seen(run, OptimizerStepped)]


def test_clipping_by_hand_before_unscale():
    clips = [clip for clip in scaled(to_one_norm, before=True) if clip is not None]
    assert len(clips) >= 3
    assert all(clip.scaled and clip.scale == 1024.0 and clip.norm > 10 for clip in clips)


def test_near_miss_clipping_by_hand_behind_unscale():
    assert not any(clip is not None and clip.scaled for clip in scaled(to_one_norm, before=False))


def guarded(loss_of, steps=30):
    """A loop that leaves a step out where the norm is not finite."""

    def run():
        torch.manual_seed(0)
        model = nn.Linear(12, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(steps):
            loss = loss_of(model(X), step)
            optimizer.zero_grad()
            loss.backward()
            if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 5.0)):
                optimizer.step()

    return seen(run, GradientNotFinite, StepMissing)


def tone_mapped(scores, step):
    return torch.where(scores > 0.003, scores ** (1 / 2.4), 12.9 * scores).square().mean()


def test_steps_left_out_for_gradients_that_are_no_numbers():
    (event,) = guarded(tone_mapped)
    assert isinstance(event, GradientNotFinite)
    assert (event.operation, event.detail) == ("pow", "a number below 0 to the power 0.417")
    assert event.bad == event.total == 2


def test_near_miss_one_step_left_out():
    assert guarded(lambda scores, step: tone_mapped(scores, step) if step == 3 else scores.square().mean()) == []


def sample_by_sample(use):
    """Gradients of single samples, with something done to each before the next zero_grad."""

    def run():
        torch.manual_seed(0)
        model = nn.Linear(12, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            for x in X[:6]:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                use(model)
            optimizer.step()

    return seen(run, StepMissing)


def test_gradients_that_are_thrown_away(monkeypatch):
    monkeypatch.setattr("flatline.sensors.optimizers.keeps_gradients", lambda *places: False)
    assert len(sample_by_sample(lambda model: None)) > 0


def test_near_miss_gradients_that_are_kept():
    kept = []
    assert sample_by_sample(lambda model: kept.append(model.weight.grad.clone())) == []
    assert len(kept) == 18
