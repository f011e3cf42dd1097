"""Reading Python source: records, hooks in lists, what is spread into a call, and models that stand beside."""

import pytest

from flatline.readers.source._files import Text
from flatline.readers.source._project import event
from flatline.readers.source._resolve import Project
from flatline.rules.data.training_data_not_shuffled import TrainingDataNotShuffled
from flatline.rules.gradients.clip_after_step import ClipAfterStep
from flatline.rules.memory.loss_graph_kept import LossGraphKept
from flatline.rules.modes.train_mode_not_restored import TrainModeNotRestored
from flatline.rules.modes.validation_in_train_mode import ValidationInTrainMode
from flatline.rules.optimization.frozen_norm_drifts import FrozenNormDrifts
from flatline.rules.optimization.padding_in_loss import PaddingInLoss
from flatline.rules.optimization.scheduler_out_of_step import SchedulerOutOfStep
from flatline.rules.precision.half_without_scaler import HalfWithoutScaler
from flatline.rules.vision.augmentation_on_validation import AugmentationOnValidation
from flatline.testing import lint

NET = """
import random
import torch, torch.nn as nn, torch.nn.functional as F
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.drop = nn.Linear(4, 2), nn.Dropout(0.3)
    def forward(self, x):
        return self.body(self.drop(x))
"""

CALLED = """
class Hook:
    def start(self, t): ...
    def end(self, t): ...
class Clip(Hook):
    def {when}(self, t):
        nn.utils.clip_grad_norm_(t.net.parameters(), 1.0)
@dataclass
class Fit:
    net: nn.Module
    opt: torch.optim.Optimizer
    hooks: list = field(default_factory=list)
{more}
    def fire(self, name):
        for hook in self.hooks:
            getattr(hook, name)(self)
    def run(self, loader):
        for x, y in loader:
            self.opt.zero_grad()
            F.cross_entropy(self.net(x), y).backward()
            self.fire("start")
            self.opt.step()
            self.fire("end")
net = Net()
Fit(net, torch.optim.Adam(net.parameters()), {hooks}).run(loader)
"""


@pytest.mark.parametrize(
    ("when", "hooks", "more", "expected"),
    [
        ("end", "[Clip()]", "", 1),
        ("end", "hooks=[Clip()]", "", 1),
        ("start", "[Clip()]", "", 0),
        ("end", "[]", "", 0),
        ("end", "given", "", 0),
        ("end", "[Clip()]", "    def __post_init__(self):\n        self.hooks = []", 0),
    ],
)
def test_the_fields_of_a_dataclass_from_within(when, hooks, more, expected):
    code = NET + CALLED.format(when=when, hooks=hooks, more=more)
    assert len(lint(ClipAfterStep, code)) == expected


KEPT = """
@dataclass
class Out:
    loss: torch.Tensor
    size: int
{more}
def step(x, y):
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return {result}
def run(loader):
    outs = []
    for x, y in loader:
        {line}
    return outs
"""


@pytest.mark.parametrize(
    ("result", "line", "expected"),
    [
        ("Out(loss, 3)", "outs.append(step(x, y))", 1),
        ("Out(size=3, loss=loss)", "outs.append(step(x, y).loss)", 1),
        ("{'loss': loss, 'size': 3}", "outs.append(step(x, y))", 1),
        ("Out(loss.detach(), 3)", "outs.append(step(x, y))", 0),
        ("Out(loss, 3)", "outs.append(step(x, y).size)", 0),
        ("Out(loss, 3)", "out = step(x, y)", 0),
    ],
)
def test_losses_in_a_record(result, line, expected):
    assert len(lint(LossGraphKept, NET + KEPT.format(more="", result=result, line=line))) == expected


def test_losses_in_records_that_a_comprehension_collects():
    code = NET + KEPT.format(more="", result="Out(loss=loss, size=3)", line="pass")
    code += "def epoch(loader):\n    outs = [step(x, y) for x, y in loader]\n    return sum(o.size for o in outs)\n"
    (finding,) = lint(LossGraphKept, code)
    assert finding.severity == "warning"
    cleaned = "    def __post_init__(self):\n        self.loss = self.loss.detach()"
    code = NET + KEPT.format(more=cleaned, result="Out(loss=loss, size=3)", line="outs.append(step(x, y))")
    assert lint(LossGraphKept, code) == []


