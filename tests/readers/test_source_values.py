"""Reading Python source: where a value comes from, through tables, fields, properties, defaults and branches."""

from __future__ import annotations

from functools import partial

import pytest
from parsed import kinds_in, parsed

HEAD = """import torch, argparse, functools, contextlib, types
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple
from torch import nn
import torch.nn.functional as F
"""
NET = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 3)
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        return self.drop(self.body(x))
"""
TRAINER = """class Trainer:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
        {init}
    {method}
    def fit(self, loader):
        for i, (x, y) in enumerate(loader):
            self.opt.zero_grad()
            {loss}
            loss.backward()
            self.opt.step()
            {last}
Trainer(Net()).fit(data)
"""


event_of, kinds = partial(parsed, HEAD), partial(kinds_in, HEAD)


def fed(code: str) -> list[tuple[str, str]]:
    return [(loss.kind, loss.fed_by) for loss in event_of(code).losses]


def trainer(loss="loss = F.cross_entropy(self.model(x), y)", *, init="pass", method="", last="pass") -> str:
    return NET + TRAINER.format(init=init, method=method, loss=loss, last=last)


TABLE = "L = {'ce': nn.CrossEntropyLoss, 'nll': nn.NLLLoss}\n"


@pytest.mark.parametrize(
    "code",
    [
        f"{TABLE}crit = L['ce']()",
        f"{TABLE}p = argparse.ArgumentParser()\np.add_argument('--loss', default='ce')\na = p.parse_args()\ncrit = L[a.loss]()",
        f"{TABLE}@dataclass\nclass Cfg:\n  loss: str = 'ce'\ncfg = Cfg()\ncrit = L[cfg.loss]()",
        "def make(name):\n  return {'a': nn.CrossEntropyLoss(), 'b': nn.CrossEntropyLoss(label_smoothing=0.1)}[name]\ncrit = make(n)",
        "L = dict(ce=F.cross_entropy)\ncrit = L.get('ce')",
        "crit = functools.partial(nn.CrossEntropyLoss, label_smoothing=0.1)()",
        "crit = getattr(nn, 'CrossEntropyLoss')()",
        "crit = lambda p, t: F.cross_entropy(p, t)",
        "def make(s):\n  def inner(p, t):\n    return F.cross_entropy(p, t, label_smoothing=s)\n  return inner\ncrit = make(0.1)",
        "def make(n):\n  if n == 'ce':\n    return nn.CrossEntropyLoss()\n  return nn.NLLLoss()\ncrit = make('ce')",
        "s = types.SimpleNamespace(crit=nn.CrossEntropyLoss())\ncrit = s.crit",
        "def build():\n  return {'crit': nn.CrossEntropyLoss()}\nparts = build()\ncrit = parts['crit']",
        "class C:\n  @property\n  def crit(self):\n    return nn.CrossEntropyLoss()\nc = C()\ncrit = c.crit",
        "def pick(crit=nn.CrossEntropyLoss()):\n  return crit\ncrit = pick()",
    ],
)
def test_follows_a_loss(code):
    assert ("cross_entropy", "softmax") in fed(f"{code}\ncrit(z.softmax(1), y)")


@pytest.mark.parametrize(
    "code",
    [
        f"{TABLE}crit = L[name]()",
        f"{TABLE}L.update(other)\ncrit = L['ce']()",
        f"{TABLE}L[name] = Other\ncrit = L['ce']()",
        "@dataclass\nclass Cfg:\n  loss: object = None\ncfg = Cfg(*given)\ncrit = cfg.loss",
        "s = types.SimpleNamespace(crit=nn.CrossEntropyLoss())\ns.crit = other\ncrit = s.crit",
        "def make(n):\n  if n == 'ce':\n    return nn.CrossEntropyLoss()\n  return nn.NLLLoss()\ncrit = make(name)",
        "def pick(crit=nn.CrossEntropyLoss()):\n  return crit\ncrit = pick(**given)",
        "n = 'ce'\nn += other\ncrit = nn.CrossEntropyLoss() if False else None\nif n == 'ce':\n  crit = nn.NLLLoss()",
        "crit = functools.partial(other, nn.CrossEntropyLoss)()",
    ],
)
def test_near_miss_of_a_loss(code):
    assert ("cross_entropy", "softmax") not in fed(f"{code}\ncrit(z.softmax(1), y)")


OUT = "class Net(nn.Module):\n  def __init__(self, flag=True):\n    super().__init__()\n    self.body = nn.Linear(8, 3)\n    self.flag = flag\n"


@pytest.mark.parametrize(
    ("forward", "given"),
    [
        ("z = self.body(x)\n    return {'logits': z, 'probs': z.softmax(1)}", "net(x)['probs']"),
        (
            "out = {'logits': self.body(x)}\n    out['probs'] = out['logits'].softmax(1)\n    return out",
            "net(x)['probs']",
        ),
        ("z = self.body(x)\n    return Out(z, z.softmax(1))", "net(x).probs"),
        ("z = self.body(x)\n    if self.flag:\n      z = z.softmax(1)\n    return z", "net(x)"),
        ("return self.after(self.body(x))\n  def after(self, z):\n    return z.softmax(1)", "net(x)"),
        ("return self.after(self.body(x))\n  @staticmethod\n  def after(z):\n    return z.softmax(1)", "net(x)"),
        ("return (z := self.body(x).softmax(1))", "net(x)"),
    ],
)
def test_follows_what_a_model_returns(forward, given):
    out = "class Out(NamedTuple):\n  logits: object\n  probs: object\n"
    code = f"{out}{OUT}  def forward(self, x):\n    {forward}\nnet = Net()\nF.cross_entropy({given}, y)"
    assert fed(code)[-1:] == [("cross_entropy", "softmax")]


@pytest.mark.parametrize("given", ["net(x)['logits']", "net(x)[key]", "net(x)['none']"])
def test_near_miss_of_what_a_model_returns(given):
    forward = "z = self.body(x)\n    return {'logits': z, 'probs': z.softmax(1)}"
    code = f"{OUT}  def forward(self, x):\n    {forward}\nnet = Net()\nF.cross_entropy({given}, y)"
    assert fed(code)[-1:] != [("cross_entropy", "softmax")]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(2)], nn.Softmax(dim=1))", "softmax"),
        ("net = nn.Sequential(nn.Linear(8, 8))\nnet.append(nn.Softmax(dim=1))", "softmax"),
        ("net = nn.Sequential(nn.Softmax(dim=1))\nnet.append(nn.Linear(8, 8))", "linear"),
        ("net = nn.Sequential(nn.Softmax(dim=1))\nif a:\n  net.append(nn.Linear(8, 8))", ""),
        ("net = nn.Sequential(nn.Softmax(dim=1))\nnet.extend(more)", ""),
    ],
)
def test_the_last_layer_of_a_sequence(layers, expected):
    assert [by for _, by in fed(f"{layers}\nF.cross_entropy(net(x), y)")] == [expected] * bool(expected)


# --------------------------------------------------------------------------- what is kept

STEP = "def step(self, x, y):\n        loss = F.cross_entropy(self.model(x), y)\n        loss.backward()\n        {}"
METER = "class Meter:\n    def __init__(self):\n        self.sum = 0\n    def update(self, v, n=1):\n        {}\n"


@pytest.mark.parametrize(
    "code",
    [
        trainer(init="self.total = 0.0", last="self.total = self.total + loss * len(x)"),
        trainer(init="self.mean = 0.0", last="self.mean = 0.9 * self.mean + 0.1 * loss"),
        trainer(init="self.log = defaultdict(list)", last="self.log['loss'].append(loss)"),
        trainer(init="self.log = {}", last="self.log.setdefault('loss', []).append(loss)"),
        trainer(init="self.log = {}", last="self.log[i] = loss"),
        trainer(init="self.log = []", last="self.log.extend([loss])"),
        trainer(
            init="self.log = defaultdict(list)",
            last="self.put('a', loss)",
            method="def put(self, k, v):\n        self.log[k].append(v)",
        ),
        METER.format("self.sum = self.sum + v * n")
        + trainer(init="self.meter = Meter()", last="self.meter.update(loss)"),
        "@dataclass\nclass State:\n    losses: list = field(default_factory=list)\n"
        + trainer(init="self.state = State()", last="self.state.losses.append(loss)"),
        trainer(init="self.log = []", loss="loss = 0 * self.step(x, y)", method=STEP.format("self.log.append(loss)")),
        trainer(
            init="self.log = []",
            loss="out = self.step(x, y); loss = z",
            last="self.log.append(out['a'])",
            method=STEP.format("return {'a': loss}"),
        ),
        trainer(
            method=STEP.format("return loss") + "\n    def all(self, d):\n        losses = [self.step(*b) for b in d]"
        ),
    ],
)
def test_a_loss_is_kept(code):
    assert "kept" in kinds(code)


@pytest.mark.parametrize(
    "code",
    [
        trainer(init="self.total = 0.0", last="self.total = self.total + loss.item()"),
        trainer(init="self.last = None", last="self.last = loss"),
        trainer(init="self.log = {}", last="self.log['loss'] = loss"),
        trainer(init="self.log = []", last="self.log.append(loss)", method="def end(self):\n        self.log.clear()"),
        trainer(
            init="self.all = 0", last="self.all = self.all + loss", method="def end(self):\n        self.all.backward()"
        ),
        METER.format("v = float(v)\n        self.sum += v")
        + trainer(init="self.m = Meter()", last="self.m.update(loss)"),
        trainer(
            method=STEP.format("return loss.item()") + "\n    def all(self, d):\n        a = [self.step(*b) for b in d]"
        ),
    ],
)
def test_near_miss_of_a_kept_loss(code):
    assert "kept" not in kinds(code)


# --------------------------------------------------------------------------- what is cut, and what no optimizer has

TERMS = "def terms(self, x, y):\n        return {{'a': F.cross_entropy(self.model(x), y), 'b': {}}}"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            trainer(
                "a = F.cross_entropy(self.model(x), y)\n            loss = a + 0.5 * F.mse_loss(self.model(x), y).item()"
            ),
            True,
        ),
        (
            trainer(
                "loss = F.cross_entropy(self.model(x), y)\n            loss += F.mse_loss(self.model(x), y).detach()"
            ),
            True,
        ),
        (
            trainer(
                "t = self.terms(x, y)\n            loss = t['a'] + t['b']",
                method=TERMS.format("F.mse_loss(self.model(x), y).item()"),
            ),
            True,
        ),
        (trainer(last="print(loss + F.mse_loss(self.model(x), y).item())"), False),
        (trainer("a = F.cross_entropy(self.model(x), y)\n            loss = a * (a.item() / 2)"), False),
        (
            trainer(
                "a = F.cross_entropy(self.model(x), y)\n            a.backward()\n"
                "            loss = F.mse_loss(self.model(x), y) + a.detach()"
            ),
            False,
        ),
        (trainer("a = F.cross_entropy(self.model(x), y)\n            loss = a + (b - a).detach()"), False),
        (
            trainer(
                "t = self.terms(x, y)\n            loss = t['a'] + t['b']", method=TERMS.format("F.mse_loss(x, y)")
            ),
            False,
        ),
    ],
)
def test_a_term_that_is_a_number(code, expected):
    assert ("cut term" in kinds(code)) is expected


ENCODER = (
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.{name} = nn.Linear(8, 8)\n"
    "        self.out = nn.Linear(8, 2)\n    def forward(self, x):\n        return self.out({used})\n{more}"
)


@pytest.mark.parametrize(
    ("name", "used", "more", "expected"),
    [
        ("body", "self.embed(x)", "    @torch.no_grad()\n    def embed(self, x):\n        return self.body(x)\n", True),
        ("body", "self.body(x).data", "", True),
        ("body", "self.body(x)", "", False),
        (
            "target",
            "self.embed(x)",
            "    @torch.no_grad()\n    def embed(self, x):\n        return self.target(x)\n",
            False,
        ),
        (
            "body",
            "self.body(x) + self.embed(x)",
            "    @torch.no_grad()\n    def embed(self, x):\n        return self.body(x)\n",
            False,
        ),
    ],
)
def test_layers_that_run_without_gradients(name, used, more, expected):
    code = ENCODER.format(name=name, used=used, more=more) + trainer().removeprefix(NET)
    assert ("cut layer" in kinds(code)) is expected


HELD = "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {held}\n    def forward(self, x):\n        {run}\n"


@pytest.mark.parametrize(
    ("held", "run", "expected"),
    [
        (
            "self.parts = {k: nn.Linear(4, 4) for k in 'ab'}",
            "return sum(p(x) for p in self.parts.values())",
            "plain dict",
        ),
        ("self.parts = {}\n        self.parts['a'] = nn.Linear(4, 4)", "return self.parts['a'](x)", "plain dict"),
        ("self.parts = tuple(nn.Linear(4, 4) for _ in 'ab')", "return self.parts[0](x)", "plain list"),
        ("self.parts = nn.ModuleDict({k: nn.Linear(4, 4) for k in 'ab'})", "return self.parts['a'](x)", ""),
        ("self.parts = {}\n        self.all = nn.ModuleList(self.parts.values())", "return self.parts['a'](x)", ""),
        ("self.parts = {'scale': 3}", "return x * self.parts['scale']", ""),
    ],
)
def test_layers_in_a_plain_dictionary(held, run, expected):
    found = [kind for kind in kinds(HELD.format(held=held, run=run)) if kind.startswith("plain")]
    assert found == [expected] * bool(expected)


PAIR = """class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 2)
    def forward(self, x):
        return self.last(x)
