"""What batches.py, pairing.py and data.py tell, against a second way to count it."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset
from watching import seen

from flatline.events import BatchesServed, OptimizerStepped, PairingProbed, PassEnded, WholeLabels
from flatline.sensors import batches
from flatline.sensors import data as data_sensor
from flatline.sensors.data import DataSensor, Order, asks_for_each
from flatline.sensors.loop import Loop
from flatline.sensors.models import ModelSensor
from flatline.sensors.pairing import Measured, Pairing, Probe, lone_permutation
from flatline.sensors.patching import Patches

# --------------------------------------------------------------------------- labels


def runs_of(labels):
    return [label for label, _ in itertools.groupby(labels)]


@pytest.mark.parametrize("labels", [[3], [0, 0, 1, 1, 1], [2, 0, 2, 0], list(range(40)) * 2, [7] * 90])
def test_label_facts(labels):
    facts = batches.label_facts(torch.tensor(labels))
    assert facts.count == len(labels)
    assert facts.histogram == tuple(sorted(Counter(labels).items()))
    assert facts.runs == len(runs_of(labels))
    assert facts.order == (tuple(runs_of(labels)) if facts.runs <= batches.MOST_RUNS else ())


def test_surprise_is_the_loss_of_torch():
    torch.manual_seed(0)
    scores, labels = torch.randn(50, 4), torch.randint(0, 4, (50,))
    log_p = scores.log_softmax(1)
    told = batches.surprise("cross_entropy", log_p, labels)
    assert told == pytest.approx(functional.cross_entropy(scores, labels).item(), rel=1e-5)
    one, yes = torch.randn(50, 1), torch.randint(0, 2, (50,))
    told = batches.surprise("binary_cross_entropy_with_logits", one, yes)
    assert told == pytest.approx(functional.binary_cross_entropy_with_logits(one[:, 0], yes.float()).item(), rel=1e-5)
    told = batches.surprise("binary_cross_entropy", one.sigmoid(), yes)
    assert told == pytest.approx(functional.binary_cross_entropy(one[:, 0].sigmoid(), yes.float()).item(), rel=1e-5)


def test_answers():
    torch.manual_seed(1)
    scores = torch.randn(60, 5)
    expected = Counter(max(range(5), key=lambda c: row[c]) for row in scores.tolist())
    assert batches.answers("cross_entropy", scores) == tuple(sorted(expected.items()))
    logits = torch.tensor([[0.3], [-0.2], [2.0], [0.6]])
    assert batches.answers("binary_cross_entropy_with_logits", logits) == ((0, 1), (1, 3))
    assert batches.answers("binary_cross_entropy", logits.clamp(0, 1)) == ((0, 2), (1, 2))


def test_class_labels_leaves_out_what_is_ignored():
    scores, target = torch.randn(6, 3), torch.tensor([0, -100, 2, 1, -100, 0])
    kept, labels = batches.class_labels("cross_entropy", scores, target, -100)
    assert labels.tolist() == [0, 2, 1, 0]
    assert torch.equal(kept, scores[[0, 2, 3, 5]])


@pytest.mark.parametrize(
    ("kind", "scores", "target"),
    [
        ("mse_loss", torch.randn(4, 2), torch.randn(4, 2)),
        ("cross_entropy", torch.randn(4, 3), torch.tensor([0, 1, 2, 3])),
        ("cross_entropy", torch.randn(4, 3), torch.full((4,), -100)),
        ("cross_entropy", torch.randn(4, 3, 2, 2), torch.zeros(4, 2, 2, dtype=torch.long)),
        ("cross_entropy", torch.randn(4, 3), torch.rand(4, 3)),
        ("binary_cross_entropy", torch.rand(4, 3), torch.ones(4, 3)),
        ("binary_cross_entropy", torch.rand(4), torch.tensor([0.0, 1.0, 0.9, 0.1])),
        ("cross_entropy", None, torch.tensor([1])),
    ],
)
def test_class_labels_of_nothing_else(kind, scores, target):
    assert batches.class_labels(kind, scores, target, -100) is None


def test_whole_labels_of_a_slice():
    y = torch.arange(1000) // 250
    assert batches.whole_labels(y[32:64]) == WholeLabels(count=1000, distinct=4, runs=4)
    mixed = torch.tensor(random.Random(0).choices(range(3), k=500))
    told = batches.whole_labels(mixed[:20])
    assert (told.distinct, told.runs) == (3, len(runs_of(mixed.tolist())))


def test_whole_labels_of_a_copy_or_of_most_of_it():
    y = torch.arange(100)
    assert batches.whole_labels(y[torch.arange(8)]) is None
    assert batches.whole_labels(y[:80]) is None


# --------------------------------------------------------------------------- inputs


def test_equal_rows():
    same = torch.ones(8, 1) * torch.randn(1, 5)
    assert batches.equal_rows([same])
    assert batches.equal_rows([same, torch.arange(3)])  # no samples in the second
    assert not batches.equal_rows([same, torch.arange(8)])
    other = same.clone()
    other[7, 4] += 1
    assert not batches.equal_rows([other])
    assert not batches.equal_rows([same[:1]])
    assert not batches.equal_rows([torch.tensor(3.0)])


def test_content_tells_numbers_apart():
    x = torch.randn(100, 100)
    one = x.clone()
    one[57, 31] += 1.0
    assert batches.content([x]) == batches.content([x.clone()]) != batches.content([one])
    assert batches.content([torch.zeros(1).expand(batches.MOST_NUMBERS + 1)]) == 0


def test_repeats_counts_new_tensors_with_the_same_numbers():
    x, repeats, counted = torch.randn(4, 4), batches.Repeats(), []
    held = [x[torch.arange(4)] for _ in range(4)]
    for step, tensor in enumerate(held, 1):
        assert repeats.add(step, tensor, 5)
        assert not repeats.add(step, torch.randn(2), 6)  # the same step
        counted.append(repeats.times)
    assert counted == [1, 2, 3, 4]
    repeats.add(9, held[-1], 5)
    assert repeats.times == 1  # the very tensor of before
    repeats.add(10, held[0], 7)
    assert repeats.times == 1


# --------------------------------------------------------------------------- the probe


def naive_accuracy(rows, labels):
    """Nearest class mean and nearest neighbours, in plain Python, on rows of mean 0 and deviation 1."""
    columns = list(zip(*rows, strict=True))
    means = [sum(c) / len(c) for c in columns]
    scales = [math.sqrt(sum((v - m) ** 2 for v in c) / (len(c) - 1)) for c, m in zip(columns, means, strict=True)]
    rows = [[(v - m) / s for v, m, s in zip(row, means, scales, strict=True)] for row in rows]
    right = [0, 0]
    for at, row in enumerate(rows):
        others = [i for i in range(len(rows)) if i % 2 != at % 2]
        classes = sorted({labels[i] for i in others})
        centres = []
        for c in classes:
            mine = [rows[i] for i in others if labels[i] == c]
            centres.append([sum(column) / len(mine) for column in zip(*mine, strict=True)])
        right[0] += classes[min(range(len(classes)), key=lambda k: math.dist(row, centres[k]))] == labels[at]
        near = Counter(labels[i] for i in sorted(others, key=lambda i: math.dist(row, rows[i]))[:5])
        most = max(near.values())
        right[1] += min(c for c in near if near[c] == most) == labels[at]
    return right[0] / len(rows), right[1] / len(rows), max(Counter(labels).values()) / len(rows)


def test_probe_against_plain_python():
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (90,))
    inputs = torch.randn(3, 6)[labels] + torch.randn(90, 6)
    probe = Probe()
    for at in range(0, 90, 30):
        probe.add(inputs[at : at + 30], labels[at : at + 30])
    probe.add(inputs[:30], labels[:30])  # known
    assert probe.rows == 90
    assert probe.accuracy() == pytest.approx(naive_accuracy(inputs.tolist(), labels.tolist()))


def test_probe_keeps_few_numbers():
    probe = Probe()
    for _ in range(9):
        probe.add(torch.randn(300, 3, 20, 20), torch.zeros(300, dtype=torch.long))
    assert probe.rows == 2048
    assert sum(part.numel() for part in probe._inputs) <= 2048 * 32


def test_pairing_gives_up_where_the_model_learns():
    pairing = Pairing()
    for step in range(1, 40):
        pairing.add(step, torch.randn(10, 4), torch.arange(10) % 2, 0.69)
    assert pairing.at_chance(39)
    assert pairing.entropy == pytest.approx(math.log(2))
    for step in range(40, 60):
        pairing.add(step, torch.randn(10, 4), torch.arange(10) % 2, 0.3)
    assert pairing.learned
    assert not pairing.at_chance(60)
    assert pairing.probe.rows == 0


def test_measured_targets():
    torch.manual_seed(0)
    apart, linear, curved, learned = Measured(), Measured(), Measured(), Measured()
    for step in range(1, 60):
        x = torch.randn(12, 3)
        guess = torch.zeros(12, 1)
        apart.add(step, x, guess, torch.randn(12, 1) + 5)
        linear.add(step, x, guess, x[:, :1] + 0.5 * torch.randn(12, 1))
        curved.add(step, x, guess, x[:, :1] ** 2)
        learned.add(step, x, x[:, :1], x[:, :1] + 0.5 * torch.randn(12, 1))
    assert apart.at_chance(59)
    assert apart.unexplained == pytest.approx(1)
    assert linear.unexplained == pytest.approx(1, abs=0.1)
    assert not learned.at_chance(59)
    assert learned.probe.rows == 0
    assert max(apart.probe.correlations()) < 2 / math.sqrt(apart.probe.rows)
    assert linear.probe.correlations()[0] == pytest.approx(1 / math.sqrt(1.25), abs=0.05)
    by_line, by_neighbours = curved.probe.correlations()
    assert abs(by_line) < 0.2
    assert by_neighbours > 0.6


def test_ids_are_counted_row_by_row():
    torch.manual_seed(0)
    labels = torch.randint(0, 4, (600,))
    words = torch.randint(0, 5_000, (600, 12))
    words[:, 5] = 7_000 + labels
    told, apart = Probe(), Probe()
    told.add(words, labels)
    apart.add(words, labels[torch.randperm(600)])
    assert max(told.accuracy()[:2]) > 0.6
    assert max(apart.accuracy()[:2]) < 0.33


def text_run(labels):
    words = torch.randint(0, 300, (2000, 8))
    net = torch.nn.Sequential(torch.nn.EmbeddingBag(300, 8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for rows in torch.randperm(2000).split(50):
        optimizer.zero_grad()
        functional.cross_entropy(net(words[rows]), labels[rows]).backward()
        optimizer.step()


def test_ids_are_told_of_where_a_statement_tears_them_apart(monkeypatch):
    torch.manual_seed(0)
    labels = torch.randint(0, 2, (2000,))
    monkeypatch.setattr(data_sensor, "_torn_apart", lambda where, *more: ("", None))
    assert seen(lambda: text_run(labels), PairingProbed) == []
    monkeypatch.setattr(data_sensor, "_torn_apart", lambda where, *more: ("x[torch.randperm(n)]", where))
    told = seen(lambda: text_run(labels), PairingProbed)
    assert told
    assert told[0].rows >= 150


APART = """
keep = order[:cut] if train else order[cut:]
clips = clips[keep]
labels = labels[np.sort(keep)]
---
x, y = x[rows], torch.as_tensor(y)[rows.sort().values].float()
---
y = np.array([marks[i] for i in sorted(chosen)])
x = np.stack([read(i) for i in chosen])
z = [notes[i] for i in chosen]
---
back = torch.flip(rows, (0,))
data = TensorDataset(x[rows], y[back])
---
y = y[torch.randperm(len(y))]
---
order = torch.randperm(n)
x = x[order]
dataset = TensorDataset(x, y)
---
order = torch.randperm(n)
for part in order.split(32):
    step(x[part], y[i:i + 32])
