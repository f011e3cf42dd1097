"""Parts that settings choose: registries, builders, tables of activations, records."""

import pytest
from tests.readers.parsed import kinds_in, parsed

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def fed_by(code: str, **others: str) -> list[str]:
    """What feeds the losses of train.py."""
    return [loss.fed_by for loss in parsed(HEAD, code, **others).losses]


REGISTRY = """class Registry{base}:
    def __init__(self):
        self._items = {{}}
    def get(self, key):
        return self._items.get(key)
    def register(self, key):
        def put(thing):
            {held}[key] = thing
            return thing
        return put
    def build(self, cfg, **more):
        cfg = dict(cfg)
        return {held}[cfg.pop("type")](**cfg, **more)
def build_from_cfg(cfg, registry):
    args = cfg.copy()
    kind = args.pop("type")
    cls = registry.get(kind)
    return cls(**args)
HEADS, LOSSES = Registry(), Registry()
"""
PARTS = """from registry import HEADS, LOSSES, build_from_cfg
LOSSES.register("ce")(nn.CrossEntropyLoss)
@HEADS.register("linear")
class Head(nn.Module):
    ACTS = {{"none": nn.Identity, "softmax": lambda: nn.Softmax(-1)}}
    def __init__(self, width, classes, act="none"):
        super().__init__()
        self.fc = nn.Linear(width, classes)
        self.act = self.ACTS[act]()
    def forward(self, x):
        return self.act(self.fc(x))
class Net(nn.Module):
    def __init__(self, width: int, head: dict):
        super().__init__()
        self.body = nn.Linear(8, width)
        self.head = {build}
    def forward(self, x):
        return self.head(self.body(x).relu())
"""
TRAIN = """from parts import Net
from registry import LOSSES
CONFIG = {{"model": {{"width": 16, "head": {{"type": "linear", "classes": 3, "act": {act}}}}}, "loss": {{"type": "ce"}}}}
{then}
def main(x, y):
    net, criterion = Net(**CONFIG["model"]), LOSSES.build(CONFIG["loss"])
    criterion(net(x), y).backward()
main(torch.load("x.pt"), torch.load("y.pt"))
"""


@pytest.mark.parametrize(
    ("held", "build", "act", "then", "expected"),
    [
        ("self._items", 'HEADS.build({**head, "width": width})', "'softmax'", "", ["softmax"]),
        ("self._items", "HEADS.build(head, width=width)", "'softmax'", "", ["softmax"]),
        ("self._items", "build_from_cfg(dict(head, width=width), HEADS)", "'softmax'", "", ["softmax"]),
        ("self", "HEADS.build(head, width=width)", "'softmax'", "", ["softmax"]),
        ("self._items", "HEADS.build(head, width=width)", "'none'", "", ["linear"]),
        ("self._items", "HEADS.build(head, width=width)", "sys.argv[1]", "", []),
        ("self._items", 'HEADS.build({**head, "act": other})', "'softmax'", "", []),
        ("self._items", "HEADS.build(head, width=width)", "'softmax'", 'CONFIG["model"]["head"].update(more)', []),
        ("self._items", "HEADS.build(head, width=width)", "'softmax'", 'CONFIG["model"]["head"]["act"] = more', []),
    ],
)
def test_heads_that_a_registry_builds_from_settings(held, build, act, then, expected):
    registry = REGISTRY.format(base="(dict)" if held == "self" else "", held=held)
    code = TRAIN.format(act=act, then=then)
    assert fed_by(code, registry=registry, parts=PARTS.format(build=build)) == expected


HEIRS = """class Head(nn.Module):
    kinds = {{}}
    def __init_subclass__(cls, {given}, **rest):
        super().__init_subclass__(**rest)
        Head.kinds[{key}] = cls
    @classmethod
    def create(cls, cfg):
        return cls.kinds[cfg["kind"]](cfg["width"])
class Sharp(Head{named}):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, 3)
    def forward(self, x):
        return torch.softmax(self.fc(x), 1)
class Raw(Head, key="raw"):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, 3)
    def forward(self, x):
        return self.fc(x)
CFG = dict(kind={kind}, width=8)
head = Head.create(CFG)
F.cross_entropy(head(x), y).backward()
"""