def fit(body, head, opt, loader):
    for x, y in loader:
        opt.zero_grad()
        loss = score(body, head, x, y)
        loss.backward()
        opt.step()
def score(body, head, x, y):
    return F.cross_entropy(head(body(x)), y)
def main():
    body, head = make()
    fit(body, head, torch.optim.Adam({given}), data)
def make():
    return Net(), Head()
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("[*body.parameters(), *head.parameters()]", False),
        ("groups(body, head)", False),
    ],
)
def test_near_miss_of_a_model_in_no_optimizer(given, expected):
    assert ("orphan" in kinds(NET + PAIR.format(given=given))) is expected


def test_a_model_that_one_function_makes_and_another_trains():
    code = (NET + PAIR.format(given="body.parameters()")).replace(
        "score(body, head, x, y)\n        loss.", "F.cross_entropy(head(body(x)), y)\n        loss."
    )
    assert "orphan" in kinds(code)


# --------------------------------------------------------------------------- modes and precision

SCORED = "def check(self, loader):\n        {}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "with torch.no_grad():\n            return sum((self.model(x).argmax(1) == y).sum() for x, y in loader)",
            True,
        ),
        (
            "with torch.no_grad():\n            for x, y in loader:\n                n = F.mse_loss(self.model(x), y)",
            True,
        ),
        (
            "self.model.eval()\n        with torch.no_grad():\n            return (self.model(x).argmax(1) == y).sum()",
            False,
        ),
        (
            "with torch.no_grad():\n            return torch.stack([self.model(x) for _ in range(9)]).argmax(1).eq(y)",
            False,
        ),
        ("with torch.no_grad():\n            return self.model(x)", False),
    ],
)
def test_scored_without_gradients_in_train_mode(body, expected):
    assert ("validated" in kinds(trainer(method=SCORED.format(body)))) is expected