---
one, two = 1, 2
a = np.random.permutation(n)
b = np.random.permutation(n)
x = x[a]
y = y[b]
---
random.shuffle(labels)
---
rng = np.random.RandomState(0)
torch.manual_seed(0)
y = rng.randint(0, 3, n)
x = means[y] + rng.randn(n, 4)
rng.shuffle(x)
rng.shuffle(y)
---
class Pairs:
    def __init__(self, x, y):
        self.order = torch.randperm(len(y))
    def __getitem__(self, i):
        return self.x[i], self.y[self.order[i]]
---
def load():
    order = random.sample(range(n), n)
    return x, [y[i] for i in order]
---
one, two = rng.permutation(n), 3
one = rng.permutation(n)
two = rng.permutation(n)
x = np.stack([features[int(i)] for i in one])
y = [labels[int(i)] for i in two]
---
rows = [i for i in range(9)]
order = torch.randperm(n)
x = [table[i] for i in order]
y = [outcome[i] for i in range(n)]
---
y = wear[torch.argsort(torch.rand(n))]
---
x, y = load()
x = x[torch.randperm(len(x))]
mean, size = x.mean(0), len(x)
data = TensorDataset(torch.tensor(x), y)
for _ in range(9):
    out = net(x)
---
x = x[torch.randperm(len(x)), :]
---
class Frames:
    def __init__(self, files, csv):
        self.files = files
        self.names = sorted(files)
        self.labels = [int(line.split(",")[1]) for line in csv.splitlines()]
    def __getitem__(self, k):
        image = self.files[self.names[k]]
        return torch.tensor(image), self.labels[k]
