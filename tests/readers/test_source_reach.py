"""Reading Python source: what lies behind a helper, a handler, a table of settings, or a switch."""

from __future__ import annotations

from functools import partial

import pytest
from parsed import kinds_in, parsed

HEAD = """import torch, argparse, functools
from dataclasses import dataclass, field
from itertools import islice
from torch import nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, Subset, random_split
from torchvision import datasets, transforms
"""
NET = """class Net(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.body = nn.Linear(8, 3)
        self.drop = nn.Dropout(0.5)
        self.norm = {norm}
    def forward(self, x):
        return self.norm(self.body(self.drop(x)))
"""
PLAIN = NET.format(norm="nn.Identity()")
TURN = """for x, y in data:
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


event_of, kinds = partial(parsed, HEAD), partial(kinds_in, HEAD)


def fed(code: str) -> list[tuple[str, str]]:
    return [(loss.kind, loss.fed_by) for loss in event_of(code).losses]


REPLACED = """def adapt(net, n):
    {body}
    return net
def tail(net):
    net.body[-1] = nn.Linear(8, 2)
def build(net):
    return torch.optim.SGD(net.parameters(), lr=0.1)
model = Net()
{build}
"""


@pytest.mark.parametrize(
    ("body", "build", "expected"),
    [
        ("net.body = nn.Linear(8, n)", "opt = build(model)\nmodel = adapt(model, 5)", True),
        ("pass", "opt = torch.optim.SGD(model.parameters(), lr=0.1)\ntail(model)", True),
        ("net.body = nn.Linear(8, n)", "model = adapt(model, 5)\nopt = build(model)", False),
        ("net.body = nn.Linear(8, n)", "opt = build(model)\nother = adapt(Net(), 5)", False),
        ("net.body = nn.Linear(8, n)", "opt = build(model)\nmodel = adapt(model, 5)\nopt = build(model)", False),
        ("if n != 3:\n        net.body = nn.Linear(8, n)", "opt = build(model)\nmodel = adapt(model, k)", False),
        ("net.width = n", "opt = build(model)\nmodel = adapt(model, 5)", False),
    ],
)
def test_a_layer_that_a_function_replaces(body, build, expected):
    assert ("rebound" in kinds(PLAIN + REPLACED.format(body=body, build=build) + TURN)) is expected


HEADS = """class Heads(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        make = functools.partial({made})
        self.heads = {held}
    def forward(self, x):
        return {{name: head(x) for name, head in self.heads.items()}}
"""


@pytest.mark.parametrize(
    ("made", "held", "expected"),
    [
        ("nn.Linear, 8", "{name: make(width) for name, width in tasks.items()}", True),
        ("nn.Conv2d, 8, kernel_size=3", "{'a': make(3), 'b': make(5)}", True),
        ("nn.Linear, 8", "nn.ModuleDict({name: make(width) for name, width in tasks.items()})", False),
        ("torch.randn, 8", "{name: make(width) for name, width in tasks.items()}", False),
    ],
)
def test_layers_that_partial_makes(made, held, expected):
    assert ("plain dict" in kinds(HEADS.format(made=made, held=held))) is expected


SMOOTHED = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 3)
        self.offset = nn.Parameter(torch.zeros(3))
    {above}
    def {name}(self, raw):
        return raw.roll(1)
    def forward(self, x):
        {body}
model = Model()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
OFF = "@torch.no_grad()"
NESTED = "return self.smooth(torch.relu(self.net(x))) + self.offset"


KEPT = """class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        experts = []
        for _ in range(3):
            experts.append({made})
        self.experts = {held}(experts)
    def forward(self, x):
        return sum(each(x) for each in self.experts)
"""


@pytest.mark.parametrize(
    ("made", "held", "expected"),
    [
        ("nn.Linear(8, 3)", "tuple", True),
        ("nn.Linear(8, 3)", "list", True),
        ("nn.Linear(8, 3)", "nn.ModuleList", False),
        ("torch.zeros(8, 3)", "tuple", False),
    ],
)
def test_layers_that_are_listed_before_they_are_kept(made, held, expected):
    assert ("plain list" in kinds(KEPT.format(made=made, held=held))) is expected


@pytest.mark.parametrize(
    ("above", "name", "body", "expected"),
    [
        (OFF, "smooth", NESTED, True),
        ("@torch.inference_mode()", "smooth", "raw = self.net(x)\n        return self.smooth(raw) + self.offset", True),
        ("", "smooth", NESTED, False),
        (OFF, "smooth", "raw = self.net(x)\n        return raw + self.smooth(raw)", False),
        (OFF, "quantize", NESTED.replace("smooth", "quantize"), False),
        (OFF, "smooth", "return self.net(x) + self.smooth(self.offset)", False),
    ],
)
def test_results_that_a_method_cuts_off(above, name, body, expected):
    code = SMOOTHED.format(above=above, name=name, body=body) + TURN
    assert ("cut layer" in kinds(code)) is expected


SETTINGS = """OPTIMIZERS = {{"sgd": torch.optim.SGD, "other": Unknown}}
SCHEDULES = {{"none": Unknown}}
def register(name):
    def put(function):
        SCHEDULES[name] = function
        return function
    return put
@register("cosine")
def cosine(opt, total):
    return lr_scheduler.CosineAnnealingLR(opt, T_max=total)
CONFIG = {{"schedule": "cosine", "optimizer": {{"name": "sgd"}}}}
{written}
def run(cfg, model, data):
    opt = OPTIMIZERS[{optimizer}](model.parameters(), lr=0.1)
    schedule = SCHEDULES[cfg["schedule"]](opt, 100)
    for x, y in data:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
run(CONFIG, Net(), loader)
"""


@pytest.mark.parametrize(
    ("written", "optimizer", "expected"),
    [
        ("", "cfg['optimizer']['name']", True),
        ("", "'sgd'", True),
        ("CONFIG['schedule'] = chosen", "'sgd'", False),
        ("CONFIG.update(load())", "'sgd'", False),
    ],
)
def test_names_in_a_table_of_settings(written, optimizer, expected):
    loops = event_of(PLAIN + SETTINGS.format(written=written, optimizer=optimizer)).loops
    ticks = [tick.kind for loop in loops for path in loop.paths for tick in path]
    assert ("schedule" in ticks) is expected


@pytest.mark.parametrize(
    ("norm", "given", "expected"),
    [
        ("norm or nn.Identity()", "norm=nn.Softmax(dim=-1)", [("cross_entropy", "softmax")]),
        ("norm if norm is not None else nn.Identity()", "nn.Softmax(dim=-1)", [("cross_entropy", "softmax")]),
        ("nn.Identity() if norm is None else norm", "nn.Softmax(dim=-1)", [("cross_entropy", "softmax")]),
        ("norm or nn.Identity()", "", [("cross_entropy", "linear")]),
        ("norm or nn.Softmax(dim=-1)", "norm=nn.Identity()", [("cross_entropy", "linear")]),
        ("norm or nn.Identity()", "norm=pick()", []),
    ],
)
def test_what_is_given_or_usual(norm, given, expected):
    assert (
        fed(f"{NET.format(norm=norm)}model = Net({given})\nfor x, y in data:\n    F.cross_entropy(model(x), y)\n")
        == expected
    )


def test_what_two_calls_give_differently_is_not_known():
    code = NET.format(norm="norm or nn.Identity()") + "a, b = Net(nn.Softmax(1)), Net()\nF.cross_entropy(a(x), y)\n"
    assert fed(code) == []


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("F.cross_entropy(model(x).softmax(1)[rows], y)", [("cross_entropy", "softmax")]),
        ("F.cross_entropy(torch.softmax(model(x), 2)[:, -1], y)", [("cross_entropy", "softmax")]),
        ("F.binary_cross_entropy(model(x).clamp(1e-6, 1 - 1e-6), y)", [("binary_cross_entropy", "linear")]),
        ("F.binary_cross_entropy(torch.clamp(nn.Conv2d(8, 1, 1)(x), 0, 1), y)", [("binary_cross_entropy", "linear")]),
        ("F.binary_cross_entropy(torch.sigmoid(model(x)).clamp(0, 1), y)", [("binary_cross_entropy", "sigmoid")]),
        ("F.cross_entropy(model(x)[rows], y)", [("cross_entropy", "linear")]),
        ("F.cross_entropy({'p': model(x).softmax(1)}['p'][:, rows], y)", [("cross_entropy", "softmax")]),
        ("F.cross_entropy(several(x)[first], y)", []),
        ("F.nll_loss(model(x).softmax(1).clamp(min=1e-9).log(), y)", [("nll", "log")]),
    ],
)
def test_rows_and_bounds_of_a_tensor(loss, expected):
    assert fed(f"{PLAIN}model = Net()\n{loss}\n") == expected


def test_the_logarithm_of_a_bounded_softmax_is_left_alone():
    code = PLAIN + "model = Net()\nloss = torch.log(model(x).softmax(1).clamp(min=1e-9)).mean()\nloss.backward()\n"
    assert "logged softmax" not in kinds(code)


HALF = """KINDS = {{"full": None, "half": torch.float16}}
def turn(model, batch, opt, dtype):
    x, y = batch
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16, enabled={enabled}):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()
parser = argparse.ArgumentParser()
parser.add_argument("--kind", default="{usual}")
args = parser.parse_args()
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
losses = {losses}
"""
EACH = "[turn(model, b, opt, KINDS[args.kind]) for b in loader]"


@pytest.mark.parametrize(
    ("enabled", "usual", "losses", "expected"),
    [
        ("dtype is not None", "half", EACH, True),
        ("True", "full", EACH.replace("KINDS[args.kind]", "None"), True),
        ("dtype is not None", "full", EACH, False),
        ("dtype is not None", "half", EACH.replace("KINDS[args.kind]", "chosen"), False),
        ("dtype is None", "half", EACH, False),
        ("dtype is not None", "half", EACH.replace(" for b in loader", "").replace(" b,", " batch,"), False),
    ],
)
def test_a_switch_that_a_table_decides(enabled, usual, losses, expected):
    code = PLAIN + HALF.format(enabled=enabled, usual=usual, losses=losses)
    assert ("half" in kinds(code)) is expected


PARTED = """class Data:
    def __init__(self):
        self.changed = transforms.Compose([transforms.RandomErasing(), transforms.ToTensor()])
        self.plain = transforms.Compose([transforms.ToTensor()])
    def setup(self):
        full = datasets.CIFAR10("data", transform=self.changed)
        same = datasets.CIFAR10("data", transform=self.plain)
        {split}
        return self
    def train_loader(self):
        return DataLoader(self.train_set, 32, shuffle=True)
    def val_loader(self):
        return DataLoader(self.val_set, 32)
