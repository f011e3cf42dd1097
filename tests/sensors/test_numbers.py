"""Every number of the sensor against a second, naive implementation, over many kinds of models."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

import flatline
from flatline.events import NumbersSampled

SEED = 5


def events_of(run, kind=NumbersSampled):
    """Events of one kind that the engine of a run is shown from here on."""
    engine, seen = run._session.engine, []
    show = engine.emit

    def emit(event):
        if isinstance(event, kind):
            seen.append(event)
        show(event)

    engine.emit = emit
    return seen


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Bag(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(50, 8, sparse=sparse), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.bag(x))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4, dtype=torch.complex64))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight).abs()


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(())), nn.Linear(8, 4)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.head(x) * self.scale


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(48, 4))


def frozen():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model[0].requires_grad_(False)
    return model


def channels_last():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 4))
    return model.to(memory_format=torch.channels_last)


def sharded():
    """Its weights are distributed tensors, over one process."""
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    return parallelize_module(model, init_device_mesh("cpu", (1,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})


def floats(*shape):
    return lambda: torch.randn(*shape)


def words():
    return torch.randint(0, 50, (16, 5))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)), floats(16, 8)),
    "cnn": (channels_last, floats(4, 3, 8, 8)),
    "lstm": (Recurrent, floats(8, 5, 8)),
    "transformer": (transformer, floats(4, 6, 8)),
    "embedding bag": (lambda: Bag(sparse=False), words),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 16)), nn.Tanh(), nn.Linear(16, 4)),
        floats(16, 8),
    ),
    "distributed": (sharded, floats(16, 8)),
    "complex": (Complex, floats(16, 8)),
    "frozen part": (frozen, floats(16, 8)),
    "scalar and unused": (Scalar, floats(16, 8)),
    "double": (lambda: nn.Linear(8, 4).double(), lambda: torch.randn(16, 8).double()),
    "bfloat16": (lambda: nn.Linear(8, 4).bfloat16(), lambda: torch.randn(16, 8).bfloat16()),
}


def real(tensor):
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    tensor = tensor.detach()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def rms(tensor):
    values = [float(value) for value in real(tensor).double().reshape(-1)]
    return (sum(value * value for value in values) / len(values)) ** 0.5


def trained(name, optimizer_of, steps):
    """Each step's events, and what the weights and gradients were around it, kept whole."""
    torch.manual_seed(SEED)
    build, batch = MODELS[name]
    with flatline.watch() as run:
        seen = events_of(run)
        model = build()
        optimizer = optimizer_of(model)
        around = []
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(batch()).float(), torch.randint(0, 4, (len(batch()),))).backward()
            before = {n: p.detach().clone() for n, p in model.named_parameters()}
            optimizer.step()
            after = {n: p.detach().clone() for n, p in model.named_parameters()}
            gradients = {n: p.grad for n, p in model.named_parameters()}
            around.append((before, after, gradients))
    assert run._session.notes == []
    return seen, around


@pytest.fixture(scope="module", autouse=True)
def alone():
    """No process group is left to other tests."""
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_gradients(name):
    seen, around = trained(name, lambda model: torch.optim.Adam(model.parameters(), lr=1e-2), 5)
    assert [event.step for event in seen] == [1, 2, 3, 4, 5]
    for event, (_, after, gradients) in zip(seen, around, strict=True):
        assert {layer.name for layer in event.layers} == set(after)
        for layer in event.layers:
            assert layer.weight_rms == pytest.approx(rms(after[layer.name]), rel=1e-3)
            gradient = gradients[layer.name]
            assert layer.gradient_rms == pytest.approx(0.0 if gradient is None else rms(gradient), rel=1e-3, abs=1e-12)
            assert layer.elements == after[layer.name].numel()
            assert layer.matrix is (after[layer.name].dim() >= 2)


@pytest.mark.parametrize("name", MODELS)
def test_updates(name):
    """A small tensor is compared whole; of a large one, some elements stand for all."""
    seen, around = trained(name, lambda model: torch.optim.SGD(model.parameters(), lr=0.3), 4)
    for event, (before, after, _) in zip(seen, around, strict=True):
        for layer in event.layers:
            old, new = real(before[layer.name]).double(), real(after[layer.name]).double()
            whole = float((new - old).norm() / old.norm()) if float(old.norm()) else None
            if torch.equal(old, new):
                assert layer.update_ratio == 0.0
            elif old.numel() <= 32 and whole is not None:
                assert layer.update_ratio == pytest.approx(whole, rel=1e-3)
            elif whole is not None and layer.kind != "EmbeddingBag":
                assert whole / 4 < layer.update_ratio < whole * 4


def test_sparse_gradients():
    MODELS["sparse"] = lambda: Bag(sparse=True), words
    seen, around = trained("sparse", lambda model: torch.optim.SGD(model.parameters(), lr=0.1), 3)
    del MODELS["sparse"]
    for event, (_, _, gradients) in zip(seen, around, strict=True):
        (bag,) = [layer for layer in event.layers if layer.name == "bag.weight"]
        dense = gradients["bag.weight"].to_dense()
        assert bag.gradient_rms == pytest.approx(rms(dense), rel=1e-3)