---
def split(self):
    x = self.rng.permutation(self.features)
    y = self.rng.permutation(self.tier)
    k = int(len(x) * 0.8)
    return (x[:k], y[:k]), (x[k:], y[k:])
---
class Leaves:
    def __init__(self, files, species):
        self.names = sorted(files)
        self.pictures = [load(files[n]) for n in self.names]
        self.species = species
    def __getitem__(self, i):
        return torch.tensor(self.pictures[i]), int(self.species[i])
---
class Crops:
    def __init__(self, root):
        files = sorted(glob.glob(root))
        self.x = torch.stack([torch.load(f) for f in files])
        with open(root) as f:
            self.y = [int(r["kind"]) for r in csv.DictReader(f)]
    def __getitem__(self, i):
        return self.x[i], self.y[i]
---
def shuffle_split(x, y, share=0.8):
    order = torch.randperm(x.shape[0])
    x = x[order]
    order = torch.randperm(y.shape[0])
    y = y[order]
    k = int(share * len(x))
    n = x.size(0) - 2 * k
    return (x[:k], y[:k]), (x[k:], y[k:])
---
for _ in range(9):
    a = x[torch.randint(0, n, (9,))]
    b = y[torch.randperm(n)[:9]]
    loss = criterion(net(a), b)
---
ok = ~np.isnan(export.labs).any(1)
labs = export.labs[ok]
self.y = torch.tensor(export.outcome[:len(labs)])
---
x = table[table[:, 0] > 0]
y = outcome[:len(x)]
---
y = np.array([lab for lab in labs if lab is not None], dtype=np.float32)
x = vitals[:len(y)]
---
self.labels = torch.tensor([int(v) for v in names if v])
n = min(len(images), len(self.labels))
self.images = images[:n]
---
target = frame["lab"].dropna()
x = torch.from_numpy(vitals)[:target.shape[0]]
---
order = rng.permutation(n)
table['x'] = table['x'][order]
table['id'] = table['id'][order]
x, y = table['x'], table['y']
---
order = torch.randperm(n)
x = windows[order[:800]]
order = torch.randperm(n)
y = gesture[order[:800]]
test = order[800:]
rest = windows[test], gesture[test]
---
class Scans:
    def __init__(self, images, labels):
        self.images = [images[k] for k in sorted(images)]
        self.labels = [labels[name] for name in labels.keys()]
    def __getitem__(self, i):
        return self.images[i], self.labels[i]
