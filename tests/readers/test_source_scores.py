"""Reading Python source: scores of ready-made models, of formulas, of registered heads, and what is logged of them."""

from __future__ import annotations

import pytest
from parsed import kinds_in, parsed

HEAD = """import math, torch, timm
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
import torch.nn.functional as F
from torchvision import models
"""


def fed(code: str) -> list[str]:
    return [loss.fed_by for loss in parsed(HEAD, code).losses]


def kinds(code: str) -> list[str]:
    return kinds_in(HEAD, code)


FIT = """
criterion = nn.CrossEntropyLoss()
def fit(model, criterion, loader):
    for x, y in loader:
        loss = criterion(model(x), y)
model = model.to('cuda')
fit(model, criterion, loader)
"""
SOFT = "nn.Sequential(nn.Linear(512, 2), nn.Softmax(dim=1))"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("model = models.resnet18()", ["linear"]),
        (f"model = models.resnet18()\nmodel.fc = {SOFT}", ["softmax"]),
        ("model = models.resnet18()\nmodel.fc = nn.Sequential(model.fc, nn.Softmax(1))", ["softmax"]),
        (f"def headed(m):\n    m.fc = {SOFT}\n    return m\nmodel = headed(models.resnet34())", ["softmax"]),
        (f"model = models.vgg16()\nmodel.classifier[6] = {SOFT}", ["softmax"]),
        ("model = models.vgg16()\nmodel.classifier[6] = nn.Linear(9, 2)\nmodel.classifier.append(nn.Softmax(1))", ["softmax"]),
        ("model = models.vit_b_16()\nmodel.heads.head = nn.Linear(768, 2)", ["linear"]),
        ("model = timm.create_model(name, num_classes=4)", ["linear"]),
        ("model = timm.create_model(name, num_classes=0)", []),
        ("model = models.inception_v3()", []),
        ("model = models.squeezenet1_0()", []),
        ("model = models.resnet18()\nmodel.fc = nn.Identity()", ["Identity"]),
        ("model = models.resnet18()\nmodel.fc = make()", []),
        (f"model = models.resnet18()\ndef headed(m):\n    m.fc = {SOFT}", []),
        (f"model = models.resnet18()\nif soft:\n    model.fc = {SOFT}", []),
        (f"model = models.resnet18()\nother = models.resnet18()\nother.fc = {SOFT}", ["linear"]),
        (f"model = models.resnet18()\nmodel.classifier = {SOFT}", ["linear"]),
        (f"model = models.resnet18()\nsetattr(model, 'fc', {SOFT})", []),
        (f"model = models.resnet18()\nother = models.resnet18()\nsetattr(other, 'fc', {SOFT})", ["linear"]),
        (f"model = models.resnet18()\nsetattr(found, 'fc', {SOFT})", []),
        ("model = models.resnet18()\nmodel.fc.register_forward_hook(soft)", []),
        ("model = models.resnet18()\nmodel.layer4[-1].register_forward_hook(keep)", ["linear"]),
        ("model = models.vgg16()\nmodel.classifier.extend([nn.Softmax(1)])", []),
        ("model = models.vgg16()\nmodel.features.extend([nn.ReLU()])", ["linear"]),
        (f"model = models.vgg16()\nmodel.add_module('classifier', {SOFT})", []),
        (f"model = models.vgg16()\nhead = model.classifier\nhead[6] = {SOFT}", []),
        (f"model = models.vgg16()\ngetattr(model, name)[6] = {SOFT}", []),
        ("model = models.vgg16()\nwidth = model.classifier[6].in_features", ["linear"]),
        (f"model = models.resnet18()\nmodel._modules[name] = {SOFT}", []),
        ("model = models.resnet18()\nmodel.conv1 = nn.Conv2d(1, 64, 7)", ["linear"]),
        (f"model = timm.create_model(name, num_classes=4)\nmodel.last_linear = {SOFT}", []),
        ("model = timm.create_model(name, num_classes=4)\nmodel.train()\nmodel.load_state_dict(kept)", ["linear"]),
    ],
)  # fmt: skip
def test_ready_made_models(code, expected):
    assert fed(code + FIT) == expected


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        ("out.clamp_(0, 1)", []),
        ("torch.sigmoid_(out)", []),
        ("torch.sigmoid(out, out=out)", []),
        ("self.act(out)", []),
        ("out[:, 0] = out[:, 0].sigmoid()", []),
        ("out[:, 0].sigmoid_()", []),
        ("print(out)", ["linear"]),
        ("kept.append(out)", ["linear"]),
        ("x.clamp_(0, 1)", ["linear"]),
        ("out.requires_grad_()", ["linear"]),
        ("other = self.act(out)", ["linear"]),
    ],
)
def test_what_is_changed_in_place(then, expected):
    made = "self.layer, self.act = nn.Linear(8, 2), nn.ReLU6(inplace=True)"
    given = f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {made}\n"
    taken = f"    def forward(self, x):\n        out = self.layer(x)\n        {then}\n        return out\n"
    assert fed(f"{given}{taken}net = Net()\nloss = F.binary_cross_entropy(net(x), y)\n") == expected


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("loss = F.nll_loss(z, y)", ["linear"]),
        ("taken = -F.nll_loss(z, y, reduction='none')", []),
        ("taken = F.nll_loss(z, y, reduction='none')\nmargin = best - taken", []),
        ("loss = F.nll_loss(z, y)\nbetter = best - loss", ["linear"]),
        ("loss = F.nll_loss(z, y) + torch.logsumexp(z, 1).mean()", []),
        ("whole = z.exp().sum(1).log().mean()\nloss = F.nll_loss(z, y) + whole", []),
        ("loss = F.nll_loss(z, y)\nself.log('perplexity', torch.exp(loss))", ["linear"]),
    ],
)
def test_entries_that_are_picked(loss, expected):
    assert fed(f"net = nn.Linear(8, 4)\nz = net(x)\n{loss}\n") == expected


