"""Our walk over a module is torch's own, and calls nothing that a user may have overridden."""

import torch
from torch import nn

from flatline.sensors import tree


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.BatchNorm1d(2), nn.Linear(2, 2)]))
        self.again = self.inner[0]
        self.out = nn.Linear(2, 2)
        self.out.weight = self.inner[0].weight
        self.none = None
        self.register_parameter("missing", None)
        self.scale = nn.Parameter(torch.ones(1))


class Counting(Tied):
    calls = 0

    def named_modules(self, *args, **kwargs):
        Counting.calls += 1
        return super().named_modules(*args, **kwargs)

    def named_parameters(self, *args, **kwargs):
        Counting.calls += 1
        return super().named_parameters(*args, **kwargs)


def test_walks_as_torch_does():
    for model in (
        Tied(),
        nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
        torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU())),
    ):
        names = [name for name, _ in model.named_modules()]
        assert [name for name, _ in tree.named_modules(model)] == names
        assert [name for name, _ in tree.named_parameters(model)] == [name for name, _ in model.named_parameters()]
        assert len(list(tree.buffers(model))) == len(list(model.buffers()))


def test_identities_are_the_same():
    model = Tied()
    assert all(a is b for a, b in zip(tree.parameters(model), model.parameters(), strict=True))
    assert all(a is b for a, b in zip(tree.modules(model), model.modules(), strict=True))
    assert [p.shape for p in tree.own_parameters(model)] == [torch.Size([1])]


def test_calls_nothing_of_the_users():
    model = Counting()
    Counting.calls = 0
    assert list(tree.named_modules(model))
    assert list(tree.named_parameters(model))
    assert Counting.calls == 0