def test_near_miss_a_mode_that_another_file_sets():
    code = NET + (
        "model = Net()\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\nloss.backward()\n"
        "@torch.no_grad()\ndef score(x, y):\n    return (model(x).argmax(1) == y).sum()\n"
    )
    assert "validated" in kinds(code)
    other = "from train import model, score\nmodel.eval()\nscore(x, y)"
    assert "validated" not in [fact.kind for fact in event_of(code, main=other).facts]


@pytest.mark.parametrize(
    "given",
    ["[{'params': model.body.parameters()}]", "filter(lambda p: p.requires_grad, model.parameters())", "groups(model)"],
)
def test_models_of_which_an_optimizer_got_parameters(given):
    code = trainer(
        method=SCORED.format("with torch.no_grad():\n            return (self.model(x).argmax(1) == y).sum()")
    )
    groups = "def groups(model):\n    kept = [p for n, p in model.named_parameters()]\n    return [{'params': kept}]\n"
    assert "validated" in kinds(groups + code.replace("SGD(model.parameters()", f"SGD({given}"))


UNDER = "with {}:\n                loss = F.cross_entropy(self.model(x), y)"
FLOAT16 = "torch.autocast('cuda', dtype=torch.float16)"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (trainer(UNDER.format("self.ctx"), init=f"self.ctx = {FLOAT16}"), True),
        (trainer(UNDER.format("self.ctx()"), method=f"def ctx(self):\n        return {FLOAT16}"), True),
        (
            f"@contextlib.contextmanager\ndef half():\n    with {FLOAT16}:\n        yield\n"
            + trainer(UNDER.format("half()")),
            True,
        ),
        (
            "T = {'a': torch.float16, 'b': torch.half}\n"
            + trainer(UNDER.format("torch.autocast('cuda', dtype=T[name])")),
            True,
        ),
        (
            "T = {'a': torch.float16, 'b': torch.bfloat16}\n"
            + trainer(UNDER.format("torch.autocast('cuda', dtype=T[name])")),
            False,
        ),
        (trainer(UNDER.format("self.ctx"), init=f"self.ctx = {FLOAT16} if a else contextlib.nullcontext()"), False),
        (trainer(UNDER.format("torch.autocast('cuda', dtype=torch.float16, enabled=amp)")), True),
        (trainer(UNDER.format("torch.autocast('cuda', dtype=torch.float16, enabled=self.scaler is not None)")), False),
    ],
)
def test_half_precision_behind_a_name(code, expected):
    assert ("half" in kinds(code)) is expected