GRAPH = """class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(8, 3)), nn.Parameter(torch.zeros(3))
    def forward(self, x, graph):
        return {result}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()
    def forward(self, x, graph):
        return self.layer(x, graph)
net = Net()
loss = F.nll_loss(net(x, graph)[rows], y[rows])
"""


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("graph @ (x @ self.weight) + self.bias", ["linear"]),
        ("torch.spmm(graph, torch.mm(x, self.weight))", ["linear"]),
        ("x.matmul(self.weight.view(8, 3)) / math.sqrt(8)", ["linear"]),
        ("F.normalize(x) @ F.normalize(self.weight)", []),
        ("(graph @ (x @ self.weight)).log_softmax(1)", ["log_softmax"]),
        ("x + self.bias", []),
        ("(x @ self.weight).softmax(1) @ self.weight", []),
        ("torch.relu(x @ self.weight) @ self.weight", ["linear"]),
        ("x @ nn.Parameter(self.table, requires_grad=False)", []),
    ],
)
def test_matrices(result, expected):
    assert fed(GRAPH.format(result=result)) == expected


MACHINE = """class Pairs(nn.Module):
    def forward(self, e):
        return (e.sum(1) ** 2 - (e ** 2).sum(1)).sum(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.deep, self.pairs = nn.Embedding(9, 4), nn.Linear(4, 1), Pairs()
    def forward(self, x):
        return self.pairs(self.table(x)) + self.deep(x)
net = Net()
loss = F.binary_cross_entropy(net(x), y)
"""


def test_a_module_that_is_an_attribute_is_given_what_it_is_called_with():
    assert fed(MACHINE) == ["linear"]


def test_a_module_of_which_there_are_more_may_be_given_anything():
    assert fed(MACHINE + "more = nn.Sequential(Pairs())\n") == []


REGISTERED = """HEADS, BODIES = {{}}, {{}}
def register(table, name):
    def wrap(made):
        table[name] = {put}
        return made
    return wrap
@register(HEADS, 'soft')
def soft():
    return nn.Softmax(1)
@register(BODIES, 'plain')
def plain():
    return nn.Linear(8, 2)
loss = F.cross_entropy({table}['{name}']()(x), y)
"""


@pytest.mark.parametrize(
    ("table", "name", "put", "expected"),
    [
        ("HEADS", "soft", "made", ["softmax"]),
        ("BODIES", "plain", "made", ["linear"]),
        ("BODIES", "soft", "made", []),
        ("HEADS", "soft", "changed(made)", []),
    ],
)
def test_tables_that_a_decorator_is_given(table, name, put, expected):
    assert fed(REGISTERED.format(table=table, name=name, put=put)) == expected


