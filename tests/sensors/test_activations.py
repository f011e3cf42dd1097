"""Every number of the activation sensor against a second, naive computation."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flatline.events import ActivationsSampled, FirstCrossEntropy, ForwardObserved
from flatline.sensors.activations import spread
from flatline.sensors.live import LiveSensors


class Watched:
    """Sensors on, events kept, errors raised."""

    def __enter__(self):
        self.events, self.broken = [], []
        self.sensors = LiveSensors(
            self.events.append, wants=lambda event: True, budget=1.0, on_broken=lambda *what: self.broken.append(what)
        )
        self.sensors.attach()
        return self

    def __exit__(self, *error):
        self.sensors.detach()
        assert self.broken == [] or error[0]

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def train(net, *batches, loss=None, lr=0.01):
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=lr)
    for batch in batches:
        optimizer.zero_grad()
        output = net(*batch) if isinstance(batch, tuple) else net(batch)
        (loss(output) if loss else output.square().mean()).backward()
        optimizer.step()


def naive(net, *batch):
    """Path -> output of every module without children, by hooks of the test's own."""
    outputs, handles = {}, []

    def keep(name):
        def hook(module, args, output):
            output = output[0] if isinstance(output, tuple) else output
            outputs.setdefault(name, output.detach().clone())

        return hook

    for name, module in net.named_modules():
        if next(module.children(), None) is None:
            handles.append(module.register_forward_hook(keep(name)))
    net(*batch)
    for handle in handles:
        handle.remove()
    return outputs


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(20, 8), nn.LSTM(8, 6, batch_first=True)
        self.head = nn.Linear(6, 5)

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0])


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(20, 8), nn.Linear(8, 2)

    def forward(self, tokens):
        return self.out(self.bag(tokens))


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)
    )


def transformer():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 2))


def weight_normed():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.Sigmoid(), nn.Linear(8, 2))


def half_frozen():
    net = cnn()
    net[0].requires_grad_(False)
    return net


TOKENS = torch.randint(0, 20, (4, 7), generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
NETS = {
    "cnn": (cnn, IMAGES),
    "lstm": (Tagger, TOKENS),
    "transformer": (transformer, torch.randn(3, 9, 16, generator=torch.Generator().manual_seed(2))),
    "embedding bag": (Bag, TOKENS),
    "weight norm": (weight_normed, torch.randn(12, 6, generator=torch.Generator().manual_seed(3))),
    "frozen parts": (half_frozen, IMAGES),
}


@pytest.mark.parametrize("name", NETS)
def test_moments_are_those_of_the_outputs(name):
    make, batch = NETS[name]
    torch.manual_seed(0)
    net = make()
    expected = naive(net, batch)
    with Watched() as watched:
        train(net, batch)
    (event,) = watched.of(ActivationsSampled)
    assert event.untrained
    assert {layer.layer for layer in event.layers} == set(expected)
    for layer in event.layers:
        output = expected[layer.layer].double()
        assert layer.mean == pytest.approx(output.mean().item(), abs=1e-5)
        assert layer.std == pytest.approx(output.std(unbiased=False).item(), rel=1e-4, abs=1e-6)
        assert layer.zeros == pytest.approx((output == 0).double().mean().item(), abs=1e-6)
        assert (layer.signal is None) == (not layer.weighted)
        if layer.signal is None:
            continue
        samples = output.flatten(1)
        signal = samples.std(dim=0, unbiased=False).square().mean().sqrt().item()
        assert layer.signal == pytest.approx(signal, rel=0.3 if samples.shape[1] > 48 else 1e-4, abs=1e-6)


def test_saturation_is_counted_near_the_limits():
    net = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Tanh())
    with torch.no_grad():
        net[0].weight.mul_(30)
        net[2].weight.mul_(10)
    batch = torch.randn(50, 4)
    expected = naive(net, batch)
    with Watched() as watched:
        train(net, batch)
    layers = {layer.layer: layer for layer in watched.of(ActivationsSampled)[0].layers}
    sigmoid, tanh = expected["1"], expected["3"]
    assert layers["1"].saturated == pytest.approx(((sigmoid < 0.01) | (sigmoid > 0.99)).float().mean().item())
    assert layers["3"].saturated == pytest.approx((tanh.abs() > 0.99).float().mean().item())
    assert layers["0"].saturated == 0.0


