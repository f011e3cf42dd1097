"""What a block may touch, and how it is put back."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from toolbox_state import everything, loop, same
from torch import nn

from flatline.toolbox import (
    check_activations,
    find_non_finite,
    gradient_health,
    loss_slice,
    lr_range_test,
    overfit_one_batch,
    preserved,
    sharpness,
)


def disturb(model, optimizer, batch):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 7.0
    optimizer.add_param_group({"params": [torch.zeros(2, requires_grad=True)]})
    model.eval()
    model.requires_grad_(False)
    model.head.weight.data.fill_(float("nan"))
    model.norm.running_mean.fill_(9)
    torch.rand(3), random.random(), numpy.random.rand()


def test_everything_comes_back():
    model, optimizer, batch = loop()
    before = everything(model, optimizer)
    with preserved(model, optimizer):
        assert all(p.grad is None for p in model.parameters())
        disturb(model, optimizer, batch)
        assert not same(before, everything(model, optimizer))
    assert same(before, everything(model, optimizer))


def test_comes_back_after_an_exception():
    model, optimizer, batch = loop()
    before = everything(model, optimizer)
    with pytest.raises(ZeroDivisionError), preserved(model, optimizer):
        disturb(model, optimizer, batch) or 1 / 0
    assert same(before, everything(model, optimizer))


def test_training_goes_on_as_if_nothing_had_been():
    ends = []
    for probed in (False, True):
        model, optimizer, batch = loop()
        if probed:
            with preserved(model, optimizer):
                disturb(model, optimizer, batch)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
            optimizer.step()
        ends.append(everything(model, optimizer))
    for end in ends:
        del end["ids"], end["attributes"]
    assert same(*ends)


@pytest.mark.parametrize("change", [nn.Module.half, nn.Module.double, lambda model: model.to("meta")])
def test_a_cast_is_undone(change):
    model, optimizer, _ = loop()
    before = everything(model, optimizer)
    with preserved(model, optimizer):
        change(model)
    assert same(before, everything(model, optimizer))


def test_lbfgs_comes_back():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = torch.randn(8, 3)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    before = everything(model, optimizer)
    with preserved(model, optimizer):
        optimizer.step(closure)
    assert same(before, everything(model, optimizer))


def test_a_scheduler_still_knows_what_was_called():
    model, _, batch = loop()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with preserved(model, optimizer):
        model(batch[0]).sum().backward()
        optimizer.step()
    assert not getattr(optimizer, "_opt_called", False)


def test_a_loader_draws_the_same_order_again():
    data = torch.utils.data.TensorDataset(torch.arange(20))
    loader = torch.utils.data.DataLoader(data, shuffle=True, generator=torch.Generator().manual_seed(3))
    with preserved(nn.Linear(1, 1), batches=loader):
        first = [int(batch[0]) for batch in loader]
    assert [int(batch[0]) for batch in loader] == first


def test_tied_weights_and_shared_parameters():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with preserved(model):
        model[0].weight.data.zero_()
    assert model[1].weight is model[0].weight
    assert bool(model[0].weight.abs().sum() > 0)


def test_lazy_parameters_are_refused():
    with pytest.raises(ValueError, match="call it on one batch first"), preserved(nn.LazyLinear(3)):
        pass


class Penalty(nn.Module):
    """A loss that takes gradients of its own."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        return slope.norm(dim=1)


class Recomputed(nn.Sequential):
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)


UNUSUAL = {
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "LSTM": lambda: nn.LSTM(4, 4, 2, dropout=0.1),
    "instance norm": lambda: nn.InstanceNorm1d(5, track_running_stats=True, affine=True),
    "gradient penalty": Penalty,
    "checkpointed": lambda: Recomputed(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 2)),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8),
}
PROBES = {
    "overfit": lambda m, o, x, f: overfit_one_batch(m, x, f, o, steps=5),
    "sweep": lambda m, o, x, f: lr_range_test(m, o, [x], f, steps=5),
    "gradients": lambda m, o, x, f: gradient_health(m, x, f),
    "activations": lambda m, o, x, f: check_activations(m, x, f),
    "slice": lambda m, o, x, f: loss_slice(m, x, f, points=3),
    "sharpness": lambda m, o, x, f: sharpness(m, x, f),
    "replay": lambda m, o, x, f: find_non_finite(m, x, f),
}


def mean_square(model, x):
    output = model(x)
    return ((output[0] if isinstance(output, tuple) else output) - 1).square().mean()


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("probe", PROBES)
def test_probes_restore_unusual_models(kind, probe):
    torch.manual_seed(0)
    model = UNUSUAL[kind]()
    optimizer, x = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.randn(6, 5, 4)
    if kind == "gradient penalty":
        x = x[0]
    mean_square(model, x).backward()
    optimizer.step()
    before = everything(model, optimizer)
    PROBES[probe](model, optimizer, x, mean_square)
    assert same(before, everything(model, optimizer))
