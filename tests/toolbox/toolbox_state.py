"""Everything that a probe could have changed, as one value."""

from __future__ import annotations

import copy
import random

import numpy
import torch
from torch import nn


class Net(nn.Module):
    """Norm statistics, dropout, a count that forward replaces, random numbers in forward, a frozen layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(16, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.first.bias.requires_grad_(False)

    def forward(self, x):
        self.calls = self.calls + 1
        random.random()
        numpy.random.rand()
        return self.head(self.drop(torch.relu(self.norm(self.first(x)))))


def loop(seed=0):
    """A model in the middle of its training: gradients, optimizer state, a mixed mode."""
    torch.manual_seed(seed), random.seed(seed), numpy.random.seed(seed)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    batch = torch.randn(8, 4), torch.arange(8) % 3
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
    model.drop.eval()
    return model, optimizer, batch


def everything(model, optimizer=None):
    """A copy of all state, and the identities of what must stay the same object."""
    parts = {f"p {name}": p.detach().clone() for name, p in model.named_parameters()}
    parts |= {f"b {name}": b.clone() for name, b in model.named_buffers()}
    parts |= {f"g {name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    parts |= {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": str(numpy.random.get_state())}
    parts["modes"] = [module.training for module in model.modules()]
    parts["required"] = [p.requires_grad for p in model.parameters()]
    parts["ids"] = [id(t) for t in (*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters()))]
    if optimizer is not None:
        parts["optimizer"] = copy.deepcopy(optimizer.state_dict())
        parts["attributes"] = {k: v for k, v in vars(optimizer).items() if k not in ("state", "param_groups")}
    return parts


def same(a, b):
    """Equal bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