def test_gain_is_that_of_the_weights_before_training():
    net = cnn()
    gains = {
        name: (p.square().mean() * p[0].numel()).sqrt().item() for name, p in net.named_parameters() if p.dim() > 1
    }
    with Watched() as watched:
        train(net, IMAGES, IMAGES)
    first, second = watched.of(ActivationsSampled)
    for layer in first.layers:
        assert layer.weighted == (layer.kind in ("Conv2d", "Linear"))
        assert (layer.gain is None) == (not layer.weighted)
        if layer.gain is not None:
            assert layer.gain == pytest.approx(gains[f"{layer.layer}.weight"], rel=1e-4)
    assert not second.untrained
    assert all(layer.gain is None for layer in second.layers)


class OwnLinear(nn.Module):
    """A matrix that has its inputs first, as papers write it, is left alone; torch's order is known."""

    def __init__(self, ins, outs, *, turned=False):
        super().__init__()
        self.turned = turned
        self.weight = nn.Parameter(torch.randn((ins, outs) if turned else (outs, ins)))
        self.bias = nn.Parameter(torch.zeros(outs))

    def forward(self, x):
        return x @ (self.weight if self.turned else self.weight.t()) + self.bias


class OwnConvolution(nn.Module):
    def __init__(self, ins, outs):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(outs, ins, 3, 3))

    def forward(self, x):
        return nn.functional.conv2d(x, self.kernel, padding=1)


def test_layers_of_the_users_have_gains_too():
    net = nn.Sequential(OwnConvolution(1, 4), nn.ReLU(), nn.Flatten(), OwnLinear(256, 5), OwnLinear(5, 2, turned=True))
    images = torch.randn(6, 1, 8, 8)
    with Watched() as watched:
        train(net, images)
    layers = {layer.layer: layer for layer in watched.of(ActivationsSampled)[0].layers}
    assert layers["0"].gain == pytest.approx(3.0, rel=0.3)
    assert layers["3"].gain == pytest.approx(16.0, rel=0.1)
    assert (layers["4"].gain, layers["4"].weighted) == (None, False)