# --------------------------------------------------------------------------- order

SET = """from torch.utils.data import DataLoader, TensorDataset
class Split(NamedTuple):
    train: object
    val: object
def make():
    x, y = torch.randn(90, 4), {}
    keep = torch.arange(90) % 5 != 0
    return Split(TensorDataset(x[keep], {}), TensorDataset(x[~keep], y[~keep]))
def loader(data, size=16):
    return DataLoader(data, batch_size={})
def fit(net, batches):
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
split = make()
fit(nn.Linear(4, 3), loader(split.train))
"""


@pytest.mark.parametrize(
    ("labels", "kept", "size", "expected"),
    [
        ("torch.arange(3).repeat_interleave(30)", "y[keep]", "size", True),
        ("torch.cat([torch.zeros(45), torch.ones(45)]).long()", "y", "size", True),
        ("torch.cat([torch.full((30,), c) for c in range(3)])", "y[:80]", "size", True),
        ("torch.arange(3).repeat(30)", "y[keep]", "size", False),
        ("torch.randint(0, 3, (90,))", "y[keep]", "size", False),
        ("torch.arange(3).repeat_interleave(30)", "y[torch.randperm(90)]", "size", False),
        ("torch.arange(3).repeat_interleave(30)", "y[order]", "size", False),
        ("torch.arange(3).repeat_interleave(30)", "y[keep]", "size, shuffle=True", False),
        ("torch.arange(3).repeat_interleave(30)", "y[keep]", "len(data)", False),
        ("torch.cat([torch.ones(9), torch.zeros(9), torch.ones(9)])", "y", "size", False),
    ],
)
def test_labels_in_order(labels, kept, size, expected):
    assert ("unshuffled" in kinds(SET.format(labels, kept, size))) is expected