@pytest.mark.parametrize(
    ("result", "line", "edited"),
    [("loss", "outs.append(step(x, y))", True), ("(loss, 3)", "out = step(x, y); outs.append(out)", False)],
)
def test_near_miss_no_detach_on_a_record(result, line, edited):
    text = Text("train.py", tuple((NET + KEPT.format(more="", result=result, line=line)).split("\n")))
    (fact,) = event(Project(), text).of("kept")
    assert (fact.edit is not None) is edited


HOOKED = """
{before}
def train(net, opt, loader):
    net.train()
    for step in range(100):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
            for hook in {listed}:
                hook(net)
{above}
def check(net):
    net.eval()
    with torch.no_grad():
        print(net(held).argmax(1))
    {then}
{after}
net = Net()
train(net, torch.optim.Adam(net.parameters()), loader)
"""
DECORATOR = "HOOKS = []\ndef hook(f):\n    HOOKS.append(f)\n    return f"
TABLE = "HOOKS = {}\ndef on(name):\n    def put(f):\n        HOOKS.setdefault(name, []).append(f)\n        return f\n    return put"
ADD = "HOOKS = {'step': []}\ndef add(name, f):\n    HOOKS[name].append(f)"


@pytest.mark.parametrize(
    ("before", "listed", "above", "then", "after", "expected"),
    [
        (DECORATOR, "HOOKS", "@hook", "", "", 1),
        (TABLE, "HOOKS['step']", "@on('step')", "", "", 1),
        (TABLE, "HOOKS.get('step', [])", "@on('step')", "", "", 1),
        (ADD, "HOOKS['step']", "", "", "add('step', check)", 1),
        ("", "HOOKS", "", "", "HOOKS = [check]", 1),
        ("HOOKS = []", "HOOKS", "", "", "HOOKS.append(check)", 1),
        (DECORATOR, "HOOKS", "@hook", "net.train()", "", 0),
        (DECORATOR, "HOOKS", "@hook", "", "@hook\ndef back(net):\n    net.train()", 0),
        (TABLE, "HOOKS['step']", "@on('end')", "", "", 0),
        (TABLE, "HOOKS['step']", "@on(name)", "", "", 0),
        ("", "HOOKS", "", "", "HOOKS = [check]\nHOOKS.append(others.hook)", 0),
        (DECORATOR.replace("[]", "[others.hook]"), "HOOKS", "@hook", "", "", 0),
    ],
)
def test_functions_in_lists(before, listed, above, then, after, expected):
    code = NET + HOOKED.format(before=before, listed=listed, above=above, then=then, after=after)
    assert len(lint(TrainModeNotRestored, code)) == expected