class Mixed(nn.Module):
    """A bare matrix before the first layer."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.eye(4) * 1e6)
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(x @ self.mix)


def whitened():
    """A fixed map before the first layer that learns."""
    return nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 1))


def probed():
    """A frozen body of several layers."""
    return nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("net", "told"), [(nn.Linear(4, 1), True), (Mixed(), False), (whitened(), False), (probed(), True)]
)
def test_the_first_layer_is_judged_by_raw_inputs_only(net, told):
    with Watched() as watched:
        train(net, torch.randn(8, 4))
    seen = [event.first_layer for event in watched.of(ForwardObserved) if event.first_layer is not None]
    assert bool(seen) == told


def test_a_loaded_model_is_not_untrained():
    net = cnn()
    with Watched() as watched:
        net.load_state_dict(cnn().state_dict())
        train(net, IMAGES)
    assert not watched.of(ActivationsSampled)[0].untrained


def test_batchnorm_tells_how_many_numbers_it_has():
    net = cnn()
    with Watched() as watched:
        train(net, IMAGES, IMAGES[:2])
        net[1].eval()
        train(net, IMAGES)
    norms = [layer for event in watched.of(ActivationsSampled) for layer in event.layers if layer.kind == "BatchNorm2d"]
    assert [(norm.values, norm.items) for norm in norms] == [(5 * 36, 5), (2 * 36, 2), (None, 0)]


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_sample_is_bounded_and_spread(memory):
    tensor = torch.randn(16, 32, 24, 24).contiguous(memory_format=memory)
    numbers = spread(tensor, 4096)
    assert 2048 <= numbers.numel() <= 8192
    assert numbers.std().item() == pytest.approx(1.0, abs=0.1)
    assert spread(tensor[:, ::2, 1:-1]).numel() <= 70_000
    assert spread(torch.arange(10)).tolist() == list(range(10))


# --------------------------------------------------------------------------- the first cross entropy


def first_loss(net, batch, target, **options):
    with Watched() as watched:
        train(net, batch, loss=lambda scores: F.cross_entropy(scores, target, **options))
    return watched.of(FirstCrossEntropy)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"reduction": "sum"}, {"weight": torch.tensor([1.0, 9.0, 0.1])}, {"label_smoothing": 0.3},
        {"ignore_index": 1},
    ],
    ids=str,
)  # fmt: skip
def test_first_cross_entropy_is_the_plain_mean(options):
    torch.manual_seed(0)
    net, batch, target = (
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
        torch.randn(20, 6),
        torch.arange(20) % 3,
    )
    scores = net(batch).detach()
    kept = target != options.get("ignore_index", -100)
    (event,) = first_loss(net, batch, target, **options)
    log_probabilities = scores - scores.exp().sum(1, keepdim=True).log()
    naive_loss = -torch.stack([row[t] for row, t in zip(log_probabilities, target, strict=True)])[kept].mean()
    assert event.value == pytest.approx(naive_loss.item(), rel=1e-4)
    assert event.targets == int(kept.sum())
    assert event.spread == pytest.approx(scores.std(dim=1, unbiased=False).mean().item(), rel=1e-4)
    assert (event.layer, event.classes, event.fan_in) == ("2", 3, 8)


def test_first_cross_entropy_knows_its_layer():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    weight, bias, batch = net[2].weight.detach().clone(), net[2].bias.detach().clone(), torch.randn(20, 6)
    entered = net[:2](batch)
    (event,) = first_loss(net, batch, torch.arange(20) % 3)
    assert event.gain == pytest.approx((weight.square().mean() * 8).sqrt().item(), rel=1e-4)
    assert event.weight_std == pytest.approx(weight.std(unbiased=False).item(), rel=1e-4)
    assert event.bias_std == pytest.approx(bias.std(unbiased=False).item(), rel=1e-4)
    assert event.input_rms == pytest.approx(entered.square().mean().sqrt().item(), rel=1e-4)


def test_first_cross_entropy_over_images_and_sequences():
    torch.manual_seed(0)
    head = nn.Conv2d(3, 4, 1)
    (event,) = first_loss(head, IMAGES, torch.zeros(5, 8, 8, dtype=torch.long))
    assert (event.classes, event.targets, event.fan_in) == (4, 320, 3)
    with Watched() as watched:
        train(Tagger(), TOKENS, loss=lambda scores: F.cross_entropy(scores.transpose(1, 2), TOKENS % 5))
    (event,) = watched.of(FirstCrossEntropy)
    assert (event.layer, event.classes, event.targets) == ("head", 5, 28)


def test_first_cross_entropy_of_bare_tensors_and_shared_embeddings():
    weight, bias = torch.randn(6, 3, requires_grad=True), torch.zeros(3, requires_grad=True)
    batch, target = torch.randn(20, 6), torch.arange(20) % 3
    with Watched() as watched:
        F.cross_entropy(batch @ weight + bias, target).backward()
        F.cross_entropy(batch @ weight + bias, target).backward()
    (event,) = watched.of(FirstCrossEntropy)
    assert (event.layer, event.fan_in) == ("", 6)
    assert event.gain == pytest.approx((weight.square().mean() * 6).sqrt().item(), rel=1e-4)
    net = Tagger()
    net.head = nn.Linear(8, 20, bias=False)
    net.lstm = nn.LSTM(8, 8, batch_first=True)
    net.head.weight = net.embed.weight
    with Watched() as watched:
        train(net, TOKENS, loss=lambda scores: F.cross_entropy(scores.flatten(0, 1), TOKENS.flatten()))
    (event,) = watched.of(FirstCrossEntropy)
    assert (event.layer, event.tied) == ("head", "embed")


@pytest.mark.parametrize("change", [lambda scores: scores * 8.0, lambda scores: (scores / 0.25) * 2.0])
def test_first_cross_entropy_of_scores_times_a_constant(change):
    torch.manual_seed(0)
    net, batch = nn.Linear(6, 20), torch.randn(20, 6)
    gain = (net.weight.detach().square().mean() * 6).sqrt().item()
    with Watched() as watched:
        train(net, batch, loss=lambda scores: F.cross_entropy(change(scores), torch.arange(20)))
    (event,) = watched.of(FirstCrossEntropy)
    assert event.factor == pytest.approx(8.0)
    assert event.gain == pytest.approx(8 * gain, rel=1e-4)


@pytest.mark.parametrize("kind", ["learned temperature", "contrastive", "loaded", "second step"])
def test_no_first_cross_entropy(kind):
    net, batch, target = nn.Linear(6, 20), torch.randn(20, 6), torch.arange(20)
    temperature = torch.tensor(14.0, requires_grad=True)
    losses = {
        "learned temperature": lambda scores: F.cross_entropy(scores * temperature, target),
        "contrastive": lambda scores: F.cross_entropy(scores @ scores.T, target),
        "loaded": lambda scores: F.cross_entropy(scores, target),
    }
    with Watched() as watched:
        if kind == "loaded":
            net.load_state_dict(nn.Linear(6, 20).state_dict())
        if kind == "second step":
            train(net, batch)
            train(net, batch, loss=losses["loaded"])
        else:
            train(net, batch, loss=losses[kind])
    assert watched.of(FirstCrossEntropy) == []


# --------------------------------------------------------------------------- units


def answers(watched):
    return [facts for event in watched.of(ForwardObserved) for facts in event.dead]


def test_dead_units_are_counted_over_several_looks():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    with torch.no_grad():
        net[0].bias[:5] = -50.0
    batches = [torch.randn(40, 6) for _ in range(4)]
    with Watched() as watched:
        train(net, *batches, lr=0.0)
    looks = answers(watched)
    alive = [net[:2](batch).amax(dim=0) > 0 for batch in batches]
    assert [facts.dead for facts in looks] == [int((~each).sum()) for each in alive]
    assert [facts.looks for facts in looks] == [1, 2, 3, 3]
    assert [facts.total for facts in looks] == [40, 80, 120, 120]
    assert looks[3].lasting == int((~(alive[1] | alive[2] | alive[3])).sum()) == 5
    assert looks[3].bias == pytest.approx(-50.0)
    assert looks[3].layer == "1"


def test_units_that_are_nan_are_not_zero():
    batch = torch.randn(40, 6)
    batch[3] = float("nan")
    with Watched() as watched:
        train(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)), batch, lr=0.0)
    (facts,) = answers(watched)
    assert (facts.dead, facts.lasting) == (0, 0)


def test_dead_units_of_functions_and_convolutions():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(6, 2)
            nn.init.constant_(self.conv.bias, -99.0)

        def forward(self, x):
            return self.fc(F.relu(self.conv(x)).mean((2, 3)))

    with Watched() as watched:
        train(Net(), IMAGES)
    (facts,) = answers(watched)
    assert (facts.layer, facts.units, facts.dead, facts.samples) == ("after conv", 6, 6, 5 * 36)
    assert facts.filled == -99.0


def test_biases_that_are_one_number_at_first():
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 2))
    nn.init.constant_(net[0].bias, -2.5)
    with Watched() as watched:
        train(net, *(torch.randn(40, 6) for _ in range(3)), lr=0.1)
    assert [facts.filled for facts in answers(watched)] == [-2.5, None] * 3


def test_a_hinge_loss_is_no_layer():
    net = nn.Linear(6, 12)
    with Watched() as watched:
        train(net, torch.randn(9, 6), loss=lambda scores: F.relu(1 - scores).mean())
    assert [facts.layer for facts in answers(watched)] == [""]


def test_saturation_between_two_layers():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 2))
    with torch.no_grad():
        net[0].weight.mul_(100)
    batch = torch.randn(40, 6)
    expected = (net[:2](batch).abs() > 0.99).float().mean().item()
    with Watched() as watched:
        train(net, batch, lr=0.0)
    (facts,) = answers(watched)
    assert (facts.kind, facts.layer, facts.units, facts.samples) == ("Tanh", "1", 16, 40)
    assert facts.saturated == pytest.approx(expected)


def test_gates_outputs_and_codes_are_not_between_two_layers():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x):
            return torch.tanh(self.c(self.a(x) * torch.sigmoid(self.b(x))))

    coder = nn.Sequential(
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh()),
        nn.Sequential(nn.Linear(8, 6), nn.Sigmoid()),
    )
    actor, critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 1)
    for net, loss in ((Gated(), None), (coder, None), (nn.LSTM(6, 8), lambda out: out[0].sum()), (actor, critic)):
        batch = torch.randn(9, 6) if not isinstance(net, nn.LSTM) else torch.randn(3, 9, 6)
        with Watched() as watched:
            train(net, batch, loss=(lambda out: critic(out).mean()) if loss is critic else loss)
        assert [facts for facts in answers(watched) if facts.kind != "ReLU"] == []


# --------------------------------------------------------------------------- the run is unharmed


def test_nothing_under_transforms_and_checkpoints():
    from torch.utils.checkpoint import checkpoint

    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    with Watched() as watched:
        torch.func.vmap(net)(torch.randn(3, 4))
        assert watched.of(ActivationsSampled) == []
        checkpoint(net, torch.randn(3, 4), use_reentrant=False).sum().backward()
    assert len(watched.of(ActivationsSampled)) == 1


def test_training_is_the_same_bit_for_bit():
    def run():
        torch.manual_seed(5)
        net = nn.Sequential(cnn(), nn.Dropout(0.3), nn.Linear(3, 4))
        train(
            net, *[IMAGES * k for k in range(1, 8)], loss=lambda out: F.cross_entropy(out, torch.arange(5) % 4), lr=0.1
        )
        return [p.detach().clone() for p in net.parameters()], torch.rand(3)

    plain, state = run()
    with Watched():
        seen, after = run()
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert torch.equal(state, after)
    assert math.isfinite(float(seen[0].sum()))


class Normed(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.one, self.norm, self.two, self.between = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 1), between

    def forward(self, x):
        return self.two(self.norm(self.between(self.one(x))))


@pytest.mark.parametrize(
    ("between", "under"),
    [
        (lambda h: h, "one"),
        (torch.sin, ""),
        (lambda h: h.sin_(), ""),
        (lambda h: h + 1, ""),
        (lambda h: h.detach(), ""),
    ],
)
def test_what_a_normalisation_is_given(between, under):
    with Watched() as watched:
        train(Normed(between), torch.randn(16, 6))
    layers = {each.layer: each for each in watched.of(ActivationsSampled)[0].layers}
    assert layers["norm"].under == under
    assert layers["one"].under == layers["two"].under == ""


CALLED = """
import sys, torch
from flatline.sensors.live import LiveSensors
sensors = LiveSensors(lambda event: None, wants=lambda event: True, budget=1.0, on_broken=print)
sensors.attach()
before = set(sys.modules)
torch.nn.Sequential(torch.nn.Conv1d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(24, 1))(torch.randn(2, 1, 8))
print(sorted({name.split(".")[0] for name in set(sys.modules) - before} - {"flatline"}))
"""


@pytest.mark.slow
def test_looking_at_a_model_loads_nothing():
    """A model that is called before its optimizer is built: sympy alone would take half a second of the budget."""
    ended = subprocess.run([sys.executable, "-c", CALLED], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