# --------------------------------------------------------------------------- tables filled by others

REGISTER = "M = {}\ndef register(name):\n  def put(made):\n    M[name] = made\n    return made\n  return put\n"
OWN_NAME = "M = {}\ndef register(made):\n  M[made.__name__] = made\n  return made\n"
LAST = "nn.Sequential(nn.Linear(8, 3), nn.{})"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            f"{REGISTER}@register('a')\ndef a(n):\n  return {LAST.format('Softmax(1)')}\n"
            f"@register('b')\ndef b(n):\n  return {LAST.format('ReLU()')}\nnet = M['a'](8)",
            ["softmax"],
        ),
        (
            f"{REGISTER}@register('a')\ndef a(n):\n  return {LAST.format('Softmax(1)')}\n"
            f"@register('b')\ndef b(n):\n  return {LAST.format('Linear(3, 3)')}\nname = 'b'\nnet = M[name](8)",
            ["linear"],
        ),
        (f"M = {{'a': lambda: {LAST.format('Softmax(1)')}}}\nnet = M['a']()", ["softmax"]),
        (f"make = lambda width: {LAST.format('Softmax(1)')}\nnet = make(8)", ["softmax"]),
        (f"width = 3\nmake = lambda width: {LAST.format('Softmax(1)')}\nnet = make(8)", ["softmax"]),
        (f"{REGISTER}@register('a')\ndef a(n):\n  return {LAST.format('Softmax(1)')}\nnet = M[which](8)", []),
        (
            f"{REGISTER}@register('a')\ndef a(n):\n  return {LAST.format('Softmax(1)')}\n"
            f"@register('b')\ndef b(n):\n  return {LAST.format('Softmax(-1)')}\nnet = M[which](8)",
            ["softmax"],
        ),
        (
            f"{REGISTER}@register('a')\ndef a(n):\n  return {LAST.format('Softmax(1)')}\n"
            f"@register('b')\ndef b(n):\n  return {LAST.format('ReLU()')}\nnet = M[which](8)",
            [],
        ),
        (f"{REGISTER}@register('a')\ndef a(n):\n  return {LAST.format('Softmax(1)')}\nM['a'] = b\nnet = M['a'](8)", []),
        (f"{OWN_NAME}@other\ndef a(n):\n  return {LAST.format('Softmax(1)')}\nnet = M['a'](8)", []),
    ],
)
def test_what_a_decorator_put_into_a_table(code, expected):
    assert [by for _, by in fed(f"{code}\nF.cross_entropy(net(x), y)")] == expected