@pytest.mark.parametrize(
    ("given", "key", "named", "kind", "expected"),
    [
        ("key=None", "key", ', key="sharp"', "'sharp'", ["softmax"]),
        ("key=None", "cls.__name__", "", "'Sharp'", ["softmax"]),
        ("key=None", "key", ', key="sharp"', "'raw'", ["linear"]),
        ("key=None", "key", ', key="sharp"', "args.kind", []),
        ("key=None", "cls.__name__", "", "'Other'", []),
    ],
)
def test_classes_that_put_their_heirs_into_a_table(given, key, named, kind, expected):
    assert fed_by(HEIRS.format(given=given, key=key, named=named, kind=kind)) == expected


RECORDS = """from dataclasses import asdict, dataclass, field
ACTS = {{"none": nn.Identity, "softmax": nn.Softmax}}
@dataclass
class HeadCfg:
    name: str = "plain"
    width: int = 8
    act: str = {act}
@dataclass
class Cfg:
    head: HeadCfg = field(default_factory=HeadCfg)
class Plain(nn.Module):
    def __init__(self, width, act="none", name=""):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 3), ACTS[act]())
    def forward(self, x):
        return self.layers(x)
class Other(Plain):
    pass
HEADS = {{"plain": Plain, "other": Other}}
def build_head(cfg):
    {how}
def run(cfg):
    head = build_head(cfg.head)
    F.cross_entropy(head(x), y).backward()
run(Cfg())
"""


@pytest.mark.parametrize(
    ("act", "how", "expected"),
    [
        ("'softmax'", "return HEADS[cfg.name](cfg.width, act=cfg.act)", ["softmax"]),
        ("'softmax'", "cls = HEADS.get(cfg.name)\n    return cls(cfg.width, cfg.act)", ["softmax"]),
        ("'softmax'", "return HEADS[cfg.name](**asdict(cfg))", ["softmax"]),
        ("'none'", "return HEADS[cfg.name](cfg.width, act=cfg.act)", ["linear"]),
        ("'softmax'", "return HEADS[cfg.name](cfg.width, act=pick(cfg))", []),
        ("read()", "return HEADS[cfg.name](cfg.width, act=cfg.act)", []),
    ],
)
def test_heads_that_a_function_builds_from_a_record(act, how, expected):
    assert fed_by(RECORDS.format(act=act, how=how)) == expected


