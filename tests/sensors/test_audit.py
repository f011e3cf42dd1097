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


def adapted(zero, frozen=True):
    """An audit of a head on a frozen layer with two matrices beside it."""

    def run():
        body, down, up, head = (
            nn.Linear(6, 6),
            nn.Linear(6, 2, bias=False),
            nn.Linear(2, 6, bias=False),
            nn.Linear(6, 3),
        )
        model = nn.Sequential(body, nn.Sequential(down, up), head)
        nn.init.zeros_(up.weight) if zero else None
        for part in (body, down, up):
            part.requires_grad_(not frozen)
        train(model, torch.optim.SGD(head.parameters(), 0.1))

    return {p.name: p.zero for p in last_audit(run).parameters}


def test_a_frozen_matrix_of_zeros():
    assert [name for name, zero in adapted(zero=True).items() if zero] == ["1.1.weight"]
    assert not any(adapted(zero=False).values())
    assert not any(adapted(zero=True, frozen=False).values())


def test_a_group_that_is_added_late_is_looked_at():
    def run():
        body, head = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 3)
        model = nn.Sequential(body, head)
        optimizer = torch.optim.SGD(head.parameters(), 0.1)
        train(model, optimizer, 400)
        body.requires_grad_(True)
        optimizer.add_param_group({"params": list(body.parameters())})
        train(model, optimizer, 40)

    assert all(p.optimizers for p in last_audit(run).parameters)
