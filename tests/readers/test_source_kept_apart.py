"""Reading Python source: parts of a model, tables of losses, switches for a device, and what each call says."""

from __future__ import annotations

from functools import partial

import pytest
from parsed import kinds_in, parsed

HEAD = """import torch, argparse, contextlib, collections, itertools
from collections import defaultdict
from typing import NamedTuple
from torch import nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler
"""
TURN = """    opt.zero_grad()
    loss.backward()
    opt.step()
"""


event_of, kinds = partial(parsed, HEAD), partial(kinds_in, HEAD)


# --------------------------------------------------------------------------- layers without gradients

MATCHER = """class Matcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)
    {above}
    def encode(self, x):
        return self.body(x)
    def similarity(self, x, y):
        a, b = self.encode(x), self.encode(y)
        return self.head(a) @ self.head(b).t()
def turn(model, x, y):
    scores = model.similarity(x, y)
    return F.cross_entropy(scores, torch.arange(len(x)))
model = Matcher()
opt = torch.optim.AdamW({given}, lr=1e-3)
for x, y in data:
    {loss}
"""
PARTS = "[{'params': itertools.chain(model.body.parameters())}, {'params': model.head.parameters()}]"


@pytest.mark.parametrize(
    ("above", "given", "loss", "expected"),
    [
        ("@torch.no_grad()", PARTS, "loss = turn(model, x, y)", True),
        ("@torch.inference_mode()", "model.parameters()", "loss = turn(model, x, y)", True),
        ("@staticmethod", PARTS, "loss = turn(model, x, y)", False),
        ("@torch.no_grad()", "model.head.parameters()", "loss = turn(model, x, y)", False),
        ("@torch.no_grad()", PARTS, "loss = other(x); print(turn(model, x, y))", False),
        (
            "@torch.no_grad()",
            PARTS,
            "loss = turn(model, x, y) + sum(p.sum() for p in model.body.parameters())",
            False,
        ),
    ],
)
def test_layers_that_only_a_method_without_gradients_calls(above, given, loss, expected):
    code = MATCHER.format(above=above, given=given, loss=loss) + TURN
    assert ("cut layer" in kinds(code)) is expected


# --------------------------------------------------------------------------- scores side by side

WIDE = """class Table(nn.Module):
    def __init__(self, sizes, dim):
        super().__init__()
        self.tables = nn.ModuleList([{layer} for s in sizes])
    def forward(self, ids):
        return torch.cat([{each} for i, t in enumerate(self.tables)], dim=1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.deep = Table((4, 5), 1), nn.Linear(8, 1)
    def forward(self, ids, x):
        return self.wide(ids).{reduced} + self.deep(x).squeeze(1)
net = Net()
loss = F.binary_cross_entropy({score}, y)
"""


@pytest.mark.parametrize(
    ("layer", "each", "reduced", "score", "expected"),
    [
        ("nn.Embedding(s, dim)", "t(ids[:, i])", "sum(dim=1)", "net(ids, x)", ["linear"]),
        ("nn.Linear(s, dim)", "t(ids)", "mean(1)", "net(ids, x)", ["linear"]),
        ("nn.Embedding(s, dim)", "t(ids[:, i]).sigmoid()", "sum(dim=1)", "net(ids, x)", []),
        ("nn.Embedding(s, dim)", "t(ids[:, i])", "prod(dim=1)", "net(ids, x)", []),
        ("nn.Embedding(s, dim)", "t(ids[:, i])", "sum(dim=1)", "torch.sigmoid(net(ids, x))", ["sigmoid"]),
        ("Other(s, dim)", "t(ids[:, i])", "sum(dim=1)", "net(ids, x)", []),
    ],
)
def test_scores_of_several_tables(layer, each, reduced, score, expected):
    code = WIDE.format(layer=layer, each=each, reduced=reduced, score=score)
    assert [loss.fed_by for loss in event_of(code).losses] == expected


# --------------------------------------------------------------------------- tables of losses

TRACKER = """class Tracker:
    def __init__(self):
        self.history = collections.defaultdict(list)
    def update(self, metrics):
        for key, value in metrics.items():
            {keep}
    def smoothed(self, key):
        {smoothed}
def terms(model, x, y):
    loss = F.cross_entropy(model(x), y)
    return {{"loss": loss, "other": loss * 2}}
model = nn.Linear(8, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
tracker = Tracker()
for x, y in data:
    metrics = terms(model, x, y)
    opt.zero_grad()
    {back}
    opt.step()
    tracker.update({given})
"""
APPENDED = "self.history[key].append(value)"
MEAN = "return float(sum(self.history[key][-9:]))"
BACK = "metrics['loss'].backward()"