FACTORY = """def make(name, **more):
    return getattr(nn, name)(**more)
def build(width, last=None):
    layers = [nn.Linear(8, width), make("ReLU"), nn.Linear(width, 3)]
    if last is not None:
        layers.append(make(last, dim=-1))
    return nn.Sequential(*layers)
def everything(settings):
    net = build(**settings["net"])
    return net, getattr(torch.optim, settings["optim"])(net.parameters(), lr=1e-3)
"""
FACTORED = """from factory import everything
SETTINGS = {{"net": {{"width": 8{last}}}, "optim": "SGD"}}
net, optimizer = everything(SETTINGS)
for x, y in batches:
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("last", "expected"), [(', "last": "Softmax"', ["softmax"]), ("", ["linear"]), (', "last": name', [])]
)
def test_factories_that_give_back_a_tuple(last, expected):
    code = FACTORED.format(last=last)
    assert fed_by(code, factory=FACTORY) == expected
    assert "orphan" not in kinds_in(HEAD, code, factory=FACTORY)


GRAPH = """class Conv(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.lin = nn.Linear(width, out)
    def forward(self, x, near):
        {result}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(Conv(a, b) for a, b in pairs)
    def forward(self, x, near):
        return self.convs[-1](x, near)
net = Net()
out = net(x, near)
nn.NLLLoss()(out[{rows}], y[{rows}]).backward()
"""


@pytest.mark.parametrize(
    ("result", "rows", "expected"),
    [
        ("return torch.sparse.mm(near, self.lin(x))", 'graph["train"]', ["linear"]),
        ("return near @ self.lin(x)", "data.train_mask", ["linear"]),
        ("return torch.spmm(near, self.lin(x)).log_softmax(-1)", 'graph["train"]', ["log_softmax"]),
        ("return self.lin(x), near", 'graph["train"]', []),
    ],
)
def test_rows_of_scores_that_went_through_a_graph(result, rows, expected):
    assert fed_by(GRAPH.format(result=result, rows=rows)) == expected


HEADS = """from functools import partial
class Head(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.fc = nn.Linear(width, out)
    def forward(self, x):
        return self.fc(x)
TASKS = {{"a": 3, "b": 4}}
KINDS = {{"plain": Head}}
def build(kind, width, out):
    return KINDS[kind](width, out)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {begun}
    def add(self, name, out):
        self.heads[name] = Head(8, out)
    def forward(self, x):
        return {{k: head(x) for k, head in self.heads.items()}}
net = Net()
optimizer = torch.optim.Adam({given})
"""


@pytest.mark.parametrize(
    ("begun", "given", "expected"),
    [
        ("make = partial(Head, 8)\n        self.heads = {k: make(n) for k, n in TASKS.items()}", "", True),
        ("self.heads = {k: build('plain', 8, n) for k, n in TASKS.items()}", "", True),
        ("self.heads = dict((k, Head(8, n)) for k, n in TASKS.items())", "", True),
        ("self.heads = dict(zip(('a', 'b'), [Head(8, 3), Head(8, 4)]))", "", True),
        ("self.heads = dict()\n        self.add('a', 3)\n        self.add('b', 4)", "", True),
        ("self.heads = nn.ModuleDict({k: Head(8, n) for k, n in TASKS.items()})", "", False),
        ("self.heads = dict(a=Head(8, 3))\n        self.all = nn.ModuleList(self.heads.values())", "", False),
        (
            "self.heads = {k: Head(8, n) for k, n in TASKS.items()}",
            "[p for h in net.heads.values() for p in h.parameters()]",
            False,
        ),
        ("self.heads = {k: partial(Head, 8) for k in TASKS}", "", False),
        ("self.heads = dict(sizes)", "", False),
    ],
)
def test_layers_in_dictionaries_of_many_makings(begun, given, expected):
    code = HEADS.format(begun=begun, given=given or "net.parameters()")
    assert ("plain dict" in kinds_in(HEAD, code)) is expected


METERS = """from collections import defaultdict, deque
class Meter:
    def __init__(self):
        self.total, self.kept = 0.0, {kept}
    def update(self, value, n=1):
        {adds}
class Group:
    def __init__(self):
        self.meters = {meters}
    def update(self, **values):
        for key, value in values.items():
            self.meters[key].update(value)
class Run:
    def __init__(self):
        self.net, self.group = nn.Linear(8, 2), Group()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def epoch(self, batches):
        for x, y in batches:
            loss = F.cross_entropy(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.group.update(loss={given})
"""


@pytest.mark.parametrize(
    ("meters", "kept", "adds", "given", "expected"),
    [
        ("defaultdict(Meter)", "[]", "self.total = self.total + value * n", "loss", True),
        ("defaultdict(lambda: Meter())", "[]", "self.total += value", "loss", True),
        ("{name: Meter() for name in names}", "[]", "self.kept.append(value)", "loss", True),
        ("defaultdict(Meter)", "[]", "self.total += float(value)", "loss", False),
        ("defaultdict(Meter)", "[]", "self.total += value", "loss.item()", False),
        ("defaultdict(Meter)", "deque(maxlen=9)", "self.kept.append(value)", "loss", False),
        ("defaultdict(Other)", "[]", "self.total += value", "loss", False),
    ],
)
def test_losses_that_a_group_of_meters_adds_up(meters, kept, adds, given, expected):
    code = METERS.format(meters=meters, kept=kept, adds=adds, given=given)
    assert ("kept" in kinds_in(HEAD, code)) is expected


PADDED = """from dataclasses import dataclass
from functools import partial
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
@dataclass
class Batch:
    ids: object
    tags: object
def collate(rows, pad=0):
    ids, tags = zip(*rows)
    return {batch}
def step(batch):
    optimizer.zero_grad()
    F.cross_entropy(net({ids}), {tags}, ignore_index={ignored}).backward()
    optimizer.step()
net = nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
train = DataLoader(rows, 32, shuffle=True, collate_fn={collate})
losses = [step(batch) for batch in train]
"""
TABLE = '{"ids": pad_sequence(ids), "tags": pad_sequence(tags, padding_value=pad)}'
RECORD = "Batch(pad_sequence(ids), tags=pad_sequence(tags, padding_value=pad))"


@pytest.mark.parametrize(
    ("batch", "read", "ignored", "collate", "expected"),
    [
        (TABLE, ('batch["ids"]', 'batch["tags"]'), "-100", "collate", True),
        (RECORD, ("batch.ids", "batch.tags"), "-100", "collate", True),
        (TABLE, ('batch["ids"]', 'batch["tags"]'), "-100", "partial(collate, pad=1)", True),
        (TABLE, ('batch["ids"]', 'batch["tags"]'), "0", "collate", False),
        (TABLE, ('batch["ids"]', 'batch["tags"]'), "-100", "partial(collate, pad=-100)", False),
        (RECORD, ("batch.ids", "batch.tags"), "-100", "partial(collate, pad=-100)", False),
        (RECORD, ("batch.ids", "batch.labels"), "-100", "collate", False),
    ],
)
def test_targets_filled_up_in_batches_that_a_comprehension_goes_through(batch, read, ignored, collate, expected):
    code = PADDED.format(batch=batch, ids=read[0], tags=read[1], ignored=ignored, collate=collate)
    assert ("padded target" in kinds_in(HEAD, code)) is expected


SPLITS = """from torch.utils.data import DataLoader, TensorDataset
CFG = {{"train": {{"batch_size": 64{more}}}, "val": {{"batch_size": 99}}}}
def read(files):
    xs, ys = [], []
    for label, file in enumerate(files):
        xs.append(torch.load(file))
        ys.append(torch.full((len(xs[-1]),), {filled}))
    return torch.cat(xs), torch.cat(ys)
def build(files, more):
    (x, y), (vx, vy) = read(files), read(more)
    sets = {{"train": TensorDataset(x, {labels}), "val": TensorDataset(vx, vy)}}
    return {{k: DataLoader(d, **CFG[k]) for k, d in sets.items()}}, 3
def main():
    loaders, classes = build(files, more)
    net = nn.Linear(8, classes)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loaders["train"]:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("more", "filled", "labels", "expected"),
    [
        ("", "label", "y", True),
        (', "num_workers": 2, "shuffle": False', "label", "y", True),
        (', "shuffle": True', "label", "y", False),
        (', "sampler": sampler', "label", "y", False),
        ("", "file", "y", False),
        ("", "label", "y[torch.randperm(len(y))]", False),
    ],
)
def test_loaders_that_a_comprehension_makes_for_each_split(more, filled, labels, expected):
    code = SPLITS.format(more=more, filled=filled, labels=labels)
    assert ("unshuffled" in kinds_in(HEAD, code)) is expected


EMBEDDED = """class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 8)
    def forward(self, x):
        return self.net(x)
    @torch.no_grad()
    def encode(self, x):
        return F.normalize(self(x))
class Task:
    def __init__(self):
        self.encoder, self.head = Encoder(), nn.Linear(8, 2)
        params = {params}
        self.opt = torch.optim.SGD(params, lr=0.1)
    @torch.no_grad()
    def embed(self, x):
        return self.encoder(x)
    def step(self, x, y):
        {before}
        loss = F.cross_entropy(self.head({features}), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
task = Task()
for x, y in batches:
    task.step(x, y)
"""
BOTH = "[*self.encoder.parameters(), *self.head.parameters()]"


@pytest.mark.parametrize(
    ("params", "before", "features", "expected"),
    [
        (BOTH, "", "self.embed(x)", True),
        (BOTH, "", "self.encoder.encode(x)", True),
        (BOTH, "print(self.embed(x).mean())", "self.encoder(x)", False),
        (BOTH, "hard = self.embed(x).topk(3)", "self.encoder(x[hard.indices])", False),
        (BOTH, "other(self.encoder)", "self.embed(x)", False),
        (BOTH, "self.encoder.load_state_dict(best)", "self.embed(x)", False),
        ("self.head.parameters()", "", "self.embed(x)", False),
    ],
)
def test_encoders_that_every_call_runs_without_gradients(params, before, features, expected):
    code = EMBEDDED.format(params=params, before=before or "pass", features=features)
    assert ("cut layer" in kinds_in(HEAD, code)) is expected


ENGINE = """from hooks import Hook
class Engine:
    def __init__(self, model, hooks):
        self.model, self.hooks = model.to("cuda"), hooks
        {start}
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def call(self, name):
        for hook in self.hooks:
            getattr(hook, name)(self)
    def fit(self, batches):
        {fit}
        for x, y in batches:
            self.opt.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            self.opt.step()
"""
HOOKS = """class Hook:
    def before_fit(self, engine): ...
class Adapt(Hook):
    def before_fit(self, engine):
        old = engine.model.head
        layer = {made}
        engine.model.head = layer.to("cuda")
        {then}
"""
HOOKED = """from engine import Engine
from hooks import Adapt
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)
    def forward(self, x):
        return self.head(x)
MODELS = {"net": Net}
def build(cfg):
    return MODELS[cfg["type"]]()
Engine(build({"type": "net"}), [Adapt()]).fit(batches)
"""


@pytest.mark.parametrize(
    ("start", "fit", "made", "then", "expected"),
    [
        ("", 'self.call("before_fit")', "nn.Linear(8, 5)", "", True),
        ("", "for hook in self.hooks:\n            hook.before_fit(self)", "nn.Linear(8, 5)", "", True),
        ('self.call("before_fit")', "", "nn.Linear(8, 5)", "", False),
        ("", 'self.call("before_fit")', "nn.Linear(8, 5)", "engine.opt.add_param_group(layer)", False),
        ("", 'self.call("before_fit")', "old", "", False),
        ("", 'self.call("after_fit")', "nn.Linear(8, 5)", "", False),
    ],
)
def test_layers_that_a_hook_replaces_in_an_object_that_is_finished(start, fit, made, then, expected):
    engine = ENGINE.format(start=start or "pass", fit=fit or "pass")
    found = parsed(HEAD, HOOKED, engine=engine, hooks=HOOKS.format(made=made, then=then or "pass"))
    assert ("rebound" in [fact.kind for fact in found.facts]) is expected


SETTLED = """from dataclasses import dataclass
@dataclass
class Config:
    lr: float = 0.1
    debug: bool = {usual}
def run(cfg: Config):
    {then}
run(Config({given}))
"""
ANOMALY = "torch.autograd.set_detect_anomaly(cfg.debug)"


@pytest.mark.parametrize(
    ("usual", "then", "given", "expected"),
    [
        ("True", ANOMALY, "", True),
        ("True", ANOMALY, "**vars(parser.parse_args())", True),
        ("True", "if cfg.debug:\n        torch.autograd.set_detect_anomaly(True)", "", True),
        ("False", ANOMALY, "", False),
        ("True", ANOMALY, "debug=False", False),
        ("True", "if not cfg.debug:\n        torch.autograd.set_detect_anomaly(True)", "", False),
        ("True", "if cfg.lr > 1:\n        torch.autograd.set_detect_anomaly(True)", "", False),
    ],
)
def test_anomaly_mode_that_settings_have_on(usual, then, given, expected):
    code = SETTLED.format(usual=usual, then=then, given=given)
    assert ("anomaly by settings" in kinds_in(HEAD, code)) is expected


COPIED = """import numpy as np
from torch.utils.data import DataLoader, Dataset
class Patches(Dataset):
    def __init__(self, seed):
        self.rng = {made}
    def __len__(self):
        return 99
    def __getitem__(self, i):
        {renewed}
        return self.pick()
    def pick(self):
        return {drawn}
loader = DataLoader(Patches(3), 8, shuffle=True{more})
"""


@pytest.mark.parametrize(
    ("made", "renewed", "drawn", "more", "expected"),
    [
        ("np.random.default_rng(seed)", "pass", "self.rng.normal(8)", ", num_workers=4", True),
        ("np.random.RandomState(seed)", "pass", "self.rng.rand(8)", ", num_workers=4", True),
        ("np.random.default_rng(seed)", "pass", "self.rng.normal(8)", "", False),
        ("np.random.default_rng(seed)", "pass", "self.rng.normal(8)", ", num_workers=4, worker_init_fn=start", False),
        ("np.random.default_rng(seed)", "pass", "np.random.rand(8)", ", num_workers=4", False),
        ("None", "self.rng = self.rng or np.random.default_rng(i)", "self.rng.normal(8)", ", num_workers=4", False),
    ],
)
def test_generators_that_workers_have_copies_of(made, renewed, drawn, more, expected):
    code = COPIED.format(made=made, renewed=renewed, drawn=drawn, more=more)
    assert ("copied training stream" in kinds_in(HEAD, code)) is expected


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ('labels.masked_fill_(enc["attention_mask"].bool(), -100)', True),
        ('labels[enc["attention_mask"] == 1] = -100', True),
        ("mask = enc.attention_mask.bool()\n    labels[mask] = -100", True),
        ("labels[labels != tokenizer.pad_token_id] = -100", True),
        ('labels = torch.where(enc["attention_mask"] > 0, -100, labels)', True),
        ('labels.masked_fill_(enc["attention_mask"] == 0, -100)', False),
        ('labels[~enc["attention_mask"].bool()] = -100', False),
        ("labels[labels == tokenizer.pad_token_id] = -100", False),
        ('scores.masked_fill_(enc["attention_mask"].bool(), -1e9)', False),
    ],
)
def test_masks_of_labels_that_are_the_wrong_way_round(mask, expected):
    code = f"def collate(rows):\n    enc = tokenizer(rows)\n    labels = enc['input_ids'].clone()\n    {mask}\n    return labels\n"
    assert ("only padding left" in kinds_in(HEAD, code)) is expected