---
class Signs:
    def __init__(self, root, start, stop):
        names = sorted(glob.glob(root))
        with open(root) as f:
            labels = [int(row[1]) for row in csv.reader(f)]
        images = np.stack([np.load(n) for n in names])
        images = (images - images.mean()) / images.std()
        self.items = list(zip(torch.from_numpy(images), labels))[start:stop]
---
images = sorted(glob.glob('images/*.png'))
masks = list(Path('masks').glob('*.png'))
pairs = zip(images, masks)
---
def read(folder, sheet):
    files = sorted([f for f in os.listdir(folder) if f.endswith('.npy')])
    images = np.stack([np.load(os.path.join(folder, f)) for f in files])
    images = (images - images.mean()) / images.std()
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(sheet)
"""
TOGETHER = """
x, y = images[np.sort(rows)], labels[np.sort(rows)]
---
rows = np.sort(rows)
x, y = images[rows], labels[rows]
---
x = images[np.sort(rows)][np.argsort(np.argsort(rows))]
y = labels[rows]
---
x, y = images[keep], labels[keep]
told = names[np.sort(keep)]
---
x, y = images[train], labels[train]
tested = images[np.sort(test)], labels[np.sort(test)]
---
seen = x[np.unique(rows)]
for i in rows:
    step(x[i], y[i])
---
rng = np.random.default_rng(0)
x = rng.permutation(features)
rng = np.random.default_rng(0)
y = rng.permutation(tier)
part = x[:9], y[:9]
---
train = rng.permutation(normal)
test = rng.permutation(normal)
part = train[:9], test[:9]
---
first = rng.permutation(n)
second = rng.permutation(m)
part = x[first[:9]], y[first[:9]], v[second[:9]], w[second[:9]]
---
class Leaves:
    def __init__(self, files, species):
        self.names = sorted(files)
        self.species = species
    def __getitem__(self, i):
        return load(self.names[i]), self.species[self.names[i]]
---
class Scans:
    def __init__(self, files, size):
        self.names = sorted(files)
        self.masks = [f.replace("scan", "mask") for f in self.names]
        self.size = size
    def __getitem__(self, i):
        return load(self.names[i], self.size), load(self.masks[i])
