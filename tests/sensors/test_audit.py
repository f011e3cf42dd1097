"""Does an optimizer hold what the loss reaches?"""

import torch
from torch import nn
from watching import seen

from flatline.events import ParametersAudited


def net():
    """Four tensors."""
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def loaded(model):
    """Another object with its weights."""
    other = net()
    other.load_state_dict(model.state_dict())
    return other


def train(model, optimizer, count=8):
    """Steps on random numbers."""
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()


def last_audit(run):
    """The newest."""
    return seen(run, ParametersAudited)[-1]


def test_a_model_that_was_replaced_after_an_earlier_training():
    def run():
        base = net()
        first = torch.optim.Adam(base.parameters())
        train(base, first)
        model = net()
        second = torch.optim.Adam(model.parameters())
        train(loaded(base), second)

    audit = last_audit(run)
    assert audit.hollow
    assert (audit.held, audit.stale, audit.twins, len(audit.idle)) == (4, 4, 4, 1)


def test_the_optimizer_of_the_first_fold_with_the_model_of_the_second():
    def run():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        train(model, optimizer, 60)
        train(net(), optimizer, 60)

    audit = last_audit(run)
    assert audit.hollow
    assert (audit.held, audit.twins) == (4, 4)


def test_near_miss_gradients_that_are_copied_to_the_weights_of_an_optimizer():
    def run():
        model, master = net(), net()
        optimizer = torch.optim.SGD(master.parameters(), 0.1)
        for _ in range(8):
            model.zero_grad()
            model(torch.randn(5, 6)).square().mean().backward()
            for mine, given in zip(master.parameters(), model.parameters(), strict=True):
                mine.grad = given.grad
            optimizer.step()
            optimizer.zero_grad()

    audit = last_audit(run)
    assert not audit.hollow
    assert (audit.held, audit.stale, audit.twins) == (4, 0, 0)


def test_near_miss_gradients_that_a_closure_makes():
    def run():
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
        x = torch.randn(5, 6)

        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        for _ in range(8):
            optimizer.step(closure)
            optimizer.zero_grad()

    assert not last_audit(run).hollow