@pytest.mark.parametrize(
    ("keep", "smoothed", "back", "given", "expected"),
    [
        (APPENDED, MEAN, BACK, "metrics", True),
        (APPENDED, MEAN, "loss = metrics['loss']; loss.backward()", "{'train': loss}", True),
        ("self.history[key].append(value.item())", MEAN, BACK, "metrics", False),
        (f"value = value.detach(); {APPENDED}", MEAN, BACK, "metrics", False),
        (APPENDED, "self.history[key] = self.history[key][-9:]", BACK, "metrics", False),
        (APPENDED, "return self.history[key].pop()", BACK, "metrics", False),
        (APPENDED, MEAN, BACK, "{k: float(v) for k, v in metrics.items()}", False),
        (APPENDED, MEAN, f"{BACK}; metrics['loss'] = metrics['loss'].item()", "metrics", False),
        (f"if key == 'rate': {APPENDED}", MEAN, BACK, "metrics", False),
    ],
)
def test_a_table_of_losses_that_is_kept(keep, smoothed, back, given, expected):
    code = TRACKER.format(keep=keep, smoothed=smoothed, back=back, given=given)
    assert ("kept" in kinds(code)) is expected


# --------------------------------------------------------------------------- precision

CONTEXT = """KINDS = {{"fp32": None, "fp16": torch.float16}}
def context(kind, device):
    dtype = KINDS[kind]
    {head}
        return contextlib.nullcontext()
    return torch.autocast(device_type="cuda", dtype=torch.float16)
def fit(model, loader, opt, device, kind):
    for x, y in loader:
        opt.zero_grad()
        with context(kind, device):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
parser = argparse.ArgumentParser()
parser.add_argument("--kind", {usual})
args = parser.parse_args()
model = nn.Linear(8, 3)
fit(model, data, torch.optim.SGD(model.parameters(), lr=0.1), torch.device("cuda"), args.kind)
"""


@pytest.mark.parametrize(
    ("head", "usual", "expected"),
    [
        ("if dtype is None or device.type != 'cuda':", "default='fp16'", True),
        ("if not torch.cuda.is_available():", "default='fp16'", True),
        ("if dtype is None or device.type != 'cuda':", "default='fp32'", False),
        ("if dtype is None or device.type != 'cuda':", "required=True", False),
        ("if device.type == 'cuda':", "default='fp16'", False),
        ("if dtype is None or unknown():", "default='fp16'", False),
    ],
)
def test_half_precision_on_a_gpu_alone(head, usual, expected):
    assert ("half" in kinds(CONTEXT.format(head=head, usual=usual))) is expected


HALVED = """def build(args, device):
    model = nn.Linear(8, 3).to(device)
    if args.half:
        model = model.half()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3{more})
    return model, opt
parser = argparse.ArgumentParser()
parser.add_argument("--half", {usual})
args = parser.parse_args()
model, opt = build(args, "cuda")
for x, y in data:
    loss = F.cross_entropy(model(x), y)
"""


@pytest.mark.parametrize(
    ("usual", "more", "expected"),
    [
        ("action=argparse.BooleanOptionalAction, default=True", "", True),
        ("type=int, default=1", "", True),
        ("action='store_true'", "", False),
        ("default=False", "", False),
        ("default=True", ", eps=1e-4", False),
    ],
)
def test_a_model_that_is_halved_by_default(usual, more, expected):
    code = HALVED.format(usual=usual, more=more) + TURN
    assert ("eps of zero" in kinds(code)) is expected


# --------------------------------------------------------------------------- samplers

SHARDED = """class Trainer:
    def __init__(self, model, rows):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
        self.first = self.build(rows, {first})
        self.second = self.build(rows, train=False)
    def build(self, rows, train{usual}):
        sampler = DistributedSampler(rows, shuffle={shuffle})
        return DataLoader(rows, 16, sampler=sampler)
    def epoch(self):
        for x, y in self.{taken}:
            self.opt.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            self.opt.step()
    def fit(self, epochs):
        for epoch in range(epochs):
            self.epoch()
Trainer(nn.Linear(8, 3), rows).fit(9)
"""