FACTORY = """def make(spec):
    parts = START
    for k in spec:
        FILL
    return parts
"""


@pytest.mark.parametrize(
    ("start", "fill", "expected"),
    [
        ("{}", "parts[k] = nn.Linear(4, 4)", "plain dict"),
        ("[]", "parts.append(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))", "plain list"),
        ("{}", "parts[k] = nn.ReLU()", ""),
        ("{}", "parts[k] = nn.Linear(4, 4)\n    keep(parts)", ""),
        ("nn.ModuleList()", "parts.append(nn.Linear(4, 4))", ""),
    ],
)
def test_layers_that_a_function_puts_into_a_dictionary(start, fill, expected):
    factory = FACTORY.replace("START", start).replace("FILL", fill)
    held = HELD.format(held="self.parts = make('ab')", run="return self.parts[k](x)")
    found = [fact.kind for fact in event_of(factory + held).facts if fact.kind.startswith("plain")]
    assert [kind.removesuffix(" dict").removesuffix(" list") for kind in found] == ["plain"] * bool(expected)


VALIDATED = """from torch.utils.data import DataLoader
from torchvision import datasets, transforms as T
def augment():
    return T.Compose([T.RandomHorizontalFlip(), T.ToTensor()])
def plain():
    return T.Compose([T.ToTensor()])
def make(root):
    out = {{}}
    for split in ('train', 'val'):
        data = {data}
        out[split] = DataLoader(data, batch_size=8)
    return out
def fit(net, opt, loader):
    for x, y in loader:
        F.cross_entropy(net(x), y).backward()
        opt.step()
def score(net, loader):
    net.eval()
    with torch.no_grad():
        for x, y in loader:
            print((net(x).argmax(1) == y).sum())
net = Net()
loaders = make('.')
fit(net, torch.optim.SGD(net.parameters(), lr=0.1), loaders['train'])
score(net, loaders['{judged}'])
"""


@pytest.mark.parametrize(
    ("data", "judged", "expected"),
    [
        ("datasets.ImageFolder(root + split, transform=augment())", "val", True),
        ("datasets.CIFAR10(root, train=split == 'train', transform=augment())", "val", True),
        ("datasets.ImageFolder(root + split, transform=augment() if split == 'train' else plain())", "val", False),
        ("datasets.ImageFolder(root + split, transform={'train': augment(), 'val': plain()}[split])", "val", False),
        ("datasets.ImageFolder(root + split, transform=augment())", "train", False),
    ],
)
def test_loaders_that_a_loop_over_names_makes(data, judged, expected):
    assert ("augmented" in kinds(NET + VALIDATED.format(data=data, judged=judged))) is expected


# --------------------------------------------------------------------------- scores, terms, logarithms


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("(a(x) + b(i)).squeeze(-1)", ["linear"]),
        ("a(x) - c(x)", ["linear"]),
        ("a(x) + other(x)", []),
        ("a(x).sigmoid() + b(i)", []),
        ("a(x) * b(i)", ["linear"]),
        ("a(x) * b(i).sigmoid()", []),
        ("(a(x) - 1) / 8**0.5", ["linear"]),
        ("a(x) / c(x)", []),
        ("a(x) - a(x).logsumexp(1, keepdim=True)", []),
        ("torch.mm(graph, a(x))", ["linear"]),
        ("other(x) @ graph", []),
    ],
)
def test_sums_of_scores(given, expected):
    layers = "a, b, c = nn.Linear(8, 1), nn.Embedding(9, 1), nn.Linear(8, 1)\n"
    code = f"{layers}loss = functools.partial(F.binary_cross_entropy, reduction='mean')\nloss({given}, y)"
    assert [by for _, by in fed(code)] == expected


OBJECTIVE = """def spread(z):
    return (z ** 2).sum(1).mean()
class Objective:
    def __init__(self, weight):
        self.weight = weight
    def __call__(self, z, y):
        a, b = self.parts(z, y)
        return a + self.weight * b
    def parts(self, z, y):
        return F.cross_entropy(z, y), {}
objective = Objective(0.1)
"""


@pytest.mark.parametrize(
    ("term", "loss", "expected"),
    [
        ("spread(z).item()", "objective(self.model(x), y)", True),
        ("float(spread(z))", "objective(self.model(x), y)", True),
        ("spread(z).detach()", "objective(self.model(x), y)", True),
        ("spread(z)", "objective(self.model(x), y)", False),
        ("spread(y).item()", "objective(self.model(x), y)", False),
        ("spread(z).item()", "objective.parts(self.model(x), y)[0]", False),
        ("spread(z).item()", "objective(features, y)", False),
    ],
)
def test_a_term_of_the_outputs_that_is_a_number(term, loss, expected):
    code = OBJECTIVE.format(term) + trainer(f"loss = {loss}")
    assert ("cut term" in kinds(code)) is expected