SPREAD = """
@dataclass
class Options:
    batch_size: int = 8
    {field}
    def given(self, **more):
        return {{**{{f.name: getattr(self, f.name) for f in fields(self)}}, **more}}
options = Options()
{before}
loader = DataLoader(ImageFolder("train", tf), {given})
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("field", "before", "given", "expected"),
    [
        ("", "", "**options.given(drop_last=True)", 1),
        ("", "", "**asdict(options)", 1),
        ("shuffle: bool = False", "", "**vars(options)", 1),
        ("", "base = dict(batch_size=8)", "**{**base, 'pin_memory': True}", 1),
        ("", "base = dict(batch_size=8)", "**(base | dict(drop_last=True))", 1),
        ("", "", "**options.given(shuffle=True)", 0),
        ("shuffle: bool = True", "", "**options.given()", 0),
        ("", "options.shuffle = True", "**vars(options)", 0),
        ("", "base = dict(batch_size=8)\nbase['shuffle'] = True", "**{**base, 'pin_memory': True}", 0),
        ("", "", "**{**unknown, 'batch_size': 8}", 0),
    ],
)
def test_what_is_spread_into_a_loader(field, before, given, expected):
    code = NET + SPREAD.format(field=field, before=before, given=given)
    assert len(lint(TrainingDataNotShuffled, code)) == expected


BESIDE = """
class Teacher(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.inner, self.body = inner, nn.Linear(4, 2)
    def forward(self, x):
        return self.body(x)
def train(net, teacher, loader, opt):
    net.train()
    teacher.eval()
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
def validate(net, teacher, loader):
    {mode}
    hits = 0
    with torch.no_grad():
        for x, y in loader:
            hits += (net(x).argmax(1) == y).sum()
    return hits
def main(loader, held):
    net = Net()
    teacher = {teacher}
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(9):
        train(net, teacher, loader, opt)
        validate(net, teacher, held)
main(loader, held)
"""


@pytest.mark.parametrize(
    ("mode", "teacher", "expected"),
    [
        ("teacher.eval()", "Teacher()", 1),
        ("pass", "Teacher()", 1),
        ("net.eval()", "Teacher()", 0),
        ("for m in (net, teacher): m.eval()", "Teacher()", 0),
        ("teacher.eval()", "Teacher(net)", 0),
        ("teacher.eval()", "nn.Sequential(nn.Flatten(), net)", 0),
        ("teacher.eval()", "load('teacher.pt')", 0),
        ("teacher.eval()", "net", 0),
    ],
)
def test_the_mode_of_a_teacher(mode, teacher, expected):
    assert len(lint(ValidationInTrainMode, NET + BESIDE.format(mode=mode, teacher=teacher))) == expected


SCHEDULED = """
import transformers
from torch.optim.lr_scheduler import LambdaLR
def build(net, loader, epochs):
    opt = torch.optim.AdamW(net.parameters())
    total = {total}
    return opt, {made}
def run(data, epochs):
    loader = DataLoader(data, 8, shuffle=True)
    net = Net()
    opt, sched = build(net, loader, epochs)
    for epoch in range(epochs):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
{per_batch}
{per_epoch}
"""
STEP = "    sched.step()"
COSINE = "transformers.get_cosine_schedule_with_warmup(opt, 10, total)"
BY_NAME = "transformers.get_scheduler('linear', optimizer=opt, num_warmup_steps=9, num_training_steps=total)"


@pytest.mark.parametrize(
    ("made", "total", "per_epoch", "expected"),
    [
        (COSINE, "len(loader) * epochs", True, 1),
        (BY_NAME, "len(loader) * epochs", True, 1),
        ("LambdaLR(opt, lambda step: 1 - step / total)", "epochs * len(loader)", True, 1),
        ("LambdaLR(opt, lr_lambda=lambda step: min(1.0, (step + 1) / total))", "len(loader)", True, 1),
        ("transformers.get_linear_schedule_with_warmup(opt, 0, epochs)", "0", False, 1),
        (COSINE, "len(loader) * epochs", False, 0),
        (COSINE, "epochs", True, 0),
        ("LambdaLR(opt, lambda step: 1 - step / total)", "epochs", True, 0),
        ("LambdaLR(opt, lambda step: 1 - step / total)", "epochs * len(loader)", False, 0),
        ("LambdaLR(opt, lambda epoch: 0.9 ** epoch)", "epochs * len(loader)", True, 0),
    ],
)
def test_schedules_sized_in_steps(made, total, per_epoch, expected):
    lines = (
        {"per_epoch": "    " + STEP, "per_batch": ""}
        if per_epoch
        else {"per_epoch": "", "per_batch": "        " + STEP}
    )
    code = NET + SCHEDULED.format(made=made, total=total, **lines)
    assert len(lint(SchedulerOutOfStep, code)) == expected


def test_near_miss_several_updates_for_each_batch():
    code = NET + SCHEDULED.format(made=COSINE, total="len(loader) * epochs", per_batch="", per_epoch="        " + STEP)
    code = code.replace(
        "    for epoch in range(epochs):\n        for x, y in loader:",
        "    for x, y in loader:\n        for _ in range(3):",
    )
    assert lint(SchedulerOutOfStep, code) == []


HALF = """
import argparse
TYPES = {{"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}}
@dataclass
class Config:
    kind: str = "{kind}"
parser = argparse.ArgumentParser()
parser.add_argument("--kind", default={default})
cfg = Config(kind=parser.parse_args().kind)
amp = torch.autocast("cuda", dtype={dtype})
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    with amp:
        loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("kind", "default", "dtype", "expected"),
    [
        ("fp16", "Config.kind", "TYPES[cfg.kind]", 1),
        ("bf16", "'fp16'", "TYPES[cfg.kind]", 1),
        ("float16", "Config.kind", "getattr(torch, cfg.kind)", 1),
        ("bf16", "Config.kind", "TYPES[cfg.kind]", 0),
        ("fp16", "'bf16'", "TYPES[cfg.kind]", 0),
        ("fp16", "unknown", "TYPES[cfg.kind]", 0),
    ],
)
def test_a_table_of_types_behind_an_option(kind, default, dtype, expected):
    assert len(lint(HalfWithoutScaler, NET + HALF.format(kind=kind, default=default, dtype=dtype))) == expected


FROZEN = """
from torchvision import models
class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        whole = models.{made}
        self.trunk = whole.{part}
        for p in self.trunk.parameters():
            p.requires_grad = False
        self.head = nn.Linear(8, 2)
    def forward(self, x):
        return self.head(self.trunk(x).mean((2, 3)))
model = Probe()
opt = torch.optim.SGD(model.head.parameters(), lr=0.1)
for epoch in range(9):
    model.train()
    {after}
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("made", "part", "after", "expected"),
    [
        ("densenet121()", "features", "", 1),
        ("mobilenet_v2(weights='DEFAULT')", "features", "", 1),
        ("densenet121()", "features", "model.trunk.eval()", 0),
        ("vgg16()", "features", "", 0),
        ("densenet121()", "classifier", "", 0),
    ],
)
def test_a_frozen_part_of_a_network(made, part, after, expected):
    code = NET + FROZEN.format(made=made, part=part, after=after)
    assert len(lint(FrozenNormDrifts, code)) == expected


MASKED = """
def mask_of(lengths, width):
    return (torch.arange(width)[None] < lengths[:, None]).unsqueeze(-1).float()
def loss_of(pred, target, lengths):
    mask = {mask}
    {error}
    return {result}
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y, lengths in loader:
    loss = loss_of(net(x), y, lengths)
    opt.zero_grad()
    {back}
    opt.step()
"""
LENGTHS = "mask_of(lengths, target.size(1))"
SQUARED = "error = (pred - target) ** 2"


@pytest.mark.parametrize(
    ("mask", "error", "result", "back", "expected"),
    [
        (LENGTHS, SQUARED, "(error * mask).mean()", "loss.backward()", 1),
        (
            LENGTHS,
            "error = F.l1_loss(pred, target, reduction='none')",
            "torch.mean(mask * error)",
            "loss.backward()",
            1,
        ),
        ("(target != PAD).float()", SQUARED, "(error * mask).mean()", "loss.backward()", 1),
        (LENGTHS, SQUARED, "(error * mask).sum() / mask.sum()", "loss.backward()", 0),
        (LENGTHS, SQUARED, "(error * mask).mean() * mask.numel() / mask.sum()", "loss.backward()", 0),
        (LENGTHS, "error = (pred - target) ** 2; n = mask.sum()", "(error * mask).mean()", "loss.backward()", 0),
        ("(torch.rand(9) < 0.5).float()", SQUARED, "(error * mask).mean()", "loss.backward()", 0),
        ("weights[target]", SQUARED, "(error * mask).mean()", "loss.backward()", 0),
        (LENGTHS, "error = pred.exp()", "(error * mask).mean()", "loss.backward()", 0),
        (LENGTHS, SQUARED, "(error * mask).mean()", "print(loss)", 0),
    ],
)
def test_a_mean_over_what_a_mask_leaves_out(mask, error, result, back, expected):
    code = NET + MASKED.format(mask=mask, error=error, result=result, back=back)
    assert len(lint(PaddingInLoss, code)) == expected


COLLATED = """
import torchaudio
from torchvision import transforms as T
masking = torchaudio.transforms.TimeMasking(20)
augment = T.Compose([T.RandomResizedCrop(224), T.ToTensor()])
def collate(rows, train=True):
    x = torch.stack([row[0] for row in rows])
    k = int(torch.randint(-9, 9, (1,)))
    {line}
    return x, torch.tensor([row[1] for row in rows])
data = DataLoader(read("train"), 8, shuffle=True, collate_fn={first})
held = DataLoader(read("held"), 8, collate_fn={second})
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(9):
    net.train()
    for x, y in data:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        for x, y in held:
            print((net(x).argmax(1) == y).sum())
"""


@pytest.mark.parametrize(
    ("line", "first", "second", "expected"),
    [
        ("x = masking(x)", "collate", "collate", 1),
        ("x = torch.roll(x, k, dims=-1)", "collate", "collate", 1),
        ("x = augment(x)", "collate", "collate", 1),
        ("x = x.flip(-1) if random.random() < 0.5 else x", "collate", "collate", 0),
        ("x = masking(x) if train else x", "collate", "collate", 0),
        ("x = masking(x)", "collate", "None", 0),
        ("x = masking(x)", "partial(collate, train=True)", "partial(collate, train=False)", 0),
        ("x = torch.roll(x, 3, dims=-1)", "collate", "collate", 0),
    ],
)
def test_one_collate_function_for_both_loaders(line, first, second, expected):
    code = NET + COLLATED.format(line=line, first=first, second=second)
    assert len(lint(AugmentationOnValidation, code)) == expected


SWITCHED = """
import functools, random
def jitter(x):
    shift = torch.randint(-3, 4, (2,)).tolist()
    return torch.roll(x, shift, (-2, -1))
def shifted(x, by):
    return x if by is None else torch.roll(x, by, (-2, -1)) + torch.randn(3)
class Rows(Dataset):
    def __init__(self, part):
        self.part = part
    def __getitem__(self, i):
        return self.part[i]
def collate(rows, augment=False, clean=False):
    x = torch.stack([row[0] for row in rows])
    {line}
    return x, torch.tensor([row[1] for row in rows])
noisy, plain = functools.partial(collate, augment=True), {plain}
data = DataLoader(Rows("train"), 8, shuffle=True, collate_fn=noisy)
held_rows = Rows("held")
held = DataLoader(held_rows, 8, collate_fn={held})
final = DataLoader({final}, 8, collate_fn={last})
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def score(loader):
    net.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += (net(x).argmax(1) == y).sum()
    return right
for epoch in range(9):
    net.train()
    for x, y in data:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    print(score(held))
print(score(final))
"""
UNDER, OFF = "if augment:\n        x = jitter(x)", "functools.partial(collate, augment=False)"
USUAL = {"line": UNDER, "plain": OFF, "held": "noisy", "final": "Rows('test')", "last": "plain"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 1),
        ({"held": "functools.partial(collate, augment=True)"}, 1),
        ({"plain": "functools.partial(collate, True)", "last": "collate"}, 1),  # off by default
        ({"line": "if augment:\n        x = x + 0.1 * torch.randn_like(x)"}, 1),
        ({"line": "if augment and not clean:\n        x = jitter(x)"}, 1),
        ({"last": "noisy"}, 1),  # and what is off is used nowhere
        ({"held": "plain"}, 0),
        ({"final": "held_rows"}, 0),  # the same rows with noise and without
        ({"line": "x = jitter(x)"}, 0),  # never off: a task may be so
        ({"line": "if augment:\n        x = shifted(x, None)"}, 0),
        ({"line": "if augment:\n        x = x / 255"}, 0),
        ({"line": "if not augment:\n        x = jitter(x)"}, 0),
        ({"line": "if augment and len(rows) > 4:\n        x = jitter(x)"}, 0),
        ({"line": "if augment:\n        x = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(1))"}, 0),
        ({"plain": "functools.partial(collate, augment=True)", "last": "noisy"}, 0),
    ],
)
def test_a_switch_of_the_collate_function_that_is_on(changed, expected):
    code = NET + SWITCHED.format(**(USUAL | changed))
    assert len(lint(AugmentationOnValidation, code)) == expected