@pytest.mark.parametrize(
    ("first", "usual", "shuffle", "taken", "expected"),
    [
        ("train=True", "", "train", "first", True),
        ("seed=3", "=True, seed=0", "train", "first", True),
        ("train=True", "", "train", "second", False),
        ("train=given", "", "train", "first", False),
        ("train=True", "", "not train", "first", False),
    ],
)
def test_a_sampler_that_shuffles_as_each_call_says(first, usual, shuffle, taken, expected):
    code = SHARDED.format(first=first, usual=usual, shuffle=shuffle, taken=taken)
    assert ("no set_epoch" in kinds(code)) is expected


# --------------------------------------------------------------------------- losses of one's own, and dropout

FOCAL = """class Focal(nn.Module):
    def forward(self, scores, y):
        probs = F.softmax(scores, dim=1)
        logs = {logs}
        {taken} = logs.gather(1, y[:, None])
        loss = -(1 - probs.max(1)[0]) * p
        return loss.mean() if self.training else loss.sum()
model, focal = nn.Linear(8, 3), Focal()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in data:
    {loss}
"""


@pytest.mark.parametrize(
    ("logs", "taken", "loss", "expected"),
    [
        ("torch.log(probs)", "p", "loss = focal(model(x), y)", True),
        ("probs.log()", "p", "loss = 2 * focal(model(x), y) + 1", True),
        ("F.log_softmax(scores, dim=1)", "p", "loss = focal(model(x), y)", False),
        ("torch.log(probs)", "shown", "loss = focal(model(x), y)", False),
        ("torch.log(probs)", "p", "loss = F.cross_entropy(model(x), y); print(focal(model(x), y))", False),
    ],
)
def test_a_logarithm_in_a_loss_of_ones_own(logs, taken, loss, expected):
    code = FOCAL.format(logs=logs, taken=taken, loss=loss) + TURN
    assert ("logged softmax" in kinds(code)) is expected


DROPPED = """class Net(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.body, self.rate = nn.Linear(8, 3), rate
    def forward(self, x):
        return self.body({dropped})
def score(model, x):
    model.eval()
    return model(x).argmax(1)
model = Net({rate})
opt = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in data:
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    score(model, x)
"""


@pytest.mark.parametrize(
    ("dropped", "rate", "expected"),
    [
        ("F.dropout(x, self.rate, training=self.training)", "0.5", "dropout"),
        ("F.dropout(x, 0.2, self.training)", "0.5", "dropout"),
        ("F.dropout(x, self.rate)", "0.5", ""),
        ("F.dropout(x, self.rate, training=self.training)", "0.0", ""),
        ("F.dropout(x, self.rate, training=self.training)", "unknown()", ""),
    ],
)
def test_dropout_that_is_a_function(dropped, rate, expected):
    loops = event_of(DROPPED.format(dropped=dropped, rate=rate)).loops
    modes = [
        tick.modes for loop in loops if loop.repeats for path in loop.paths for tick in path if tick.kind == "eval"
    ]
    assert modes == [expected]


# --------------------------------------------------------------------------- trunks, and what fills up

PROBE = """class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    def forward(self, x):
        return self.layers(x)
class Probe(nn.Module):
    def __init__(self, trunk, n):
        super().__init__()
        self.trunk = {held}
        self.head = nn.Linear(8, n)
    def forward(self, x):
        return self.head(self.trunk(x))
def freeze(module):
    for p in module.parameters():
        p.requires_grad = False
def build(n):
    trunk = Trunk()
    {frozen}
    return Probe({given}, n)
def epoch(model, opt):
    model.train()
    {after}
    for x, y in data:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
model = build(5)
opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
for number in range(9):
    epoch(model, opt)
"""


@pytest.mark.parametrize(
    ("held", "frozen", "given", "after", "expected"),
    [
        ("trunk", "freeze(trunk)", "trunk", "pass", True),
        ("trunk", "trunk.requires_grad_(False)", "trunk", "pass", True),
        ("trunk", "pass", "trunk", "pass", False),
        ("trunk", "freeze(trunk)", "trunk", "model.trunk.eval()", False),
        ("Trunk()", "freeze(trunk)", "trunk", "pass", False),
        ("trunk", "freeze(trunk)", "Trunk()", "pass", False),
    ],
)
def test_a_trunk_that_is_frozen_before_it_is_given(held, frozen, given, after, expected):
    code = PROBE.format(held=held, frozen=frozen, given=given, after=after)
    assert ("drifting norms" in kinds(code)) is expected


