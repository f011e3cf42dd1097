"""An optimizer that calls its closure several times within one step."""

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import OptimizerStepped

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
Y = torch.sin(X[:, :1])


def stepped(zeroing, *, parts=1, search="strong_wolfe"):
    def run():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=6, line_search_fn=search)

        def closure():
            if zeroing == "inside":
                optimizer.zero_grad()
            elif zeroing == "by hand":
                for parameter in net.parameters():
                    parameter.grad = None
            total = 0.0
            for part in range(parts):
                loss = nn.functional.mse_loss(net(X[part::parts]), Y[part::parts]) / parts
                loss.backward()
                total += loss.detach()
            return total

        for _ in range(4):
            if zeroing == "outside":
                optimizer.zero_grad()
            optimizer.step(closure)

    return [event.leftover for event in seen(run, OptimizerStepped)]


@pytest.mark.parametrize("search", ["strong_wolfe", None])
def test_zeroed_once_before_the_step(search):
    assert all(stepped("outside", search=search))


@pytest.mark.parametrize("zeroing", ["inside", "by hand"])
@pytest.mark.parametrize("parts", [1, 4])
def test_near_miss_zeroed_at_each_call(zeroing, parts):
    assert not any(stepped(zeroing, parts=parts))
