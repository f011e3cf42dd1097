"""Loaders, data sets and transforms by phase, as the source reader follows them."""

import pytest
from parsed import kinds_in, parsed

HEAD = """
import os, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, models, transforms as T
"""
TUTORIAL = """
aug = T.Compose([T.RandomResizedCrop(224), T.ToTensor()])
plain = T.Compose([T.CenterCrop(224), T.ToTensor()])
tfms = {{"train": aug, "val": {val}}}
sets = {{x: datasets.ImageFolder(os.path.join("data", x), tfms[x]) for x in ["train", "val"]}}
loaders = {{x: DataLoader({each}, batch_size=4, shuffle={shuffle}) for x{more} in {over}}}

def fit(model, crit, opt):
    for epoch in range(25):
        for phase in ["train", "val"]:
            model.train() if phase == "train" else model.eval()
            for x, y in loaders[phase]:
                opt.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    out = model(x)
                    loss = crit(out, y)
                    if phase == "train":
                        loss.backward()
                        opt.step()
                good = (out.argmax(1) == y).sum()
"""


@pytest.mark.parametrize(
    ("val", "shuffle", "each", "more", "over", "expected"),
    [
        ("plain", "True", "sets[x]", "", '["train", "val"]', []),
        ("plain", "x == 'train'", "sets[x]", "", '["train", "val"]', []),
        ("plain", "x == 'train'", "data", ", data", "sets.items()", []),
        ("aug", "True", "sets[x]", "", '["train", "val"]', ["augmented"]),
        ("aug", "True", "data", ", data", "sets.items()", ["augmented"]),
        ("plain", "False", "sets[x]", "", '["train", "val"]', ["unshuffled"]),
        ("plain", "x == 'val'", "sets[x]", "", '["train", "val"]', ["unshuffled"]),
        ("plain", "x != 'train'", "data", ", data", "sets.items()", ["unshuffled"]),
        ("aug", "True", "sets[x]", "", "os.listdir('data')", []),  # keys that nobody knows
    ],
)
def test_phases_in_one_loop(val, shuffle, each, more, over, expected):
    """A table that a comprehension makes is the table; a phase has its own loader."""
    code = TUTORIAL.format(val=val, shuffle=shuffle, each=each, more=more, over=over)
    assert [kind for kind in kinds_in(HEAD, code) if kind in ("augmented", "unshuffled")] == expected


CALLED = """
def transform(train):
    if train:
        return T.Compose([T.{random}, T.ToTensor()])
    return T.Compose([T.CenterCrop(32), T.ToTensor()])

class Leaves(Dataset):
    def __init__(self, frame, transform=None):
        self.frame = frame
        self.transform = transform
    def __getitem__(self, i):
        image = self.frame.image[i]
        if {when}:
            image = self.transform(image)
        return image, self.frame.label[i]

def loader(frame, train):
    return DataLoader(Leaves(frame, transform({given})), 32, shuffle=train)

def turn(model, loader, crit, opt=None):
    training = opt is not None
    model.train(training)
    for x, y in loader:
        with torch.set_grad_enabled(training):
            out = model(x)
            loss = crit(out, y)
        if training:
            opt.zero_grad()
            loss.backward()
            opt.step()
        good = (out.argmax(1) == y).sum()

def main(model, train, val, crit, opt):
    for epoch in range(5):
        turn(model, loader(train, True), crit, opt)
        turn(model, {scored}, crit)
"""


@pytest.mark.parametrize(
    ("random", "when", "given", "scored", "expected"),
    [
        ("RandomCrop(32)", "self.transform", "True", "loader(val, False)", True),
        ("RandomCrop(32)", "self.transform is not None", "train", "loader(val, True)", True),
        ("RandomCrop(32)", "self.transform", "train", "loader(val, False)", False),
        ("RandomCrop(32)", "self.transform", "not train", "loader(val, False)", True),
        ("RandomCrop(32)", "self.frame.training", "True", "loader(val, False)", False),  # not for every item
        ("RandomHorizontalFlip(1.0)", "self.transform", "True", "loader(val, False)", False),
    ],
)
def test_transforms_of_own_data_sets(random, when, given, scored, expected):
    """What a call decides is decided by each call; what an item may go past is not known."""
    code = CALLED.format(random=random, when=when, given=given, scored=scored)
    assert ("augmented" in kinds_in(HEAD, code)) is expected


