"""Which graphs outlive their step, in small loops."""

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import LossesKept


def trained(after, steps=60):
    def loop():
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        kept = []
        for step in range(steps):
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after(kept, step, model, loss)

    return loop


def test_losses_that_are_kept():
    (event,) = seen(trained(lambda kept, step, model, loss: kept.append(loss)), LossesKept)
    assert event.what == "losses"
    assert event.alive == event.seen == 8


def test_validation_losses_that_are_kept_with_their_graphs():
    (event,) = seen(trained(lambda kept, step, model, loss: kept.append(model(torch.ones(4, 4)).mean())), LossesKept)
    assert event.what == "outputs"
    assert event.nodes > 3


def residual(model, x):
    """A derivative by the inputs: the model's last operation is not under it."""
    x = x.requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return slope.square().mean()


def physics(watch):
    """Training and a monitor call one function, which calls the model in one line."""

    def loop():
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        kept = []
        for _ in range(60):
            optimizer.zero_grad()
            residual(model, torch.randn(8, 4)).backward()
            optimizer.step()
            watch(kept, model)

    return loop


def test_residuals_of_a_monitor_that_are_kept():
    (event,) = seen(physics(lambda kept, model: kept.append(residual(model, torch.ones(4, 4)))), LossesKept)
    assert (event.what, event.alive) == ("outputs", 8)


def the_newest(kept, model):
    kept[:] = [residual(model, torch.ones(4, 4))]


WATCHED = {
    "a number": lambda kept, model: kept.append(residual(model, torch.ones(4, 4)).item()),
    "detached": lambda kept, model: kept.append(residual(model, torch.ones(4, 4)).detach()),
    "the newest": the_newest,
    "the points": lambda kept, model: kept.append(torch.ones(4, 4).requires_grad_()),
}


@pytest.mark.parametrize("name", WATCHED)
def test_near_miss_residuals_of_a_monitor(name):
    assert seen(physics(WATCHED[name]), LossesKept) == []


def test_near_miss_features_that_all_steps_share():
    """The graph of a part that is frozen in time is one and the same."""

    def loop():
        body, head = (
            nn.Sequential(nn.Linear(4, 8), nn.Tanh()),
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)),
        )
        optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
        features = body(torch.randn(16, 4))
        for _ in range(60):
            optimizer.zero_grad()
            head(features).square().mean().backward(retain_graph=True)
            optimizer.step()

    assert seen(loop, LossesKept) == []


def evaluated(keep, epochs=10):
    """A validation in eval mode after every 30 steps: its passes lie between close looks."""

    def loop():
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        kept = []
        for _ in range(epochs):
            model.train()
            for _ in range(30):
                optimizer.zero_grad()
                model(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()
            model.eval()
            for _ in range(3):
                keep(kept, model(torch.ones(4, 4)).mean())

    return loop


def test_losses_of_rare_validations_that_are_kept():
    (event,) = seen(evaluated(lambda kept, loss: kept.append(loss)), LossesKept)
    assert event.what == "outputs"
    assert event.alive == 8


def the_last_epoch(kept, loss):
    kept.append(loss)
    del kept[:-3]


@pytest.mark.parametrize("keep", [the_last_epoch, lambda kept, loss: kept.append(loss.item())])
def test_near_miss_rare_validations(keep):
    assert seen(evaluated(keep), LossesKept) == []


def test_near_miss_no_hook_is_left():
    from torch.nn.modules import module as hooks

    before = len(hooks._global_forward_hooks)
    seen(evaluated(lambda kept, loss: kept.append(loss), epochs=3), LossesKept)
    assert len(hooks._global_forward_hooks) == before


def no_grad(kept, step, model, loss):
    with torch.no_grad():
        kept.append(model(torch.ones(4, 4)).mean())


def few(kept, step, model, loss):
    kept.append(model(torch.ones(4, 4)))
    del kept[:-4]


NEAR = {
    "numbers": lambda kept, step, model, loss: kept.append(loss.item()),
    "detached": lambda kept, step, model, loss: kept.append(model(torch.ones(4, 4)).detach()),
    "without gradients": no_grad,
    "the last few": few,
}


@pytest.mark.parametrize("name", NEAR)
def test_near_miss(name):
    assert seen(trained(NEAR[name]), LossesKept) == []


def test_near_miss_one_step_of_many_passes():
    def loop():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(12):
            values = [model(torch.randn(2, 4)).mean() for _ in range(20)]
            optimizer.zero_grad()
            torch.stack(values).mean().backward()
            optimizer.step()

    assert seen(loop, LossesKept) == []