SUMMED = """net, weights = nn.Linear(8, 3), {{"near": 1.0, "far": {weight}}}
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y, z in loader:
    near, far = F.cross_entropy(net(x), y), F.mse_loss(net(x), z){cut}
    terms = {{"near": near, "far": far}}
    total = {total}
    total.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("total", "cut", "weight", "expected"),
    [
        ("sum(weights[k] * v for k, v in terms.items())", ".item()", "0.5", True),
        ("sum(terms.values())", ".detach()", "0.5", True),
        ("sum([near, far]) / len(terms)", ".item()", "0.5", True),
        ("sum(weights[k] * v for k, v in terms.items())", "", "0.5", False),
        ("sum(weights[k] * v for k, v in terms.items())", ".item()", "scale(net)", False),
        ("sum(v for k, v in terms.items() if k in kept)", ".item()", "0.5", False),
        ("near / far", ".item()", "0.5", False),
        ("sum(weights[k] * v for k, v in terms.items())", ".item()", "0.0", False),
        ("near + 0.5 * far", ".item()", "0.5", True),
        ("near + 0.0 * far", ".item()", "0.5", False),
    ],
)
def test_terms_of_a_sum_over_a_table(total, cut, weight, expected):
    assert ("cut term" in kinds(SUMMED.format(total=total, cut=cut, weight=weight))) is expected


PLAYED = """class Agent:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1))
        self.opt = torch.optim.Adam(self.net.parameters())
    def play(self):
        logs, rewards = [], []
        for step in range(9):
            probs = self.net(x)
            logs.append({log})
            rewards.append(step)
        return {result}
    def learn(self):
        logs, rewards = self.play()
        loss = -({used}).mean()
        loss.backward()
        self.opt.step()
"""


@pytest.mark.parametrize(
    ("log", "result", "used", "expected"),
    [
        ("torch.log(probs)", "map(torch.stack, (logs, rewards))", "logs * rewards", True),
        ("torch.log(probs)", "torch.stack(logs), rewards", "logs * rewards", True),
        ("torch.log(probs)", "torch.stack(logs), rewards", "rewards", False),
        ("torch.log(probs + 1e-8)", "torch.stack(logs), rewards", "logs * rewards", False),
    ],
)
def test_logarithms_that_are_kept_in_lists(log, result, used, expected):
    assert ("logged softmax" in kinds(PLAYED.format(log=log, result=result, used=used))) is expected


LOGGED = """class Run:
    def __init__(self, rate=0.1):
        self.rate, self.net = rate, nn.Linear(8, 2)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=self.rate)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.opt, 10)
    def tell(self, step):
        writer.add_scalar("train/lr", {told}, step)
    def fit(self):
        for step in range(90):
            F.cross_entropy(self.net(x), y).backward()
            self.opt.step()
            self.schedule.step()
            {then}
            self.tell(step)
Run().fit()
"""


@pytest.mark.parametrize(
    ("told", "then", "expected"),
    [
        ("self.rate", "pass", True),
        ("self.schedule.get_last_lr()[0]", "pass", False),
        ("self.rate", "self.rate = self.schedule.get_last_lr()[0]", False),
    ],
)
def test_rates_that_a_method_of_the_loop_logs(told, then, expected):
    assert ("constant rate" in kinds(LOGGED.format(told=told, then=then))) is expected


FILLED = """NOTHING = -100
class Collate:
    def __init__(self, pad):
        self.pad = pad
    def __call__(self, batch):
        return {{"x": batch, "y": pad_sequence(batch, batch_first=True, padding_value={value})}}
net = nn.Linear(8, 99)
loader = DataLoader(data, shuffle=True, collate_fn=Collate(tokenizer.pad_token_id))
for batch in loader:
    batch = {{k: v.cuda() for k, v in batch.items()}}
    F.cross_entropy(net(batch["x"]), batch["y"], ignore_index={ignored}).backward()
"""


@pytest.mark.parametrize(
    ("value", "ignored", "expected"),
    [
        ("self.pad", "NOTHING", True),
        ("NOTHING", "NOTHING", False),
        ("self.pad", "tokenizer.pad_token_id", False),
        ("self.pad", "0", False),
        ("self.fill", "NOTHING", False),
    ],
)
def test_targets_filled_up_with_the_token_of_a_tokenizer(value, ignored, expected):
    assert ("padded target" in kinds(FILLED.format(value=value, ignored=ignored))) is expected