LISTED = """
class Flowers(Dataset):
    def __init__(self, root):
        self.classes = sorted(os.listdir(root))
        self.index = {{c: i for i, c in enumerate(self.classes)}}
        self.samples = []
        {listed}
    def __getitem__(self, i):
        path, label = self.samples[{at}]
        return torch.load(path), label

def run(model, opt):
    data = Flowers("flowers")
    {more}
    for epoch in range(5):
        for x, y in DataLoader(data, batch_size=32):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
"""
NESTED = """for {target} in {over}:
            for name in os.listdir(os.path.join(root, c)):
                self.samples.append((os.path.join(root, c, name), {label}))"""


@pytest.mark.parametrize(
    ("target", "over", "label", "at", "more", "expected"),
    [
        ("c", "self.classes", "self.index[c]", "i", "pass", True),
        ("k, c", "enumerate(self.classes)", "k", "i", "pass", True),
        ("c", "self.classes", "self.classes.index(c)", "i", "pass", True),
        ("c", "self.classes", "labels[c]", "i", "pass", False),  # of a table that nobody knows
        ("c", "self.classes", "int(name[0])", "i", "pass", False),
        ("k, c", "enumerate(self.classes)", "k", "torch.randint(9, ())", "pass", False),
        ("k, c", "enumerate(self.classes)", "k", "i", "random.shuffle(data.samples)", False),
        ("k, c", "enumerate(self.classes)", "k", "i", "data.samples.sort(key=hash)", False),
        ("k, c", "enumerate(self.classes)", "k", "i", "data.samples[:] = [data.samples[j] for j in keep]", False),
        ("k, c", "enumerate(self.classes)", "k", "i", "data.samples = [data.samples[j] for j in keep]", False),
        ("k, c", "enumerate(self.classes)", "k", "i", "mixed = data.samples; mix(mixed)", False),
        ("k, c", "enumerate(self.classes)", "k", "i", "mix(data.samples)", False),
        ("k, c", "enumerate(self.classes)", "k", "i", "print(len(data.samples))", True),
        ("k, c", "enumerate(self.classes)", "k", "i", "rows = len(data.samples)", True),
    ],
)
def test_samples_that_are_listed_by_class(target, over, label, at, more, expected):
    """Only a number of the class itself is known to stay the same from file to file."""
    listed = NESTED.format(target=target, over=over, label=label)
    code = LISTED.format(listed=listed, at=at, more=more)
    assert ("unshuffled" in kinds_in(HEAD, code)) is expected


GROWN = """
NUMBERS = {{"cat": 0, "dog": 1, "owl": 2}}
def scan(root):
    files, marks = [], []
    for mark, name in enumerate(sorted(os.listdir(root))):
        found = glob.glob(f"{{root}}/{{name}}/*.jpg")
        files.extend(found)
        marks.extend([mark] * len(found))
    return files, marks

class Gestures(Dataset):
    def __init__(self, root, transform=None, files=(), marks=()):
        {made}
    def __getitem__(self, index):
        return torch.load(self.paths[index]), self.labels[index]
    def grow(self, root):
        {later}

def run(model, opt):
    data = {data}
    for epoch in range(5):
        for x, y in DataLoader(data, batch_size=32):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
"""
BEGUN = """self.paths, self.labels = [], []
        for {target} in {over}:
            found = os.listdir(os.path.join(root, str(name)))
            self.paths += found
            {grown}"""
OWN = 'Gestures("gestures")'