REVERSED = """PAD, BOS = 0, 1
class Rows:
    @staticmethod
    def collate(batch):
        sources, targets = zip(*batch)
        lengths = torch.tensor([len(s) for s in sources])
        return pad_sequence(sources), lengths, pad_sequence(targets, padding_value={pad})
class Net(nn.Module):
    def forward(self, x, lengths, y):
        return self.out(self.rnn(pack_padded_sequence(x, lengths), y))
def loss_of(scores, y):
    return F.cross_entropy(scores.reshape(-1, 9), {target}{more})
def step(model, batch):
    x, lengths, y = batch
    return model(x, lengths, y[:, :-1]), y[:, 1:]
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Rows(), 32, collate_fn=Rows.collate):
    loss = {loss}
"""


@pytest.mark.parametrize(
    ("pad", "target", "more", "loss", "expected"),
    [
        ("PAD", "y.reshape(-1)", "", "loss_of(*step(model, batch))", True),
        ("PAD", "y.flatten()", ", ignore_index=3", "loss_of(*step(model, batch))", True),
        ("PAD", "y.reshape(-1)", ", ignore_index=PAD", "loss_of(*step(model, batch))", False),
        ("-100", "y.reshape(-1)", "", "loss_of(*step(model, batch))", False),
        ("PAD", "pack_padded_sequence(y, n).data", "", "loss_of(*step(model, batch))", False),
        ("PAD", "y.reshape(-1)", "", "loss_of(*step(model, batch)) + loss_of(*other)", False),
    ],
)
def test_targets_that_a_spread_call_hands_over(pad, target, more, loss, expected):
    code = REVERSED.format(pad=pad, target=target, more=more, loss=loss) + TURN
    assert ("padded target" in kinds(code)) is expected


STORIES = """from transformers import AutoModelForCausalLM, AutoTokenizer
class Stories(Dataset):
    def __init__(self, rows, tokenizer):
        self.rows, self.tokenizer = rows, tokenizer
    def __getitem__(self, i):
        found = self.tokenizer(self.rows[i], {padding}, return_tensors="pt")
        ids = found["input_ids"].squeeze(0)
        labels = {copied}
        {more}
        return {{"input_ids": ids, "labels": labels}}
tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2")
opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
for batch in DataLoader(Stories(rows, tokenizer), 8, shuffle=True):
    loss = model(**batch).loss
"""
BATCHES = """from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("gpt2")
def collate(rows):
    batch = tokenizer([r["text"] for r in rows], padding=True, return_tensors="pt")
    batch["labels"] = batch["input_ids"].clone()
    return batch
for batch in DataLoader(rows, 8, collate_fn=collate):
    loss = model(**batch).loss
"""
FULL = "padding='max_length', max_length=64"


@pytest.mark.parametrize(
    ("padding", "copied", "more", "expected"),
    [
        (FULL, "ids.clone()", "pass", True),
        (FULL, "found.input_ids.squeeze(0).clone()", "pass", True),
        ("truncation=True", "ids.clone()", "pass", False),
        (FULL, "ids.clone()", "labels[ids == 0] = -100", False),
        (FULL, "ids.clone()", "labels[ids == 0] = IGNORED", False),
        ("padding=True", "ids.clone()", "pass", False),
        (FULL, "found['attention_mask'].clone()", "pass", False),
    ],
)
def test_labels_that_are_a_copy_of_padded_input(padding, copied, more, expected):
    code = STORIES.format(padding=padding, copied=copied, more=more) + TURN
    assert ("padded labels" in kinds(code)) is expected


def test_labels_that_a_batch_copies():
    assert "padded labels" in kinds(BATCHES + TURN)


@pytest.mark.parametrize(
    ("old", "new"),
    [("AutoModelForCausalLM", "AutoModel"), ("padding=True", "padding=False"), ('["labels"]', '["kept"]')],
)
def test_near_miss_of_labels_that_a_batch_copies(old, new):
    assert "padded labels" not in kinds(BATCHES.replace(old, new) + TURN)
