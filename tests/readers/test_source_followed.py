"""Values behind methods, records, partials and tables: what keeps, orders, augments or cuts is still seen."""

import pytest
from parsed import kinds_in

HEAD = """
import collections, functools, os
from dataclasses import asdict, dataclass
import numpy as np, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import datasets, models, transforms as T
"""


def kinds(code, **others):
    return kinds_in(HEAD, code, **others)


# --------------------------------------------------------------------------- kept by a method

METER = """
class Meter:
    def __init__(self):
        self.sums = {start}
    def add(self, terms):
        for key, value in terms.items():
            self.sums[key] = {added}
    {more}
def terms_of(net, x):
    out = net(x)
    return {{"size": out.abs().mean(), "all": out.pow(2).mean()}}
def train(net, loader, opt):
    meter = Meter()
    for x in loader:
        terms = terms_of(net, x)
        opt.zero_grad()
        terms["all"].backward()
        opt.step()
        meter.add(terms)
"""
GROWS = "self.sums.get(key, 0.0) + value"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"start": "collections.OrderedDict()"}, True),
        ({"added": "value + self.sums.get(key, 0)"}, True),
        ({"added": "self.sums.get(key, 0.0) + value.item()"}, False),
        ({"added": "value"}, False),
        ({"more": "def begin(self):\n        self.sums.clear()"}, False),
        ({"more": "def begin(self):\n        self.sums['all'] = 0.0"}, False),
    ],
)
def test_a_table_of_sums(changed, expected):
    code = METER.format(**{"start": "{}", "added": GROWS, "more": "", **changed})
    assert ("kept" in kinds(code)) is expected


TRAINER = """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        self.stats = collections.defaultdict(list)
    def record(self, **values):
        for key, value in values.items():
            self.stats[key].append({kept})
    def note(self, loss):
        self.stats["loss"].append(loss)
    def step(self, x, y):
        self.opt.zero_grad()
        loss = F.mse_loss(self.net(x), y)
        loss.backward()
        self.opt.step()
        {told}
    def fit(self, loader):
        for x, y in loader:
            self.step(x, y)
            {after}
Trainer(nn.Linear(3, 1)).fit(rows)
"""


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"told": "self.note(loss)"}, True),
        ({"kept": "float(value)"}, False),
        ({"told": "self.record(loss=loss.item())"}, False),
        ({"after": "self.stats.clear()"}, False),
        ({"after": "self.stats = collections.defaultdict(list)"}, False),
    ],
)
def test_a_method_of_the_object_itself(changed, expected):
    code = TRAINER.format(**{"kept": "value", "told": "self.record(loss=loss)", "after": "pass", **changed})
    assert ("kept" in kinds(code)) is expected


# --------------------------------------------------------------------------- the order of the data