def test(model, loader):
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            hits = (model(x).argmax(1) == y).sum()
parts = Data().setup()
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
data, held = parts.train_loader(), parts.val_loader()
test(model, held)
"""


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("self.train_set, self.val_set = random_split(full, [9, 1])", True),
        ("self.train_set, self.val_set = Subset(full, a), Subset(full, b)", True),
        ("self.train_set, self.val_set = Subset(full, a), Subset(same, b)", False),
        ("self.train_set, self.val_set = random_split(same, [9, 1])", False),
        ("self.train_set, self.val_set = cut(full)", False),
    ],
)
def test_parts_that_an_object_keeps(split, expected):
    assert ("augmented" in kinds(PLAIN + PARTED.format(split=split) + TURN)) is expected


BUS = """class Learner:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        self.handlers = {{}}
        self.listed = []
    def on(self, event):
        def put(function):
            self.handlers.setdefault(event, []).append(function)
            return function
        return put
    def add(self, function):
        self.listed.append(function)
    def emit(self, event):
        for function in self.handlers.get(event, []):
            function(self)
        for function in self.listed:
            function(self)
    def fit(self, data):
        self.net.train()
        for x, y in data:
            loss = F.cross_entropy(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        self.emit("end")
held, loader = (torch.utils.data.DataLoader(torch.load(name), 8) for name in ("held.pt", "train.pt"))
learner = Learner(Net())
{above}
@torch.no_grad()
def score(ln):
    {first}
    for x, y in held:
        hits = (ln.net(x).argmax(1) == y).sum()
{below}
learner.fit(loader)
"""


@pytest.mark.parametrize(
    ("above", "first", "below", "expected"),
    [
        ('@learner.on("end")', "hits = 0", "", True),
        ("", "hits = 0", "learner.add(score)", True),
        ('@learner.on("end")', "ln.net.eval()", "", False),
        ("", "hits = 0", "other.add(score)", False),
        ("@unknown.on('end')", "hits = 0", "", False),
    ],
)
def test_functions_that_an_object_keeps(above, first, below, expected):
    code = PLAIN + BUS.format(above=above, first=first, below=below)
    assert ("validated" in kinds(code)) is expected


GROUPS = """def groups(stream, size):
    it = iter(stream)
    while part := {part}:
        yield part
def run(model, loader, opt, steps):
    for group in groups(loader, steps):
        opt.zero_grad()
        for x, y in group:
            loss = F.cross_entropy(model(x), y)
            {scaled}
            loss.backward()
        opt.step()
model = Net()
run(model, data, torch.optim.SGD(model.parameters(), lr={lr}), {steps})
"""


@pytest.mark.parametrize(
    ("part", "scaled", "lr", "steps", "expected"),
    [
        ("list(islice(it, size))", "", "0.1", "8", True),
        ("tuple(islice(it, size))", "", "0.1", "4", True),
        ("list(islice(it, size))", "loss = loss / steps", "0.1", "8", False),
        ("list(islice(it, size))", "", "0.1 / size", "8", False),
        ("list(islice(it, size))", "", "0.1", "1", False),
        ("fetch(it, size)", "", "0.1", "8", False),
    ],
)
def test_groups_that_a_generator_yields(part, scaled, lr, steps, expected):
    code = PLAIN + GROUPS.format(part=part, scaled=scaled, lr=lr, steps=steps)
    assert ("micro mean" in kinds(code)) is expected


TAGS = """def collate(samples):
    xs, ys = zip(*samples)
    return pad_sequence(xs), pad_sequence(ys, padding_value={value})
class Objective(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss(reduction="none")
    def forward(self, scores, batch):
        {body}
model, objective = Net(), Objective()
for batch in DataLoader(items, collate_fn=collate):
    objective(model(batch[0]), batch).backward()
"""


@pytest.mark.parametrize(
    ("value", "body", "expected"),
    [
        ("0", "each = self.loss(scores, batch[1])\n        return each.mean()", True),
        ("0", "return self.loss(scores, batch[1]).mean()", True),
        ("0", "each = self.loss(scores, batch[1])\n        return (each * batch[2]).mean()", False),
        ("-100", "return self.loss(scores, batch[1]).mean()", False),
    ],
)
def test_losses_of_tokens_that_are_averaged(value, body, expected):
    assert ("padded target" in kinds(PLAIN + TAGS.format(value=value, body=body))) is expected


PROBE = """class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), {norm})
    def forward(self, x):
        return self.layers(x)