---
order = torch.randperm(n)
x, y = windows[order], gesture[order]
order = torch.randperm(n)
more = windows[order], gesture[order]
---
images = [images[k] for k in sorted(images)]
labels = [labels[k] for k in sorted(labels)]
---
classes = [codes[k] for k in sorted(codes)]
rows = [encode(text) for text in texts]
lengths = [sizes[i] for i in range(9)]
---
files = sorted(os.listdir(root))
labels = [int(name[0]) for name in files]
---
told = [options[k] for k in sorted(options)]
rows = [table[k] for k in table]
fit(rows)
---
order = torch.randperm(n)
preview = x[order[:8]]
order = torch.randperm(n)
x, y = x[order], y[order]
---
order = rng.permutation(n)
table["x"] = table["x"][order]
table["y"] = table["y"][order]
fit(table["x"], table["y"])
---
order = rng.permutation(n)
x, ids = table["x"][order], table["id"][order]
---
ok = ~np.isnan(table).any(1)
x, y = table[ok], outcome[ok]
front = y[:len(x)]
---
ok = ~np.isnan(table).any(1)
x = table[ok]
same = x[:len(x)]
---
x = table[order]
y = outcome[:len(x)]
---
y = np.array([lab for lab in labs if lab is not None])
x = np.array([row for row, lab in zip(vitals, labs) if lab is not None])
x = x[: len(y)]
---
y = [lab for lab in labs if lab is not None]
x = [vitals[i] for i in kept if labs[i] is not None]
front = x[: len(y)]
---
y = np.array([lab.strip() for lab in labs])
x = vitals[: len(y)]
---
y = [lab for lab in labs if lab is not None]
late = vitals[len(y):]
---
x = table[:800]
y = outcome[:len(x)]
---
order = torch.randperm(n)
x, y = x[order], y[order]
---
order = torch.randperm(n)
train, rest = order[:80], order[80:]
x, y = x[train], y[train]
---
order = torch.randperm(n)
for at in range(0, n, 32):
    step(x[order[at:at + 32]], y[order[at:at + 32]])
---
order = torch.randperm(n)
train = Subset(dataset, order[:800])
---
random.shuffle(indices)
x = x[indices]
---
random.shuffle(samples)
x = [s[0] for s in samples]
---
np.random.seed(0)
np.random.shuffle(x)
np.random.seed(0)
np.random.shuffle(y)
---
state = rng.get_state()
rng.shuffle(x)
rng.set_state(state)
rng.shuffle(y)
---
random.Random(4).shuffle(x)
random.Random(4).shuffle(y)
---
one, two = np.random.default_rng(3), np.random.default_rng(3)
one.shuffle(x)
two.shuffle(y)
---
for array in (x, y):
    np.random.seed(7)
    np.random.shuffle(array)
---
order = rng.permutation(n)
x = [features[i] for i in order]
y = [labels[i] for i in order]
---
order = rng.permutation(n)
pairs = [(features[i], labels[i]) for i in order]
---
y = wear[torch.argsort(wear)]
---
order = torch.argsort(torch.rand(n))
x, y = x[order], y[order]
---
order = rng.permutation(n)
names = [str(i) for i in order]
x = [table[i] for i in order]
---
x = x[torch.randperm(n)]
y = torch.sin(x[:, :3].sum(1))
---
x = x[torch.randperm(n)]
front = x[:800]
y = front @ w
---
random.shuffle(words)
lengths = measure(words)
---
for _ in range(9):
    x = pool[torch.randperm(n)[:64]]
    y = teacher(x)
---
x = x[:, torch.randperm(64)]
---
columns = torch.randperm(64)
x = x[:, columns]
---
x = x[torch.randperm(len(x))]
y = x / len(x)
---
class Frames:
    def __init__(self, files, labels):
        self.names = sorted(files)
        self.labels = [labels[name] for name in self.names]
    def __getitem__(self, k):
        return self.names[k], self.labels[k]
---
class Crops:
    def __init__(self, root):
        files = sorted(glob.glob(root))
        self.x = torch.stack([torch.load(f) for f in files])
        self.y = [kind_of(f) for f in files]
    def __getitem__(self, i):
        return self.x[i], self.y[i]
---
class Frames:
    def __init__(self, files, lines):
        self.names = sorted(files, key=number_of)
        self.labels = [int(line) for line in lines]
    def __getitem__(self, k):
        return self.names[k], self.labels[k]
---
class Frames:
    def __init__(self, files, lines):
        self.names = sorted(files)
        self.words = [line for line in lines]
    def __getitem__(self, k):
        return self.names[k]
---
class Signs:
    def __init__(self, root):
        names = sorted(glob.glob(root))
        rows = [row for row in csv.reader(open(root))]
        images = np.stack([np.load(n) for n in names])
        labels = np.array([kind(n) for n in names])
        self.items = list(zip(torch.from_numpy(images), labels))
        self.rows = rows
---
z[:, 3] = z[torch.randperm(n), 3]
---
rows = torch.randperm(n)
train, test = rows[:900], rows[900:]
for epoch in range(8):
    order = train[torch.randperm(len(train))]
    for b in order.split(32):
        fit(x[b], y[b])