LOGGED = """def both(z):
    p = torch.softmax(z, -1)
    return {}
def objective(z, a):
    {}
    return -(logp.gather(1, a)).mean()
"""


@pytest.mark.parametrize(
    ("result", "taken", "expected"),
    [
        ("p, torch.log(p)", "p, logp = both(z)", True),
        ("p.log()", "logp = both(z)", True),
        ("torch.log(p), z", "_, logp = both(z)", False),
        ("p, torch.log_softmax(z, -1)", "p, logp = both(z)", False),
    ],
)
def test_the_logarithm_in_one_of_two_results(result, taken, expected):
    code = LOGGED.format(result, taken) + trainer("loss = objective(self.model(x), y)")
    assert ("logged softmax" in kinds(code)) is expected


SCOPE = f"""class P:
    HALF = 'half'
@contextlib.contextmanager
def scope(p):
    if {{}}:
        yield
        return
    with {FLOAT16}:
        yield
"""


@pytest.mark.parametrize(
    ("test", "expected"),
    [("p is P.HALF", True), ("p == 'full'", True)],
)
def test_a_context_that_returns_early(test, expected):
    assert ("half" in kinds(SCOPE.format(test) + trainer(UNDER.format("scope(name)")))) is expected


def test_near_miss_of_a_context_that_always_returns_early():
    assert "half" not in kinds(SCOPE.format("p == 'full'") + trainer(UNDER.format("scope('full')")))


@pytest.mark.parametrize(("given", "expected"), [("True", True), ("False", False)])
def test_near_miss_of_a_context_that_is_never_half(given, expected):
    code = f"@contextlib.contextmanager\ndef scope(half):\n    if half:\n        with {FLOAT16}:\n            yield\n    else:\n        yield\n"
    assert ("half" in kinds(code + trainer(UNDER.format(f"scope({given})")))) is expected


# --------------------------------------------------------------------------- what outlives, hooks, parts

HISTORY = """class History:
    def __init__(self):
        self.seen = []
    def add(self, value):
        self.seen.append(value)
    {}
class Model:
    def __init__(self):
        self.net = Net()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.history = History()
    def one(self, x, y):
        loss = F.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.history.add({})
    def fit(self, loader):
        for x, y in loader:
            self.one(x, y)
"""


@pytest.mark.parametrize(
    ("more", "kept", "expected"),
    [
        ("pass", "loss", True),
        ("def mean(self):\n        return sum(float(v) for v in self.seen)", "loss", True),
        ("def reset(self):\n        self.seen = []", "loss", False),
        ("def mean(self):\n        self.seen.clear()", "loss", False),
        ("pass", "loss.item()", False),
    ],
)
def test_kept_by_an_object_of_the_trainer(more, kept, expected):
    assert ("kept" in kinds(NET + HISTORY.format(more, kept))) is expected


@pytest.mark.parametrize("more", ["m.history.seen.clear()", "m.history = History()", "m.history.seen = []"])
def test_near_miss_of_an_object_that_is_emptied_from_outside(more):
    assert "kept" not in kinds(f"{NET}{HISTORY.format('pass', 'loss')}m = Model()\n{more}\n")


HOOKS = """class Hook:
    def before(self, trainer): ...
    def after(self, trainer): ...
class Tidy(Hook):
    def {}(self, trainer):
        trainer.opt.zero_grad()
class Loop:
    def __init__(self, hooks):
        self.net = Net()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.hooks = hooks
    def fire(self, name):
        for hook in self.hooks:
            {}
    def fit(self, loader):
        for x, y in loader:
            F.cross_entropy(self.net(x), y).backward()
            self.fire('before')
            self.opt.step()
            self.fire('after')
Loop({}).fit(data)
"""