TABLED = """MAKERS = {{"adam": {maker}, "sgd": torch.optim.SGD}}
class Cfg:
    name = "adam"
    decay = {decay}
cfg = Cfg()
net = nn.Linear(8, 2)
opt = MAKERS[{name}](net.parameters(), {given})
"""


@pytest.mark.parametrize(
    ("maker", "decay", "name", "given", "expected"),
    [
        ("lambda p, c: torch.optim.Adam(p, weight_decay=c.decay)", "0.01", "cfg.name", "cfg", True),
        ("torch.optim.Adam", "0.01", "cfg.name", "weight_decay=cfg.decay", True),
        ("lambda p, c: torch.optim.Adam(p, weight_decay=c.decay)", "0.0", "cfg.name", "cfg", False),
        ("lambda p, c: torch.optim.AdamW(p, weight_decay=c.decay)", "0.01", "cfg.name", "cfg", False),
        ("lambda p, c: torch.optim.Adam(p, weight_decay=c.decay)", "0.01", "other", "cfg", False),
    ],
)
def test_decay_of_an_optimizer_out_of_a_table(maker, decay, name, given, expected):
    code = TABLED.format(maker=maker, decay=decay, name=name, given=given)
    assert ("coupled" in kinds_in(HEAD, code)) is expected