def freeze(module):
    for p in module.parameters():
        p.requires_grad = False
    return module
class Probe(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.trunk = {held}
        self.head = nn.Linear(8, 2)
        {more}
    def forward(self, x):
        return self.head(self.trunk(x))
model = Probe(Trunk())
opt = torch.optim.SGD(model.head.parameters(), lr=0.1)
for epoch in range(9):
    model.train()
    {after}
    for x, y in data:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("norm", "held", "more", "after", "expected"),
    [
        ("nn.BatchNorm2d(8)", "freeze(trunk)", "", "", True),
        ("nn.BatchNorm2d(8)", "trunk", "freeze(self.trunk)", "", True),
        ("nn.BatchNorm2d(8)", "freeze(trunk)", "", "model.trunk.eval()", False),
        ("nn.GroupNorm(2, 8)", "freeze(trunk)", "", "", False),
        ("nn.BatchNorm2d(8)", "trunk", "", "", False),
    ],
)
def test_a_trunk_that_a_helper_freezes(norm, held, more, after, expected):
    code = PROBE.format(norm=norm, held=held, more=more, after=after)
    assert ("drifting norms" in kinds(code)) is expected


TABLE = """@dataclass
class Config:
    options: dict = field(default_factory=lambda: {options})
class Table(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(9, 8), None
        self.labels = torch.arange(3).repeat_interleave(3)
    def __getitem__(self, i):
        return self.x[i], self.labels[i]
def make(cfg):
    return DataLoader(Table(), **{given})
data = make(Config())
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        ("{'batch_size': 2, 'num_workers': 0}", "cfg.options", True),
        ("{}", "dict(batch_size=2)", True),
        ("{}", "dict(more, batch_size=2)", False),
        ("{}", "{'batch_size': 2}", True),
        ("{'batch_size': 2, 'shuffle': True}", "cfg.options", False),
        ("{'batch_size': 2, **more}", "cfg.options", False),
    ],
)
def test_options_of_a_loader(options, given, expected):
    assert ("unshuffled" in kinds(PLAIN + TABLE.format(options=options, given=given) + TURN)) is expected


CYCLE = """class Hook:
    def after_batch(self, trainer): ...
    def after_epoch(self, trainer): ...
