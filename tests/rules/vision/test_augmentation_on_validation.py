import pytest

from flatline.events import ItemsRedrawn
from flatline.rules.vision.augmentation_on_validation import AugmentationOnValidation
from flatline.testing import lint, play

CODE = """
import torch
from torch.utils.data import DataLoader, random_split
from torchvision import datasets, transforms
augment = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
plain = transforms.Compose([transforms.Resize(32), transforms.ToTensor()])
train_set = datasets.CIFAR10("data", train=True, transform=augment)
valid_set = datasets.CIFAR10("data", train=False, transform=augment)
train_loader, valid_loader = DataLoader(train_set, 8, shuffle=True), DataLoader(valid_set, 8)
for x, y in train_loader:
    criterion(net(x), y).backward()
    opt.step()
net.eval()
with torch.no_grad():
    for x, y in valid_loader:
        right += (net(x).argmax(1) == y).sum()
"""
SPLIT = CODE.replace(
    'valid_set = datasets.CIFAR10("data", train=False, transform=augment)\n',
    "train_set, valid_set = random_split(train_set, [0.8, 0.2])\n",
).replace("train_set = datasets", "full = datasets").replace("random_split(train_set", "random_split(full")  # fmt: skip


@pytest.mark.parametrize("code", [CODE, SPLIT])
def test_source(code):
    """Seen as a SourceParsed."""
    (finding,) = lint(AugmentationOnValidation, code)
    assert (finding.code, finding.severity) == ("V2", "warning")
    assert "RandomResizedCrop" in finding.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("train=False, transform=augment", "train=False, transform=plain"),
        ("in valid_loader", "in train_loader"),  # the score on the training data
        ("DataLoader(valid_set, 8)", "DataLoader(train_set, 8)"),
        ("net.eval()", "valid_set.transform = plain"),
        ("net.eval()", "net.eval()  # TTA"),
        ("transforms.RandomResizedCrop(32)", "transforms.RandomHorizontalFlip(p=0)"),
        ("train=False, transform=augment", "train=False, transform=pick()"),
        (".argmax(1) == y).sum()", ").sum()"),  # nothing is scored
    ],
)
def test_near_miss_source(old, new):
    assert lint(AugmentationOnValidation, CODE.replace(old, new)) == []


def test_near_miss_source_transform_replaced_after_the_split():
    assert lint(AugmentationOnValidation, SPLIT.replace("net.eval()", "valid_set.dataset.transform = plain")) == []


DICTIONARY = CODE.replace(
    "train_loader, valid_loader = DataLoader(train_set, 8, shuffle=True), DataLoader(valid_set, 8)",
    "loaders = {'train': DataLoader(train_set, 8, shuffle=True), 'valid': DataLoader(valid_set, 8)}",
).replace("in train_loader", "in loaders['train']").replace("in valid_loader", "in loaders['valid']")  # fmt: skip


def test_source_in_a_dictionary():
    assert len(lint(AugmentationOnValidation, DICTIONARY)) == 1
    assert lint(AugmentationOnValidation, DICTIONARY.replace("net.eval()", "loaders['valid'] = other")) == []
    assert lint(AugmentationOnValidation, DICTIONARY.replace("in loaders['valid']", "in loaders[name]")) == []


SPREAD = """
import torch
from torch.utils.data import DataLoader, random_split
from torchvision import datasets, transforms
def loaders_of(root):
    full = datasets.EuroSAT(root, transform=transforms.Compose([transforms.RandomRotation(9), transforms.ToTensor()]))
    train_set, valid_set = random_split(full, [0.8, 0.2])
    return DataLoader(train_set, 8, shuffle=True), DataLoader(valid_set, 8)
def fit(net, train_loader, valid_loader, epochs):
    for x, y in train_loader:
        criterion(net(x), y).backward()
        opt.step()
    net.eval()
    for x, y in valid_loader:
        right += (net(x).argmax(1) == y).sum()
loaders = loaders_of("data")
fit({})
"""


def test_source_loaders_that_are_spread_over_arguments():
    assert len(lint(AugmentationOnValidation, SPREAD.format("net, *loaders, 3"))) == 1
    assert len(lint(AugmentationOnValidation, SPREAD.format("net, *loaders_of('data'), 3"))) == 1


@pytest.mark.parametrize("given", ["net, *others, 3", "*parts, *loaders, 3", "net, *loaders[::-1], 3"])
def test_near_miss_source_arguments_that_are_not_known(given):
    assert lint(AugmentationOnValidation, SPREAD.format(given)) == []


STEPPED = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, random_split
from torchvision import datasets, transforms as T
aug, plain = T.Compose([T.RandomRotation(9), T.ToTensor()]), T.Compose([T.ToTensor()])
class Base(nn.Module):
    def training_step(self, batch):
        x, y = batch
        return F.cross_entropy(self(x), y)
    def validation_step(self, batch):
        x, y = batch
        out = self(x)
        return {result}