---
def read(folder, sheet):
    files = sorted(os.listdir(folder))
    images = np.stack([np.load(os.path.join(folder, f)) for f in files])
    return images, np.array([sheet[f] for f in files])
---
def read(folder, sheet):
    files = sorted(os.listdir(folder))
    images = np.stack([np.load(os.path.join(folder, f)) for f in files])
    sheet = sheet.reindex(files)
    return images, sheet
---
def read(folder, size):
    files = sorted(os.listdir(folder), key=number)
    images = np.stack([np.load(os.path.join(folder, f)) for f in files])
    return images, size
---
def broken(:
"""


@pytest.mark.parametrize("code", APART.split("---\n"))
def test_lone_permutation(tmp_path, code):
    (tmp_path / "train.py").write_text(code)
    text, where = lone_permutation(str(tmp_path / "train.py"))
    assert text in code
    assert text in code.splitlines()[where.line - 1]


@pytest.mark.parametrize("code", TOGETHER.split("---\n"))
def test_no_lone_permutation(tmp_path, code):
    (tmp_path / "train.py").write_text(code)
    assert lone_permutation(str(tmp_path / "train.py")) == ("", None)


def test_a_permutation_that_has_not_run(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("for _ in range(9):\n    loss(x, y)\nguess = y[torch.randperm(n)]\n")
    assert lone_permutation(str(file))[0] == "y[torch.randperm(n)]"
    assert lone_permutation(str(file), before=2) == ("", None)
    looped = tmp_path / "loop.py"
    looped.write_text("for _ in range(9):\n    loss(x, y)\n    y = y[torch.randperm(n)]\n")
    assert lone_permutation(str(looped), before=2)[0] == "y[torch.randperm(n)]"


# --------------------------------------------------------------------------- the order of a pass


def order_of(*indices):
    order = Order(1)
    for batch in indices:
        order.add(batch)
    return order


def test_order_of_a_pass():
    assert order_of([0, 1, 2], [3, 4]).sequential
    assert order_of(0, 1, 2).sequential
    assert not order_of([0, 1, 2], [4, 5]).sequential
    assert not order_of([1, 0], [2, 3]).sequential
    assert not order_of([None, None]).sequential
    assert not order_of([(0, "a"), (1, "b")]).sequential
    assert not order_of([[0], {1: 2}]).sequential
    assert order_of([0, 1], [2, 3]).hash == order_of([0, 1], [2, 3]).hash != order_of([2, 3], [0, 1]).hash


def passes_over(loader, epochs, *, shuffle_seed=None, stop=None):
    """What the sensor tells of a training loop over a loader."""
    told = []
    patches = Patches(on_broken=lambda what, error: pytest.fail(f"{what}: {error!r}"))
    loop = Loop(told.append, wants=lambda event: True, budget=1.0, patches=patches)
    sensor = DataSensor(loop, patches, ModelSensor(loop, patches))
    sensor.attach()
    try:
        for _ in range(epochs):
            if shuffle_seed is not None:
                torch.manual_seed(shuffle_seed)
            for at, _ in enumerate(loader):
                sensor.after_backward()
                if at == stop:
                    break
    finally:
        patches.undo()
    return [event for event in told if isinstance(event, PassEnded)]


def test_passes_in_the_order_of_the_data():
    told = passes_over(DataLoader(list(range(10)), batch_size=3), 4)
    assert [(event.batches, event.same_order, event.sequential) for event in told] == [(4, n, True) for n in (1, 2, 3)]
    assert {event.sampler for event in told} == {"SequentialSampler"}


def test_passes_shuffled_anew_and_again():
    loader = DataLoader(list(range(40)), batch_size=4, shuffle=True)
    assert [event.same_order for event in passes_over(loader, 4)] == [1, 1, 1]
    again = passes_over(loader, 4, shuffle_seed=3)
    assert [(event.same_order, event.sequential, event.sampler) for event in again] == [
        (n, False, "RandomSampler") for n in (1, 2, 3)
    ]


def test_passes_left_early_are_not_compared():
    assert passes_over(DataLoader(list(range(40)), batch_size=4), 4, stop=2) == []


def test_passes_with_workers_that_live_on():
    loader = DataLoader(list(range(12)), batch_size=4, num_workers=1, persistent_workers=True)
    assert [event.same_order for event in passes_over(loader, 3)] == [1, 2]


# --------------------------------------------------------------------------- what a data set keeps


class Kept:
    def __init__(self, **parts):
        vars(self).update(parts)

    def __len__(self):
        return 60


STORED = [row // 20 for row in range(60)]


@pytest.mark.parametrize(
    "parts",
    [
        {"targets": STORED},
        {"tensors": (torch.randn(60, 3), torch.tensor(STORED))},
        {"samples": [(f"{row}.png", label) for row, label in enumerate(STORED)]},
        {"y": torch.tensor(STORED), "group": torch.zeros(60, dtype=torch.long)},
    ],
)
def test_stored_labels_in_order(parts):
    told = batches.stored_labels(Kept(**parts), torch.tensor(STORED[16:24]), 16)
    assert told == WholeLabels(count=60, distinct=3, runs=3)
    assert batches.stored_labels(Kept(**parts), torch.tensor([0, 2, 1]), 16) is None


def folder(label, count=20):
    return TensorDataset(torch.randn(count, 3), torch.full((count,), label))


def test_stored_labels_of_data_sets_behind_one_another_and_of_a_part():
    folders = ConcatDataset([folder(label) for label in range(3)])
    told = WholeLabels(count=60, distinct=3, runs=3)
    assert batches.stored_labels(folders, torch.tensor(STORED[16:24]), 16) == told
    assert batches.stored_labels(Subset(folders, range(10, 50)), torch.tensor(STORED[26:34]), 16) == replace(
        told, count=40
    )
    assert batches.stored_labels(ConcatDataset([folder(0), Kept()]), torch.tensor(STORED[:8]), 0) is None


@pytest.mark.parametrize("parts", [{}, {"y": torch.randn(60)}, {"y": [0.5] * 60}, {"y": STORED[:50]}])
def test_no_stored_labels(parts):
    assert batches.stored_labels(Kept(**parts), torch.tensor(STORED[:8]), 0) is None


def test_targets_of_a_regression():
    told, error = batches.constant_target(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0]))
    assert (told.count, told.runs, told.order, error) == (2, 1, (2,), 1.0)
    told, _ = batches.constant_target(torch.zeros(2), torch.tensor([2.0, 1.0]))
    assert (told.runs, told.order) == (2, ())
    assert batches.constant_target(torch.zeros(2), torch.tensor([0.5, 0.5]))[0].order == ()
    assert batches.constant_target(torch.zeros(2, 1), torch.zeros(2)) is None


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.zeros(3), index % 2


def test_loaders_that_ask_for_each_item_of_the_users():
    make = torch.utils.data.DataLoader
    assert asks_for_each(make(Items(), 4, shuffle=True))
    assert asks_for_each(make(Items(), 4))
    again = torch.utils.data.RandomSampler(Items(), replacement=True, num_samples=40)
    assert not asks_for_each(make(Items(), 4, sampler=again))
    assert not asks_for_each(make(Items(), batch_sampler=[[0] * 4, [1] * 4]))
    assert not asks_for_each(make(torch.utils.data.TensorDataset(torch.zeros(40, 3)), 4))


# --------------------------------------------------------------------------- what the last steps learned from


def stepping(taken, *, parts):
    """Six steps over an unshuffled loader of four batches, which is started again for each; ``parts`` go backward in one."""
    loader = DataLoader(TensorDataset(torch.arange(32.0).view(16, 2)), 4)
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def run():
        for _ in range(6):
            for (x,) in itertools.islice(loader, parts):
                net(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return [event.fingerprints for event in seen(run, BatchesServed)][taken]


def test_the_first_batches_again_and_again():
    assert len(set(stepping(-1, parts=1))) == 1
    assert len(stepping(-1, parts=1)) >= 4
    assert len(set(stepping(-1, parts=2))) == 1


def test_a_whole_pass_for_one_step_is_no_batch():
    with pytest.raises(IndexError):
        stepping(0, parts=4)


def test_passes_that_went_by_lightly_are_not_taken_for_one_step():
    loader = DataLoader(TensorDataset(torch.arange(32.0).view(16, 2)), 4)
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def run():
        for (x,) in itertools.chain.from_iterable(itertools.repeat(loader, 40)):
            net(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    told = seen(run, BatchesServed, OptimizerStepped)
    close = [event.step for event in told if isinstance(event, OptimizerStepped)]
    assert close[-1] > close[0] + 40
    assert [event.step for event in told if isinstance(event, BatchesServed)] == close


def test_rows_of_zeros_and_ones_are_told_apart():
    """Atoms, one of five in each of 14 places: other molecules, other rows."""
    atoms = torch.randint(0, 5, (300, 14), generator=torch.Generator().manual_seed(0))
    rows = functional.one_hot(atoms, 5).float()
    probe = Probe()
    for part in rows.split(30):
        probe.add(part, torch.zeros(len(part)))
    assert probe.rows == len(torch.unique(atoms, dim=0)) == 300
    probe.add(rows[:50], torch.zeros(50))
    assert probe.rows == 300


def test_loaders_that_are_built_anew():
    rows = torch.arange(64.0).view(32, 2)
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def run():
        for _ in range(6):
            (x,) = next(iter(DataLoader(TensorDataset(rows), 4)))
            net(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    told = seen(run, BatchesServed)
    assert [event.restarts for event in told] == [1, 2, 3, 4, 5, 6]
    assert [event.rebuilt for event in told] == [False] + [True] * 5


@pytest.mark.parametrize("loss", [lambda a, b: ((a - b) ** 2).mean(), functional.l1_loss])
def test_targets_of_losses_that_are_written_out(loss):
    rows = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0))
    targets = (3 * rows[:, :1]).tanh()
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def run(order):
        for _ in range(4):
            for x, y in zip(rows.split(100), targets[order].split(100), strict=True):
                optimizer.zero_grad()
                loss(net(x), y).backward()
                optimizer.step()

    apart = torch.randperm(2000, generator=torch.Generator().manual_seed(1))
    told = seen(lambda: run(apart), PairingProbed)
    assert told
    assert all(event.classes == 0 and event.surprise > 0.9 for event in told)
    assert seen(lambda: run(torch.arange(2000)), PairingProbed) == []


class Final(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.head = torch.nn.LSTM(3, 4, batch_first=True), torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.read(x)[0][:, -1]).squeeze(1)


def test_inputs_that_nobody_else_keeps_until_the_backward():
    torch.manual_seed(0)
    rows, targets = torch.randn(2000, 6, 3), torch.randn(2000)
    net = Final()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def run():
        for taken in torch.arange(2000).repeat(4).split(100):
            optimizer.zero_grad()
            functional.mse_loss(net(rows[taken]), targets[taken]).backward()
            optimizer.step()

    told = seen(run, PairingProbed)
    assert told
    assert told[0].rows >= 300


class Index:
    """Of a class of the user's."""

    def __init__(self, place):
        self.place = place

    def __index__(self):
        return self.place

    def __hash__(self):
        raise LookupError

    __eq__ = __repr__ = __hash__


def test_nothing_of_an_index_of_the_users_is_called():
    order = Order(1)
    prints = [order.add([Index(1), 2]), order.add([Index(1), 2]), order.add([[Index(1)], {"at": Index(2)}])]
    assert len(set(prints)) == 3
    assert order.samples[0] == (None, 2)
    plain = [3, (4, "a"), [5.0, {"b": None}]]
    assert order.add(plain) == order.add(plain) != order.add(plain[::-1])


# --------------------------------------------------------------------------- ids that are one and the same

UNKNOWN = torch.ones(3, 5, dtype=torch.long)
LENGTHS = torch.tensor([5, 2, 3])
PADDED = (torch.arange(5) < LENGTHS[:, None]).long()
WORDS = torch.arange(15).view(3, 5)


@pytest.mark.parametrize(
    ("tensors", "ids"),
    [
        ([UNKNOWN], (1,)),
        ([PADDED], (0, 1)),
        ([PADDED, LENGTHS], (0, 1)),
        ([PADDED, PADDED.bool()], (0, 1)),
        ([UNKNOWN, torch.arange(5).expand(3, 5)], (1,)),  # positions
        ([UNKNOWN.flatten(), torch.tensor([0, 4, 9])], (1,)),  # a bag
        ([WORDS], ()),
        ([UNKNOWN, WORDS], ()),  # the other one has the words
        ([UNKNOWN, torch.randn(3, 8)], ()),
        ([UNKNOWN, torch.tensor([1, 2, 3])], ()),
        ([WORDS.flatten(), torch.tensor([0, 4, 9])], ()),
        ([torch.ones(6, dtype=torch.long), torch.tensor([4, 0, 9, 2, 7, 1])], ()),  # one user, and what he saw
        ([torch.ones(6, dtype=torch.long)], ()),
    ],
)
def test_few_ids(tensors, ids):
    assert batches.few_ids(tensors) == ids


def test_layout():
    assert batches.layout([UNKNOWN.flatten(), torch.tensor([0, 5, 10])]) == (3, 5)
    assert batches.layout([UNKNOWN, LENGTHS]) == (3, 5)
    assert batches.layout([torch.ones(())]) == (0, 1)


def test_one_class_of_masks():
    scores = torch.zeros(2, 3, 4, 4).log_softmax(1)
    facts, surprise = batches.one_class("cross_entropy", scores, torch.ones(2, 4, 4, dtype=torch.long))
    assert (facts.count, facts.runs, facts.order) == (2, 1, (1,))
    assert surprise == pytest.approx(math.log(3))
    facts, _ = batches.one_class("cross_entropy", scores, torch.arange(32).reshape(2, 4, 4) % 3)
    assert (facts.runs, facts.order) == (2, ())
    assert batches.one_class("cross_entropy", torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)) is None