class Step(Hook):
    def __init__(self, schedule):
        self.schedule = schedule
    def {hook}(self, trainer):
        self.schedule.step()
class Trainer:
    def __init__(self, model, opt, hooks):
        self.model, self.opt, self.hooks = model, opt, hooks
    def fit(self, loader):
        for epoch in range(9):
            for x, y in loader:
                loss = F.cross_entropy(self.model(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                for hook in self.hooks:
                    hook.after_batch(self)
            for hook in self.hooks:
                hook.after_epoch(self)
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(items)
schedule = lr_scheduler.OneCycleLR(opt, 0.1, total_steps=9 * len(loader))
Trainer(model, opt, [Step(schedule)]).fit(loader)
"""


@pytest.mark.parametrize(("hook", "depth"), [("after_epoch", 0), ("after_batch", 1)])
def test_a_loop_over_hooks_is_none_over_data(hook, depth):
    loops = event_of(PLAIN + CYCLE.format(hook=hook)).loops
    ticks = [t for loop in loops if loop.turns == "9" for path in loop.paths for t in path if t.kind == "schedule"]
    assert {(tick.depth, tick.over_data) for tick in ticks} == {(depth, depth == 1)}


LOGGED = """parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=args.lr)
{schedule}
for x, y in data:
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    {step}
    {logged}
"""
COSINE = "schedule = lr_scheduler.CosineAnnealingLR(opt, 100)"
MOVES = "schedule.step()"


@pytest.mark.parametrize(
    ("schedule", "step", "logged", "expected"),
    [
        (COSINE, MOVES, "log({'loss': loss.item(), 'train/lr': args.lr})", True),
        (COSINE, MOVES, "print(f'loss {loss.item():.3f} lr {args.lr:.2e}')", True),
        (COSINE, MOVES, "print('loss %.3f lr %.5f' % (loss.item(), args.lr))", True),
        (COSINE, MOVES, "print('loss {:.3f} lr={:.5f}'.format(loss.item(), args.lr))", True),
        (COSINE, MOVES, "print('lr %.5f loss %.3f' % (loss.item(), args.lr))", False),
        (COSINE, MOVES, "writer.add_scalar('train/learning_rate', args.lr, 1)", True),
        (COSINE, MOVES, "log({'loss': loss.item(), 'lr': schedule.get_last_lr()[0]})", False),
        (COSINE, MOVES, "torch.save({'model': model, 'lr': args.lr}, 'x.pt')", False),
        (COSINE, MOVES, "log({'loss': loss.item(), 'base_lr': args.lr})", False),
        (COSINE, MOVES, "args.lr = 0.9\n    log({'loss': 1, 'lr': args.lr})", False),
        ("", "", "log({'loss': loss.item(), 'lr': args.lr})", False),
        (f"{COSINE}\nprint('lr', args.lr)", MOVES, "", False),
    ],
)
def test_a_constant_that_is_logged_as_the_rate(schedule, step, logged, expected):
    code = PLAIN + LOGGED.format(schedule=schedule, step=step, logged=logged)
    assert ("constant rate" in kinds(code)) is expected