class Net(Base):
    def forward(self, x):
        return self.head(x)
def accuracy(out, y):
    _, best = torch.max(out, dim=1)
    return (best == y).float().mean()
def check(model, batch):
    return model.validation_step(batch)
def evaluate(model, loader):
    {mode}
    {scored}
def fit(model, opt):
    whole = datasets.ImageFolder("pets", {transform})
    train_set, valid_set = random_split(whole, [0.8, 0.2])
    train, valid = DataLoader(train_set, 8, shuffle=True), DataLoader(valid_set, 8)
    for epoch in range(9):
        for batch in train:
            model.training_step(batch).backward()
            opt.step()
        evaluate(model, {loader})
fit(Net(), opt)
"""
USUAL = {
    "result": "accuracy(out, y)", "mode": "model.eval()", "scored": "return [model.validation_step(b) for b in loader]",
    "transform": "aug", "loader": "valid",
}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"result": "(out.argmax(1) == y).sum()"},
        {"scored": "return sum(model.validation_step(b) for b in loader)"},
        {"scored": "for b in loader: scores.append(check(model, b))"},
        {
            "scored": "return {i: check(model, b) for i, b in enumerate(loader)}",
            "mode": "torch.no_grad(); model.eval()",
        },
    ],
)
def test_source_scored_by_a_function_for_each_batch(changed):
    (finding,) = lint(AugmentationOnValidation, STEPPED.format(**{**USUAL, **changed}))
    assert finding.message.startswith("loader is scored after T.RandomRotation(9) (line 6)")


@pytest.mark.parametrize(
    "changed",
    [
        {"transform": "plain"},
        {"result": "out"},
        {"result": "out.argmax(1)"},
        {"mode": "pass"},
        {"loader": "train"},
        {"loader": "others"},
        {"scored": "return [b for b in loader]"},
        {"scored": "return [unknown(model, b) for b in loader]"},
        {"scored": "return [[model.validation_step(b) for b in loader] for _ in range(8)]"},
    ],
)
def test_near_miss_source_batches_that_nothing_scores(changed):
    assert lint(AugmentationOnValidation, STEPPED.format(**{**USUAL, **changed})) == []


CHOSEN = """
import torch
from torch.utils.data import DataLoader, random_split
from torchvision import datasets, transforms as T
TABLE = {{}}
def register(fn):
    TABLE[fn.__name__] = fn
    return fn
@register
def light(size):
    return T.Compose([T.Resize(size), {light}, T.ToTensor()])
@register
def strong(size):
    return T.Compose([T.RandomResizedCrop(size), T.ToTensor()])
def pick(name, size):
    if name == "light":
        return light(size)
    return strong(size)
def run(cfg, net, opt):
    full = datasets.ImageFolder(cfg["root"], transform={chosen})
    train_set, valid_set = random_split(full, [0.8, 0.2])
    for x, y in DataLoader(train_set, 8, shuffle=True):
        criterion(net(x), y).backward()
        opt.step()
    net.eval()
    for x, y in DataLoader(valid_set, 8):
        right += (net(x).argmax(1) == y).sum()
run(read(), net, opt)
"""
FLIP = "T.RandomHorizontalFlip()"


@pytest.mark.parametrize(
    ("light", "chosen", "expected"),
    [
        (FLIP, "TABLE[cfg['transform']](64)", 1),
        (FLIP, "pick(cfg['transform'], 64)", 1),
        (FLIP, "(light if cfg['light'] else strong)(64)", 1),
        ("T.CenterCrop(32)", "TABLE[cfg['transform']](64)", 0),  # which of them is not known
        ("T.CenterCrop(32)", "pick(cfg['transform'], 64)", 0),
        ("T.CenterCrop(32)", "TABLE['strong'](64)", 1),
        (FLIP, "OTHERS[cfg['transform']](64)", 0),
        (FLIP, "(light if cfg['light'] else other)(64)", 0),
    ],
)
def test_source_random_whichever_is_chosen(light, chosen, expected):
    assert len(lint(AugmentationOnValidation, CHOSEN.format(light=light, chosen=chosen))) == expected


def test_items_redrawn():
    """Two near misses stand with the sensor: items that stay, and items seen elsewhere as they are, make no ItemsRedrawn."""
    told = ItemsRedrawn(step=90, dataset="Stamps", changed=9, rows=16, passes=3)
    (finding,) = play(AugmentationOnValidation, told)
    assert (finding.code, finding.severity) == ("V2", "warning")
    assert finding.message == (
        "9 of the first 16 items of Stamps, which nothing is learned from, change from pass to pass, and their targets do not"
    )