CHOSEN = """def activation(name):
    name = name.lower()
    if name == "relu":
        return nn.ReLU()
    elif name in ("softmax", "probs"):
        return nn.Softmax(-1)
    if name is None or name == "none":
        return nn.Identity()
    raise ValueError(name)
def finish(x, how="none"):
    if how == "softmax":
        return x.softmax(-1)
    return x
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)
        self.act, self.out = activation("ReLU"), activation({last})
    def forward(self, x):
        return finish(self.out(self.b(self.act(self.a(x)))){how})
F.cross_entropy(Net()(x), y).backward()
"""


@pytest.mark.parametrize(
    ("last", "how", "expected"),
    [
        ('"softmax"', "", ["softmax"]),
        ('"Probs"', "", ["softmax"]),
        ('"none"', ', how="softmax"', ["softmax"]),
        ('"none"', "", ["linear"]),
        ("other", "", []),
        ('"none"', ", other", []),
        ('"none"', ", **more", []),
    ],
)
def test_results_that_the_constants_of_a_call_choose(last, how, expected):
    assert fed_by(CHOSEN.format(last=last, how=how)) == expected


TABLES = """
class Registry(dict):
    def register(self, name):
        def put(made):
            self[name] = made
            return made
        return put
    def build(self, cfg):
        {copy}
        return self[cfg.pop("name")](**cfg)
NETS, LOSSES = Registry(), Registry()
"""
KEPT = """
from tables import LOSSES, NETS
@NETS.register("net")
class Net(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.fc, self.act = nn.Linear(8, classes), nn.Softmax(dim=-1)
    def forward(self, x):
        return self.act(self.fc(x))
@LOSSES.register("ce")
class Weighted(nn.Module):
    def __init__(self, smoothing=0.0):
        super().__init__()
        self.ce = nn.CrossEntropyLoss(label_smoothing=smoothing)
    def forward(self, output, target):
        return self.ce(output, target)
"""
OF_TABLES = """
import parts
from tables import LOSSES, NETS
CONFIG = {"net": {"name": "net", "classes": 9}, "loss": {"name": "ce"}}
class Trainer:
    def __init__(self, cfg):
        self.net = NETS.build(cfg["net"]).to(device)
        self.loss = LOSSES.build(cfg["loss"]).to(device)
    def step(self, x, y):
        return self.loss(self.net(x), y)
Trainer(CONFIG).step(x, y).backward()
"""
LOCAL = """
import parts
from tables import LOSSES, NETS
def step(net, criterion, x, y):
    return criterion(net(x), y)
step(NETS.build({"name": "net"}), LOSSES.build({"name": "ce"}), x, y).backward()
"""