@pytest.mark.parametrize(
    ("method", "call", "hooks", "expected"),
    [
        ("before", "getattr(hook, name)(self)", "[Hook(), Tidy()]", ["backward", "zero", "step"]),
        ("before", "getattr(hook, name)(self)", "(Tidy(),)", ["backward", "zero", "step"]),
        ("after", "getattr(hook, name)(self)", "[Hook(), Tidy()]", ["backward", "step", "zero"]),
        ("before", "getattr(hook, name)(self)", "[Hook()]", ["backward", "step"]),
        ("before", "getattr(hook, name)(self)", "[*more, Tidy()]", ["backward", "opaque", "step", "opaque"]),
        ("before", "hook.before(self)", "[Tidy()]", ["backward", "zero", "step", "zero"]),
    ],
)
def test_what_hooks_do(method, call, hooks, expected):
    loops = event_of(NET + HOOKS.format(method, call, hooks)).loops
    assert [tick.kind for tick in next(each for each in loops if each.repeats and each.paths[0]).paths[0]] == expected


PARTS = """from itertools import islice
def several(model, parts):
    for x, y in parts:
        loss = {loss}
        loss.backward()
{sizes}
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    opt.zero_grad()
    several(model, {parts})
    opt.step()
"""
MEAN = "F.cross_entropy(model(x), y)"


@pytest.mark.parametrize(
    ("loss", "sizes", "parts", "expected"),
    [
        (MEAN, "n = 4", "islice(stream, n)", True),
        (MEAN, "n = 4", "zip(xs.chunk(n), ys.chunk(n))", True),
        (f"{MEAN} / 4", "n = 4", "islice(stream, n)", False),
        (MEAN, "n = 4\nlr = 0.1 / n", "islice(stream, n)", False),
        (MEAN, "n = 1", "islice(stream, n)", False),
        (MEAN, "n = 4", "tasks", False),
        (f"{MEAN[:-1]}, reduction='sum')", "n = 4", "islice(stream, n)", False),
    ],
)
def test_parts_that_a_function_sends_backward(loss, sizes, parts, expected):
    assert ("micro mean" in kinds(NET + PARTS.format(loss=loss, sizes=sizes, parts=parts))) is expected


RINGS = """from torch.utils.data import DataLoader, Dataset
class Rings(Dataset):
    def __init__(self, n):
        xs, ys = [], []
        for c in range(3):
            xs.append(torch.randn(n, 2))
            ys.append({filled})
        self.x, self.y = torch.cat(xs), torch.cat(ys)
    def __getitem__(self, i):
        return self.x[i], self.y[i]
def make(split, n=9):
    return DataLoader(Rings(n), batch_size=8, shuffle={shuffle})
def run(net, loader, opt=None):
    training = opt is not None
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        if training:
            loss.backward()
            opt.step()
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
{made}
run(net, a, opt)
run(net, b)
"""
FULL = "torch.full((n,), c)"
TURNS = "a, b = (make(s) for s in ('train', 'val'))"


@pytest.mark.parametrize(
    ("filled", "shuffle", "made", "expected"),
    [
        (FULL, "(split == 'val')", TURNS, True),
        (FULL, "split != 'train'", "a, b = make('train'), make('val')", True),
        (FULL, "(split == 'train')", TURNS, False),
        (FULL, "(split == 'val')", "a, b = make(first), make('val')", False),
        (FULL, "shuffled", TURNS, False),
        ("torch.randint(0, 3, (n,))", "(split == 'val')", TURNS, False),
    ],
)
def test_shuffled_as_each_call_says(filled, shuffle, made, expected):
    assert ("unshuffled" in kinds(NET + RINGS.format(filled=filled, shuffle=shuffle, made=made))) is expected


SIZED = """from torch.utils.data import DataLoader
from torchvision import datasets
OPTIONS = {{"batch": 96, "small": {small}}}
class Dishes(torch.utils.data.Dataset):
    def __init__(self, root):
        self.samples = []
        for label, dish in enumerate(sorted(os.listdir(root))):
            for name in os.listdir(dish):
                self.samples.append((name, label))
    def __getitem__(self, i):
        name, label = self.samples[i]
        return load(name), label
def make(options, split):
    return DataLoader(Dishes(split), batch_size=options["batch"])
def main(options):
    train, val = make({first}, "train"), make({second}, "val")
    for x, y in train:
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
main(OPTIONS)
"""


@pytest.mark.parametrize(
    ("small", "first", "second", "expected"),
    [
        ("{'batch': 96}", "options", "options", True),
        ("{'batch': 96}", "options", "options['small']", True),
        ("{'batch': 8}", "options", "options['small']", False),  # which of the two is not asked
        ("{'batch': 96}", "options", "read()", False),
        ("read()", "options", "options['small']", False),
    ],
)
def test_a_number_that_several_calls_hand_over_in_tables(small, first, second, expected):
    code = SIZED.format(small=small, first=first, second=second)
    assert ("unshuffled" in kinds(NET + code)) is expected