@pytest.mark.parametrize(
    ("made", "data", "later", "expected"),
    [
        (BEGUN.format(target="k, name", over="enumerate(CLASSES)", grown="self.labels += [k] * len(found)"), OWN, "pass", True),
        (BEGUN.format(target="k, name", over="enumerate(CLASSES)", grown="self.labels.extend(len(found) * [k])"), OWN, "pass", True),
        (BEGUN.format(target="name, k", over="NUMBERS.items()", grown="self.labels += [k for _ in found]"), OWN, "pass", True),
        (BEGUN.format(target="name", over="range(10)", grown="self.labels += [name] * len(found)"), OWN, "pass", True),
        (BEGUN.format(target="name, k", over="table.items()", grown="self.labels += [k] * len(found)"), OWN, "pass", False),
        (BEGUN.format(target="k, name", over="enumerate(CLASSES)", grown="self.labels += marks * len(found)"), OWN, "pass", False),
        (BEGUN.format(target="k, name", over="enumerate(CLASSES)", grown="self.labels += [k, 0] * len(found)"), OWN, "pass", False),
        (BEGUN.format(target="k, name", over="enumerate(CLASSES)", grown="self.labels += [k] * len(found)"), OWN, "self.labels += root", False),
        ("self.paths, self.labels = scan(root)", OWN, "pass", True),
        ("self.labels, self.paths = scan(root)", OWN, "pass", False),
        ("self.paths, self.labels = mixed(*scan(root))", OWN, "pass", False),
        ("self.paths, self.labels = files, torch.tensor(marks)", "Gestures('a', None, *scan('a'))", "pass", False),
        ("self.paths, self.labels = files, torch.tensor(marks)", "(made := scan('a')) and Gestures('a', None, *made)", "pass", False),
    ],
)  # fmt: skip
def test_lists_that_grow_by_class(made, data, later, expected):
    """By as many of one number as a class has files; by anything else, or once more, nothing is known."""
    assert ("unshuffled" in kinds_in(HEAD, GROWN.format(made=made, data=data, later=later))) is expected


@pytest.mark.parametrize(
    ("between", "expected"), [("pass", True), ("random.seed(0)", True), ("random.shuffle(marks)", False)]
)
def test_lists_that_are_handed_over(between, expected):
    code = GROWN.format(made="self.paths, self.labels = files, torch.tensor(marks)", data="made", later="pass")
    given = f"files, marks = scan('a')\n    {between}\n    data = Gestures('a', None, files, marks)"
    assert ("unshuffled" in kinds_in(HEAD, code.replace("data = made", given))) is expected


STEPS = """
def run(model, opt):
    data = Flowers("flowers")
    for epoch in range(5):
        opt.zero_grad()
        for x, y in DataLoader(data, batch_size=32):
            nn.functional.cross_entropy(model(x), y).backward()
            {inside}
        opt.step()
"""


@pytest.mark.parametrize(("inside", "expected"), [("opt.step()", ["Flowers"]), ("pass", [])])
def test_one_step_for_all_batches(inside, expected):
    """Their order is nothing then."""
    listed = NESTED.format(target="c", over="self.classes", label="self.index[c]")
    made = LISTED.format(listed=listed, at="i", more="pass").partition("\ndef run")[0]
    code = made + STEPS.format(inside=inside)
    assert [fact.name for fact in parsed(HEAD, code).of("unshuffled")] == expected


DRAWN = """
def evaluate(model, loader):
    scores = []
    with torch.no_grad():
        {around}
            for x, y in loader:
                scores.append((model(x).argmax(1) == y).float().mean())
    return scores

def run(model, opt):
    held = DataLoader(datasets.ImageFolder("val", T.Compose([T.RandomCrop(32), T.ToTensor()])))
    model.eval()
    {call}
"""


@pytest.mark.parametrize(
    ("around", "call", "expected"),
    [
        ("if True:", "evaluate(model, held)", True),
        ("if True:", "for epoch in range(3): evaluate(model, held)", True),
        ("if True:", "for repeat in range(3): evaluate(model, held)", False),
        ("if True:", "scores = [evaluate(model, held) for _ in range(3)]", False),
        ("for draw in range(50):", "evaluate(model, held)", False),
        ("for epoch in range(50):", "evaluate(model, held)", True),
    ],
)
def test_draws_that_are_averaged(around, call, expected):
    """A pass that is made again and again, while nothing is trained, looks at many draws of each item."""
    assert ("augmented" in kinds_in(HEAD, DRAWN.format(around=around, call=call))) is expected