ARRAYS = """
def mixed(labels): ...
def read(root):
    images, labels = [], []
    for number, name in enumerate(sorted(os.listdir(root))):
        for file in os.listdir(os.path.join(root, name)):
            images.append(np.load(file))
            labels.append({label})
    {more}
    return torch.from_numpy(np.stack(images)), {labels}
def main():
    x, y = read("train")
    {then}
    loader = DataLoader(TensorDataset(x, y), batch_size={size})
    net = nn.Linear(8, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"labels": "torch.from_numpy(np.array(labels)).long()"}, True),
        ({"size": "64, shuffle=False"}, True),
        ({"size": "64, shuffle=True"}, False),
        ({"size": "100000"}, False),
        ({"label": "hash(file)"}, False),
        ({"more": "labels = mixed(labels)"}, False),
        ({"then": "order = torch.randperm(len(x))\n    x, y = x[order], y[order]"}, False),
        ({"then": "y = mixed(y)"}, False),
    ],
)
def test_labels_listed_class_by_class(changed, expected):
    usual = {"label": "number", "more": "pass", "labels": "torch.LongTensor(labels)", "then": "pass", "size": "64"}
    assert ("unshuffled" in kinds(ARRAYS.format(**{**usual, **changed}))) is expected


CLIPS = """
class Clips(Dataset):
    def __init__(self, root):
        self.items = []
        for number, name in enumerate(sorted(os.listdir(root))):
            self.items += [(file, number) for file in os.listdir(os.path.join(root, name))]
    def __getitem__(self, i):
        file, number = self.items[i]
        return torch.load(file), number
{feed}
train, test = Feed("train", {train}).build(), Feed("test", {test}).build()
net = nn.Linear(8, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in train:
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    opt.step()
for x, y in test:
    print(net(x).argmax(1) == y)
"""
BUILD = """    def build(self):
        return DataLoader(Clips(self.root), batch_size=self.size, shuffle=self.shuffle)
"""
RECORD = "@dataclass\nclass Feed:\n    root: str\n    size: int = 32\n    shuffle: bool = False\n" + BUILD
PLAIN = (
    "class Feed:\n    def __init__(self, root, size=32, shuffle=False):\n"
    "        self.root = root\n        self.size = size\n        self.shuffle = shuffle\n"
) + BUILD


@pytest.mark.parametrize("feed", [RECORD, PLAIN])
@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        ("32", "64", True),
        ("32", "64, shuffle=True", True),
        ("32, shuffle=True", "64", False),
        ("size_of()", "64", False),
        ("32, shuffle=mixed", "64", False),
    ],
)
def test_loaders_of_an_object(feed, train, test, expected):
    assert ("unshuffled" in kinds(CLIPS.format(feed=feed, train=train, test=test))) is expected


# --------------------------------------------------------------------------- transforms of a partial

STEPS = """
def steps(size, augment):
    if augment:
        ops = [T.RandomResizedCrop(size), T.ToTensor()]
    else:
        ops = [T.Resize(size), T.ToTensor()]
    return T.Compose([*ops, T.Normalize(0.5, 0.5)])
"""
FACTORY = """
from transforms import steps
@dataclass
class Config:
    size: int = 64
    augment: bool = {augment}
def make(config, split, transform):
    return DataLoader(datasets.ImageFolder(split, transform=transform), 32, shuffle=split == "train")
def loaders(config):
    loader = functools.partial(make, config{given})
    return loader("train"{first}), loader("val"{last})
"""
FIT = """
from factory import Config, loaders
train, val = loaders(Config())
net = models.resnet18()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in train:
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    opt.step()
with torch.no_grad():
    net.eval()
    for x, y in val:
        hit = (net(x).argmax(1) == y).sum().item()
"""
GIVEN = ", transform=steps(config.size, config.augment)"
EACH = {"given": "", "first": GIVEN, "last": ", transform=steps(config.size, False)"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"last": ", transform=steps(config.size, True)"}, True),
        ({"augment": "False"}, False),
        ({"last": ", transform=steps(config.size, False)"}, False),
        (EACH, False),
        ({"given": ", **options"}, False),
    ],
)
def test_transforms_of_a_partial(changed, expected):
    factory = FACTORY.format(**{"augment": "True", "given": GIVEN, "first": "", "last": "", **changed})
    assert ("augmented" in kinds(FIT, factory=factory, transforms=STEPS)) is expected


# --------------------------------------------------------------------------- terms of a loss

PERCEPTUAL = """
class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleList([nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)])
    {mark}
    def forward(self, x):
        found = []
        for layer in self.body:
            x = layer(x)
            found.append(x)
        return {result}
class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.other = Features(), nn.Conv2d(3, 8, 3)
    def forward(self, fake, real):
        {loss}
        return loss
net, perceptual = nn.Conv2d(3, 3, 3), Perceptual()
for x, y in data:
    out = net(x)
    loss = F.l1_loss(out, y) + 0.1 * perceptual({given}, y)
    loss.backward()