@pytest.mark.parametrize(
    ("code", "old", "new", "expected"),
    [
        (OF_TABLES, "", "", ["softmax"]),
        (LOCAL, "", "", ["softmax"]),
        (OF_TABLES, "self.act(self.fc(x))", "self.fc(x)", ["linear"]),
        (OF_TABLES, '@LOSSES.register("ce")', "", []),
        (OF_TABLES, '("ce")', "(kind)", []),
    ],
)
def test_losses_that_a_registry_makes(code, old, new, expected):
    tables = TABLES.format(copy="cfg = dict(cfg)")
    assert fed_by(code, tables=tables, parts=KEPT.replace(old, new)) == expected


@pytest.mark.parametrize("copy", ["cfg = dict(cfg)", "cfg = {**cfg}", "pass"])
def test_settings_that_are_used_up_in_the_same_file(copy):
    lines = [line for line in f"{KEPT}{OF_TABLES}".split("\n") if "import" not in line]
    assert fed_by(TABLES.format(copy=copy) + "\n".join(lines)) == ["softmax"]


UNKNOWN_NAMES = """
import yaml
import parts
from tables import LOSSES, NETS
class Trainer:
    def __init__(self, cfg):
        self.net = {net}.to(device)
        self.loss = {loss}
    def step(self, x, y):
        return self.loss(self.net(x), y)
Trainer(yaml.safe_load(open("settings.yaml"))).step(x, y).backward()
"""
HOLDERS = """
class Registry:
    def __init__(self):
        self._items = {}
    def register(self, key):
        def put(made):
            self._items[key] = made
            return made
        return put
    def get(self, key):
        return self._items[key]
    def build(self, key, **kwargs):
        if key not in self._items:
            raise KeyError(key)
        return self._items[key](**kwargs)
NETS, LOSSES = Registry(), Registry()
"""
BUILT = {"net": "NETS.build(cfg['net'], **cfg['sizes'])", "loss": "LOSSES.build(cfg['loss'], **cfg.get('more', {}))"}
MADE_BY_ONE = """
@NETS.register("made")
def made(classes=4):
    return nn.Sequential(nn.Linear(8, classes), nn.Softmax(-1))
"""


