"""Ordinary idioms around transforms, sorted tables, terms without gradients, padded labels and checkpoints."""

import pytest
from parsed import kinds_in

HEAD = """
import functools
import numpy as np, pandas as pd, torch, torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import datasets, models, transforms as T
from transformers import AutoModelForTokenClassification
"""


def kinds(code):
    return kinds_in(HEAD, code)


SCORED = """
model = models.resnet18()
with torch.no_grad():
    model.eval()
    for x, y in val_loader:
        hit = (model(x).argmax(1) == y).sum().item()
"""
GROWN = """
def transform(augment=True):
    ops = [T.Resize(256)]
    if augment:
        ops{grows}
    ops.append(T.ToTensor())
    return T.Compose(ops)
"""
FOLDER = "val_loader = DataLoader(datasets.ImageFolder('val', transform({given})), 32)\n"
PARTIAL = """
def make(split, augment=True, bs=32):
    return DataLoader(datasets.ImageFolder(split, transform(augment)), bs)
make_val = functools.partial(make, bs=64{given})
val_loader = make_val("val")
"""
OWN = """
class Leaves(Dataset):
    def __init__(self, files, augment=True):
        self.files = files
        ops = [T.ToTensor()]
        if augment:
            ops.extend([T.RandomHorizontalFlip()])
        self.transform = T.Compose(ops)
    def __getitem__(self, i):
        return self.transform(self.files[i]), 0
val_loader = DataLoader(Leaves("val"{given}), 32)
"""
FLIPS = " += [T.RandomHorizontalFlip()]"


@pytest.mark.parametrize(
    ("made", "given", "expected"),
    [
        (GROWN.format(grows=FLIPS) + FOLDER, "", True),
        (GROWN.format(grows=FLIPS) + FOLDER, "augment=False", False),
        (GROWN.format(grows=".append(T.RandomRotation(9))") + FOLDER, "", True),
        (GROWN.format(grows=".append(T.RandomRotation(9))\n        ops.clear()") + FOLDER, "", False),
        (GROWN.format(grows=".append(T.CenterCrop(9))") + FOLDER, "", False),
        (GROWN.format(grows=FLIPS) + PARTIAL, "", True),
        (GROWN.format(grows=FLIPS) + PARTIAL, ", augment=False", False),
        (OWN, "", True),
        (OWN, ", augment=False", False),
    ],
)
def test_lists_of_transforms_that_grow(made, given, expected):
    assert ("augmented" in kinds(made.format(given=given) + SCORED)) is expected


TRAINS = """
net = nn.Linear(8, 3)
opt = torch.optim.SGD(net.parameters(), 0.1)
for x, y in train_loader:
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    opt.step()
"""
TABLE = """
table = pd.read_csv('train.csv').sort_values('{column}'){then}
x = torch.tensor(table.drop(columns='label').values)
train_loader = DataLoader(TensorDataset(x, torch.tensor(table['label'].values)), batch_size=64)
"""
KINDS = """
fake = pd.read_csv('fake.csv'); fake['label'] = 0
true = pd.read_csv('true.csv'); true['label'] = {label}
class News(Dataset):
    def __init__(self, table):
        self.table = table
    def __getitem__(self, i):
        row = self.table.iloc[i]
        return row.text, int(row['label'])
data = pd.concat([fake, true])
def loader(data, bs=32, **more):
    return DataLoader(data, batch_size=bs, **more)
train_loader = loader(News(data){given})
"""
ORDERED = """
order = np.argsort({by})
x, y = x0[order], labels[order]
train_loader = DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), batch_size=64)
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (TABLE.format(column="label", then=""), True),
        (TABLE.format(column="label", then=".reset_index(drop=True)"), True),
        (TABLE.format(column="date", then=""), False),
        (TABLE.format(column="label", then=".sample(frac=1)"), False),
        (TABLE.format(column="label", then="\ntable.dropna(inplace=True)"), True),
        (TABLE.format(column="label", then="\ntable.sort_index(inplace=True)"), False),
        (TABLE.format(column="label", then="\ntable[:] = mixed"), False),
        (TABLE.format(column="label", then="\nshuffle_rows(table)"), False),
        (TABLE.format(column="label', key='hash", then=""), False),
        (KINDS.format(label=1, given=""), True),
        (KINDS.format(label=1, given=", num_workers=2"), True),
        (KINDS.format(label=1, given=", shuffle=True"), False),
        (KINDS.format(label=0, given=""), False),
        (ORDERED.format(by="labels"), True),
        (ORDERED.format(by="dates"), False),
    ],
)
def test_tables_in_the_order_of_their_labels(code, expected):
    assert ("unshuffled" in kinds(code + TRAINS)) is expected


CRITERION = """
class Criterion:
    {mark}
    def dice(self, out, y):
        p = out.softmax(1)
        return 1 - (p * y).sum() / p.sum()
    def __call__(self, out, y):
        return self.dice(out, y) + {other}
class Trainer:
    def __init__(self):
        self.net = nn.Linear(8, 3)
        self.loss = Criterion()
    def step(self, x, y):
        out = self.net(x)
        loss = self.loss(out, y)
        loss.backward()