"""
EVERY = "loss = 0.0\n        for a, b in zip({}, self.features(real)):\n            loss += F.l1_loss(a, b)"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"given": "out.clamp(0, 1)"}, True),
        ({"given": "(out + 1) / 2"}, True),
        ({"result": "found", "loss": EVERY.format("self.features(fake)")}, True),
        ({"mark": ""}, False),
        ({"given": "x"}, False),
        ({"given": "out.detach()"}, False),
        ({"loss": "loss = F.l1_loss(self.other(fake), self.features(real))"}, False),
        ({"result": "found", "loss": EVERY.format("self.other(fake)")}, False),
    ],
)
def test_features_without_gradients(changed, expected):
    usual = {"mark": "@torch.no_grad()", "result": "x", "given": "out"}
    usual["loss"] = "loss = F.l1_loss(self.features(fake), self.features(real))"
    assert ("unrecorded term" in kinds(PERCEPTUAL.format(**{**usual, **changed}))) is expected


BAG = """
class Bag:
    def __init__(self):
        self.terms = {{}}
    def put(self, name, value):
        self.terms[name] = value
    def numbers(self):
        return {{k: 0.5 * {number} for k, v in self.{held}.items()}}
    def total(self):
        rest = sum({each} for k, v in {table}.items() if k != "main")
        return self.terms["main"] + rest
net = nn.Linear(8, 3)
for x, y in data:
    bag = Bag()
    bag.put("main", F.mse_loss(net(x), y))
    bag.put("size", net(x).abs().mean())
    bag.total().backward()
"""


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"number": "float(v)"}, True),
        ({"table": "self.terms", "each": "v.item()"}, True),
        ({"number": "v"}, False),
        ({"held": "others"}, False),
        ({"table": "self.terms"}, False),
    ],
)
def test_numbers_of_a_table_of_losses(changed, expected):
    code = BAG.format(**{"number": "v.item()", "held": "terms", "each": "v", "table": "self.numbers()", **changed})
    assert ("cut term" in kinds(code)) is expected


# --------------------------------------------------------------------------- options of a record

HALF = """
@dataclass
class Options:
    lr: float = 0.001
    eps: float = {eps}
net = nn.Linear(8, 3).half()
opt = torch.optim.Adam(net.parameters(), **{given})
for x, y in data:
    F.cross_entropy(net(x), y).backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("eps", "given", "expected"),
    [
        ("1e-8", "asdict(Options(lr=0.1))", True),
        ("1e-8", "dict(lr=0.1)", True),
        ("1e-4", "asdict(Options(lr=0.1))", False),
        ("1e-8", "asdict(Options(eps=1e-4))", False),
        ("1e-8", "asdict(Options(eps=small()))", False),
        ("1e-8", "options", False),
    ],
)
def test_eps_of_a_record(eps, given, expected):
    assert ("eps of zero" in kinds(HALF.format(eps=eps, given=given))) is expected


# --------------------------------------------------------------------------- checkpoints of a trunk

PRETEXT = """
class Pretext(nn.Module):
    def __init__(self):
        super().__init__()
        self.{trunk} = models.resnet18()
        self.{trunk}.fc = nn.Identity()
        self.turn = nn.Linear(512, 4)
    def forward(self, x):
        return self.turn(self.{trunk}(x))
def pretrain():
    net = {saved}
    torch.save({{"state": net.state_dict()}}, "pretext.pt")
def build():
    net = {loaded}
    {more}
    state = torch.load("pretext.pt")["state"]
    {change}
    net.load_state_dict(state, strict=False)
    return net
"""


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"loaded": "models.vgg16(num_classes=2)"}, True),
        ({"trunk": "layer1"}, False),
        ({"saved": "models.resnet18()"}, False),
        ({"saved": "Pretext().encoder"}, False),
        ({"loaded": "models.vit_b_16()"}, False),
        ({"loaded": "make()"}, False),
        ({"more": "net.encoder = models.resnet18()"}, False),
        ({"change": "state = {k.replace('encoder.', ''): v for k, v in state.items()}"}, False),
        ({"change": "for k in list(state):\n        state[k[8:]] = state.pop(k)"}, False),
    ],
)
def test_a_trunk_under_another_name(changed, expected):
    usual = {"trunk": "encoder", "saved": "Pretext()", "loaded": "models.resnet18(num_classes=2)"}
    code = PRETEXT.format(**{**usual, "more": "pass", "change": "pass", **changed})
    assert ("unmatched load" in kinds(code)) is expected