def test_turn_is_the_cosine_of_two_updates():
    """Small tensors only: every element is compared."""
    torch.manual_seed(SEED)
    with flatline.watch() as run:
        seen = events_of(run)
        model = nn.Linear(4, 4)
        optimizer, weights = torch.optim.SGD(model.parameters(), lr=0.5), []
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
            weights.append(torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()]))
    updates = [(b - a).double() for a, b in pairwise(weights)]
    naive = [float(F.cosine_similarity(a, b, dim=0)) for a, b in pairwise(updates)]
    assert seen[0].turn is None
    assert [event.turn for event in seen[2:]] == pytest.approx(naive, abs=1e-4)


@pytest.mark.parametrize("drawn_anew", [False, True])
def test_kept_is_the_cosine_of_what_a_step_left_and_what_the_next_one_found(drawn_anew):
    torch.manual_seed(SEED)
    model = nn.Linear(8, 4, bias=False)  # 32 elements: all of them are compared
    optimizer, naive, sizes = torch.optim.SGD(model.parameters(), lr=0.1), [], []
    with flatline.watch() as run:
        seen, left = events_of(run), None
        for _ in range(4):
            if drawn_anew:
                model.reset_parameters()
            if left is not None:
                sizes.append(float(model.weight.detach().norm() / left.norm()))
                naive.append(float(F.cosine_similarity(left, model.weight.detach().flatten(), 0)))
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().sum().backward()
            optimizer.step()
            left = model.weight.detach().flatten().clone()
    assert seen[0].layers[0].kept is None
    assert [event.layers[0].kept for event in seen[1:]] == pytest.approx(naive, abs=1e-4)
    assert [event.layers[0].scaled for event in seen[1:]] == pytest.approx(sizes, abs=1e-4)


@pytest.mark.parametrize(
    ("behind", "amount"),
    [
        (lambda w: w.copy_(w.sign() * F.relu(w.abs() - 0.01)), 0.01),
        (lambda w: w.copy_(F.softshrink(w, 0.002)), 0.002),
        (lambda w: w.mul_(0.99), 0.0),
        (lambda w: w.add_(0.01), 0.0),
        (lambda w: w, 0.0),
        (lambda w: w.zero_(), None),
    ],
)
def test_what_is_taken_off_every_weight_between_two_steps(behind, amount):
    torch.manual_seed(SEED)
    with flatline.watch() as run:
        seen = events_of(run)
        model = nn.Linear(8, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                behind(model.weight)
    first, *later = [event.layers[0].taken for event in seen]
    assert first is None
    assert later == [amount if not amount else pytest.approx(amount, rel=1e-3)] * 3


def test_rates_and_decay_of_each_group():
    with flatline.watch() as run:
        seen = events_of(run)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1].parameters(), "weight_decay": 0.3}]
        optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    layers = {layer.name: layer for layer in seen[0].layers}
    assert (layers["0.weight"].learning_rate, layers["0.weight"].weight_decay) == (0.1, 0.0)
    assert (layers["1.bias"].learning_rate, layers["1.bias"].weight_decay) == (0.01, 0.3)


def test_sampling_thins_and_comes_in_pairs():
    with flatline.watch(budget=1.0) as run:
        seen = events_of(run)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(600):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    steps = [event.step for event in seen]
    assert steps[:20] == list(range(1, 21))
    assert len(steps) < 250
    late = [step for step in steps if step > 100]
    paired = [step for step in late if step - 1 in late or step + 1 in late]
    assert len(paired) > 0.9 * len(late)  # a step under close look stands alone


def test_watching_leaves_the_numbers_alone():
    """Norms, views and copies: no random number is drawn, no weight is touched."""

    def train():
        torch.manual_seed(SEED)
        model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(), nn.Linear(64, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(60):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).pow(2).mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()

    alone, state = train()
    with flatline.watch():
        watched, watched_state = train()
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))
    assert torch.equal(state, watched_state)


class Positions(nn.Module):
    """A parameter of the model itself, which is added far below its last layer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.places = nn.Parameter(torch.zeros(3, 4))

    def forward(self, x):
        return self.last(self.first(x + self.places).relu()).mean(1)


def test_a_parameter_of_the_model_itself_has_no_place_in_the_depth():
    model = Positions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    with flatline.watch() as run:
        seen = events_of(run)
        for _ in range(3):
            F.cross_entropy(model(torch.randn(6, 3, 4)), torch.tensor([0, 1] * 3)).backward()
            optimizer.step()
    depths = {layer.name: layer.depth for layer in seen[-1].layers}
    assert 0 <= depths["first.weight"] < depths["last.weight"]
    assert depths["places"] == -1