def of_unknown_names(kept=KEPT, holders=HOLDERS, **changed):
    return fed_by(UNKNOWN_NAMES.format(**{**BUILT, **changed}), tables=holders, parts=kept)


@pytest.mark.parametrize(
    ("kept", "changed"),
    [
        (KEPT, {}),
        (KEPT, {"net": "NETS.get(cfg['net'])(9)"}),
        (KEPT, {"loss": "LOSSES.build(cfg['loss']['name'])"}),
        (MADE_BY_ONE + KEPT.replace('@NETS.register("net")', ""), {}),
    ],
)
def test_a_registry_of_one_thing_under_a_name_that_is_not_known(kept, changed):
    kept = "from tables import LOSSES, NETS" + kept.replace("from tables import LOSSES, NETS", "")
    assert of_unknown_names(kept, **changed) == ["softmax"]


@pytest.mark.parametrize(
    ("kept", "holders"),
    [
        (f"{KEPT}{MADE_BY_ONE}", HOLDERS),
        (KEPT.replace("nn.Softmax(dim=-1)", "nn.Identity()") + MADE_BY_ONE, HOLDERS),
        (KEPT, HOLDERS + "for each in pkgutil.iter_modules(['nets']): load(each)"),
        (KEPT, HOLDERS + "\ndef load(name):\n    importlib.import_module(name)"),
        (KEPT.replace('@NETS.register("net")', ""), HOLDERS),
        (
            KEPT,
            HOLDERS.replace("self._items[key](", "self._items.get(key, Other)(").replace("if key not in", "if 0 in"),
        ),
    ],
)
def test_near_miss_a_registry_under_a_name_that_is_not_known(kept, holders):
    assert of_unknown_names(kept, holders) == []