"""
BLOCK = """
net = nn.Linear(8, 3)
for x, y in data:
    out = net(x)
    with {block}:
        ce = F.cross_entropy(out, y)
    loss = ce + 0.1 * out.pow(2).mean()
    loss.backward()
"""

FEATURES = """
class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3)
    def forward(self, fake, real):
        {sr}
        with torch.no_grad():
            hr = self.body(real)
        return F.l1_loss(sr, hr)
net, perceptual = nn.Conv2d(3, 3, 3), Perceptual()
for x, y in data:
    out = net(x)
    loss = F.l1_loss(out, y) + 0.1 * perceptual({given})
    loss.backward()
"""
OFF = "with torch.no_grad():\n            sr = self.body(fake)"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (FEATURES.format(sr=OFF, given="out, y"), True),
        (FEATURES.format(sr="sr = self.body(fake)", given="out, y"), False),
        (FEATURES.format(sr=OFF, given="x, y"), False),
        (CRITERION.format(mark="@torch.no_grad()", other="F.cross_entropy(out, y)"), True),
        (CRITERION.format(mark="@profile", other="F.cross_entropy(out, y)"), False),
        (BLOCK.format(block="torch.no_grad()"), True),
        (BLOCK.format(block="torch.enable_grad()"), False),
        (BLOCK.format(block="torch.set_grad_enabled(training)"), False),
    ],
)
def test_terms_without_gradients(code, expected):
    assert ("unrecorded term" in kinds(code)) is expected


TOKENS = """
def collate(rows, pad={usual}):
    ids, labels = zip(*rows)
    return {{"input_ids": pad_sequence(ids), "labels": pad_sequence(labels, True, pad)}}
loader = DataLoader(data, 8, collate_fn={given})
model = AutoModelForTokenClassification.from_pretrained("bert").to("cuda")
for batch in loader:
    batch = {{k: v.cuda() for k, v in batch.items()}}
    loss = model(**batch).loss
    loss.backward()
"""


@pytest.mark.parametrize(
    ("usual", "given", "more", "expected"),
    [
        ("-100", "functools.partial(collate, pad=0)", "", True),
        ("0", "functools.partial(collate, pad=-100)", "", False),
        ("-100", "functools.partial(collate, pad=0)", "tags = {'<pad>': 0, 'B': 1}\n", False),
        ("-100", "functools.partial(collate, pad=0)", "crit = nn.CrossEntropyLoss()\n", False),
    ],
)
def test_labels_of_models_with_a_loss_of_their_own(usual, given, more, expected):
    assert ("padded target of model" in kinds(more + TOKENS.format(usual=usual, given=given))) is expected


NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.{part} = nn.Linear(8, 3)
"""
CHOSEN = """
state = {{{key}: v for k, v in torch.load("a.pt").items() if k.startswith("module.")}}
Net().load_state_dict(state, strict=False)
"""
SAVED = """
def first(args):
    model = {wrapped}
    torch.save({{"model": model{part}.state_dict()}}, args.path)
def second(args):
    model = Net()
    model.load_state_dict(torch.load(args.path)["model"], strict=False)
"""


@pytest.mark.parametrize(
    ("part", "code", "expected"),
    [
        ("fc", CHOSEN.format(key="k"), "prefixed load"),
        ("fc", CHOSEN.format(key="k[7:]"), "loose load"),
        ("module", CHOSEN.format(key="k"), "loose load"),
        ("fc", SAVED.format(wrapped="nn.DataParallel(Net())", part=""), "prefixed load"),
        ("fc", SAVED.format(wrapped="nn.DataParallel(Net())", part=".module"), "loose load"),
        ("fc", SAVED.format(wrapped="Net()", part=""), "loose load"),
    ],
)
def test_names_that_begin_with_module(part, code, expected):
    assert kinds(NET.format(part=part) + code) == [expected]


PRETRAINS = """
from net import Net
model = {wrapped}.cuda()
torch.save(model{part}.state_dict(), "{path}")
"""
TUNES = """
import argparse
from net import Net
parser = argparse.ArgumentParser()
parser.add_argument("--start", default="body.pt")
args = parser.parse_args()
model = Net()
model.load_state_dict(torch.load(args.start), strict=False)
"""


@pytest.mark.parametrize(
    ("wrapped", "part", "path", "folder", "expected"),
    [
        ("nn.DataParallel(Net())", "", "body.pt", "", "prefixed load"),
        ("nn.DataParallel(Net())", ".module", "body.pt", "", "loose load"),
        ("nn.DataParallel(Net())", "", "other.pt", "", "loose load"),
        ("Net()", "", "body.pt", "", "loose load"),
        ("nn.DataParallel(Net())", "", "body.pt", "elsewhere/", "loose load"),
    ],
)
def test_a_checkpoint_that_an_option_names_and_another_script_saves(wrapped, part, path, folder, expected):
    first = PRETRAINS.format(wrapped=wrapped, part=part, path=path)
    assert kinds_in(HEAD, TUNES, **{"net": NET.format(part="fc"), f"{folder}first": first}) == [expected]