FROZEN = """
def build(frozen):
    net = models.resnet18(weights="DEFAULT")
    if frozen:
        for p in net.parameters():
            p.requires_grad = False
    net.fc = nn.Linear(512, 3)
    return net

def train(model, data, opt):
    for epoch in range(3):
        model.train()
        for x, y in data:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()

def main(data):
    {made}
    train(model, data, torch.optim.SGD(model.parameters(), 0.1))
"""


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("model = build(True)", True),
        ("model = build(False)", False),
        ("model, teacher = build(False), build(True)", False),  # the frozen one is another
    ],
)
def test_a_model_that_its_maker_freezes(made, expected):
    """The calls of the function that makes it have the frozen one."""
    assert ("drifting norms" in kinds_in(HEAD, FROZEN.format(made=made))) is expected


LEARNER = """
class Learner:
    def __init__(self, model, epochs):
        self.model, self.epochs = model, epochs
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
    def turn(self, loader):
        self.model.train()
        for x, y in loader:
            self.opt.zero_grad()
            torch.nn.functional.cross_entropy(self.model(x), y).backward()
            self.opt.step()
    def fit(self, loader):
        for epoch in range(self.epochs):
            {before}
            self.turn(loader)
    @torch.no_grad()
    def score(self, loader):
        self.model.eval()
        return sum((self.model(x).argmax(1) == y).sum().item() for x, y in loader)
"""
DATA = """
from torch.utils.data import DataLoader, random_split
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms as T
def loaders(root):
    kept = datasets.ImageFolder(root, T.Compose([{random}, T.ToTensor()]))
    train, val = random_split(kept, [900, 100])
    sampler = DistributedSampler(train)
    return DataLoader(train, 32, sampler=sampler), DataLoader(val, 32)
"""
STARTED = """
from {data} import loaders
from train import Learner
train, val = loaders("photos")
learner = Learner(torch.nn.Linear(8, 2), 10)
learner.fit(train)
print(learner.score(val))
"""


@pytest.mark.parametrize(
    ("before", "random", "data", "expected"),
    [
        ("pass", "T.RandomHorizontalFlip()", "data", ["augmented", "no set_epoch"]),
        ("loader.sampler.set_epoch(epoch)", "T.RandomHorizontalFlip()", "data", ["augmented"]),
        ("pass", "T.CenterCrop(224)", "data", ["no set_epoch"]),
        ("pass", "T.RandomHorizontalFlip()", "elsewhere", []),
    ],
)
def test_loaders_of_a_file_that_the_loop_knows_nothing_of(before, random, data, expected):
    """The file that starts both imports the one with the loops and the one with the loaders."""
    others = {"data": DATA.format(random=random), "start": STARTED.format(data=data)}
    found = kinds_in("import torch\n", LEARNER.format(before=before), **others)
    assert sorted(kind for kind in found if kind in ("augmented", "no set_epoch")) == expected


PUT_BACK = """
from torch.utils.data import random_split
PLAIN = T.Compose([T.CenterCrop(64), T.ToTensor()])
def run(root, net, opt):
    full = datasets.ImageFolder(root, transform=T.Compose([T.RandomHorizontalFlip(), T.ToTensor()]))
    train_set, valid_set = random_split(full, [0.8, 0.2])
    for x, y in DataLoader(train_set, 8, shuffle=True):
        opt.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
    {}
    net.eval()
    right = 0
    for x, y in DataLoader(valid_set, 8):
        right += (net(x).argmax(1) == y).sum()
"""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("print(len(valid_set))", ["augmented"]),
        ("valid_set.dataset = datasets.ImageFolder(root, PLAIN)", []),
        ("setattr(full, 'transform', PLAIN)", []),
        ("use_plain(valid_set)", []),
    ],
)
def test_transforms_that_are_taken_away_before_the_scores(change, expected):
    assert [kind for kind in kinds_in(HEAD, PUT_BACK.format(change)) if kind == "augmented"] == expected
