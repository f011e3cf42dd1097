"""An optimizer of the script's own, with its mean of squared gradients under any name."""

import pytest
import torch
from watching import seen

from flatline.events import OptimizerStateSampled

HALF = torch.float16


class Own(torch.optim.Optimizer):
    """One rule for one parameter, given as a function that changes its state and returns the update."""

    def __init__(self, parameters, rule, eps=1e-8):
        super().__init__(parameters, {"lr": 1e-3, "eps": eps})
        self.rule = rule

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * self.rule(self.state[p], p.grad, group["eps"]))


def second(state, gradient, eps):
    """As Adam, with a share of the square that is 0 in float16."""
    state.setdefault("spread", torch.zeros_like(gradient, dtype=HALF))
    state["spread"] = (0.99 * state["spread"].float() + 0.01 * gradient.square()).to(HALF)
    return gradient / (state["spread"].float().sqrt() + eps)


def root(state, gradient, eps):
    state["root"] = gradient.abs().to(HALF)
    return gradient / (state["root"].float() + eps)


def momentum(state, gradient, eps):
    state.setdefault("residue", torch.zeros_like(gradient, dtype=HALF))
    state["velocity"] = (0.9 * state.get("velocity", torch.zeros_like(gradient)).float() + gradient).to(HALF)
    return state["velocity"].float()


def wide(state, gradient, eps):
    state["spread"] = 0.01 * gradient.square()
    return gradient / (state["spread"].sqrt() + eps)


def told(rule, scale=1.0, eps=1e-8):
    def act():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        optimizer = Own(model.parameters(), rule, eps)
        optimizer.zero_grad()
        (scale * (model(torch.randn(32, 16)) - 1.0).square().mean()).backward()
        optimizer.step()

    (event,) = seen(act, OptimizerStateSampled)
    return event


@pytest.mark.parametrize("scale", [1e-3, 0.1], ids=["all of it is 0", "some of it is 0"])
def test_a_mean_of_squares_by_its_values(scale):
    event = told(second, scale)
    assert event.state == "float16"
    assert event.squares_zero > 0.2 * event.squares > 0


@pytest.mark.parametrize("rule", [root, momentum, wide])
def test_what_is_none_of_that_kind(rule):
    assert told(rule, 1e-3).squares == 0


def test_a_step_of_usual_size_under_a_large_eps():
    assert told(second, 1e-3, eps=0.01).squares == 0
