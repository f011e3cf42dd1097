"""Our walk over a module is torch's own, and calls nothing that a user may have overridden."""

import torch
from torch import nn

import flatline
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
        self.register_buffer("kept", torch.ones(1))
        self.register_buffer("left_out", torch.ones(1), persistent=False)


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
        assert [name for name, _ in tree.named_buffers(model)] == [name for name, _ in model.named_buffers()]
        assert sorted(tree.stored_names(model)) == sorted(model.state_dict())


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


WALKS = (
    "named_modules",
    "modules",
    "children",
    "named_children",
    "parameters",
    "named_parameters",
    "buffers",
    "state_dict",
)


TOLD = []


class Telling(nn.Sequential):
    """Tells of all walks that are asked of it, and of its parts."""

    def __getattribute__(self, name):
        if name in WALKS:
            TOLD.append(name)
        return super().__getattribute__(name)


def trained():
    model = Telling(nn.Linear(4, 4), Telling(nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, 2))
    optimizer = torch.optim.SGD([p for part in model for p in vars(part)["_parameters"].values()], lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 2).backward()
        optimizer.step()
    model.load_state_dict({}, strict=False)


def test_no_sensor_calls_a_walk_of_the_users():
    TOLD.clear()
    trained()
    by_itself = [*TOLD]
    TOLD.clear()
    with flatline.watch() as run:
        trained()
    assert by_itself == TOLD
    assert run._session.notes == []


class Empty(torch.optim.SGD):
    """Has a length, which is 0."""

    def __len__(self):
        return 0


def test_an_optimizer_that_is_empty_is_followed():
    model = nn.Linear(4, 2)
    optimizer = Empty(model.parameters(), lr=0.1)
    with flatline.watch(model, optimizer) as run:
        for step in range(60):
            model.weight.requires_grad_(step < 40)
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        (state,) = run._session.sensors.loop.states
        assert state.steps == 60
        assert state._trainable != {}
        assert run._session.notes == []
