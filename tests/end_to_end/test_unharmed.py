"""The run is never harmed: weights, losses and random states are those of a run without flatline, bit for bit.

Every style below is a small training script that prints digests of what it ends with. All of them run in one process
without flatline, then in pairs as ``flatline run main.py STYLE STYLE`` and all together as ``flatline run main.py …``.
What they print must be the same, byte for byte. A pair that left a note or a finding is run again style by style.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
SECONDS = 200
AT_ONCE = 2  # processes
SHARE = 2  # styles in a process: nearly all of its time is the import of torch
STATUS = 7  # that main.py ends with

COMMON = """
import copy, functools, hashlib, io, math, os, pickle, random, sys, threading, time, warnings
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def parts(value):
    if isinstance(value, (nn.Module, torch.optim.Optimizer)):
        value = value.state_dict()
    if isinstance(value, torch.Tensor):
        value = value.detach()
        value = value.coalesce().to_dense() if value.is_sparse else value
        value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        yield repr((tuple(value.shape), value.dtype)).encode()
        yield value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        for key in value:
            yield str(key).encode()
            yield from parts(value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from parts(item)
    else:
        yield repr(value).encode()


def sha(value):
    digest = hashlib.sha256()
    for part in parts(value):
        digest.update(part)
    return digest.hexdigest()[:16]


def begin():
    random.seed(11), np.random.seed(12), torch.manual_seed(13)
    torch.set_grad_enabled(True)


def done(name, losses, *things):
    print(name, "weights", sha(things), "losses", len(losses), sha(losses), "random", sha(torch.get_rng_state()),
          sha(list(random.getstate())), sha([a.tolist() if hasattr(a, "tolist") else a for a in np.random.get_state()]))


def mlp(*, inner=16, out=3):
    return nn.Sequential(nn.Linear(8, inner), nn.ReLU(), nn.Linear(inner, inner), nn.Tanh(), nn.Linear(inner, out))


def batches(count=12, size=16):
    for _ in range(count):
        x = torch.randn(size, 8)
        yield x, x[:, :3].argmax(1)


def adam(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, **options)


def fit(model, optimizer, count=12, losses=None):
    losses = [] if losses is None else losses
    for x, y in batches(count):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
"""

MAIN = """
import importlib, sys, traceback
import common

print("main", [__name__, __file__, __package__, __spec__, __doc__, sys.argv[0], sys.path[0], sys.flags.optimize])
for name in sys.argv[1:]:
    common.begin()
    try:
        importlib.import_module(f"style_{name}")
    except BaseException as error:
        traceback.print_exc()
        print(name, "raised", repr(error))
    sys.modules.pop(f"style_{name}", None)
sys.exit(7)
"""

STYLES = """
# --- plain
model = mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
done("plain", fit(model, optimizer, 40), model, optimizer)

# --- by_hand
from torch.utils.data import DataLoader, TensorDataset
model, losses = nn.Sequential(mlp(), nn.BatchNorm1d(3), nn.Dropout(0.1)), []
data = torch.randn(160, 8)
for epoch in range(4):
    model.train()
    for x, y in DataLoader(TensorDataset(data, data[:, :3].argmax(1)), 16, shuffle=True):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses += [loss.item(), nn.utils.clip_grad_norm_(model.parameters(), 1.0)]
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad.zero_()
    model.eval()
    with torch.no_grad():
        losses.append(model(data))
done("by_hand", losses, model)

# --- by_hand_and_data
model, losses = mlp(), []
for change in (lambda p: p.data.sub_(p.grad * 0.1), lambda p: setattr(p, "data", p.data - 0.1 * p.grad)):
    for x, y in batches(20):
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        losses.append(loss.item())
        for p in model.parameters():
            change(p)
optimizer = adam(model)
fit(model, optimizer, 12, losses)
done("by_hand_and_data", losses, model, optimizer)

# --- accumulation
model, losses = mlp(), []
optimizer = adam(model)
for at, (x, y) in enumerate(batches(40)):
    loss = F.cross_entropy(model(x), y) / 4
    loss.backward()
    losses.append(loss.item())
    if at % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
done("accumulation", losses, model, optimizer)

# --- gan
generator, critic, losses = mlp(out=8), mlp(out=1), []
first, second = adam(generator, betas=(0.5, 0.9)), adam(critic, betas=(0.5, 0.9))
for x, _ in batches(10):
    for _ in range(2):
        fake = generator(torch.randn(16, 8)).detach()
        second.zero_grad()
        middle = (x + torch.rand(16, 1) * (fake - x)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(middle).sum(), middle, create_graph=True)
        loss = critic(fake).mean() - critic(x).mean() + 10 * (slope.norm(dim=1) - 1).pow(2).mean()
        loss.backward()
        second.step()
        losses.append(loss.item())
    first.zero_grad()
    loss = -critic(generator(torch.randn(16, 8))).mean()
    loss.backward()
    first.step()
    losses.append(loss.item())
done("gan", losses, generator, critic, first, second)

# --- gradients_asked_for
model, losses = mlp(), []
optimizer, weights = adam(model), list(model.parameters())
for x, y in batches(40):
    loss = F.cross_entropy(model(x), y)
    for p, g in zip(weights, torch.autograd.grad(loss, weights)):
        p.grad = g
    optimizer.step()
    losses.append(loss.item())
other = mlp()
for x, y in batches(40):
    loss = F.cross_entropy(other(x), y)
    with torch.no_grad():
        for p, g in zip(other.parameters(), torch.autograd.grad(loss, list(other.parameters()))):
            p -= 0.1 * g
    losses.append(loss.item())
done("gradients_asked_for", losses, model, other, optimizer)

# --- closure
model, losses = mlp(), []
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
x = torch.randn(64, 8)
y = x[:, :3].argmax(1)
def closure():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    losses.append(loss.item())
    return loss
for _ in range(8):
    losses.append(optimizer.step(closure).item())
done("closure", losses, model, optimizer)

# --- autocast
model, losses = mlp(inner=32), []
optimizer = adam(model)
for x, y in batches():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
        loss = F.cross_entropy(out, y)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    losses += [loss.item(), str(out.dtype)]
done("autocast", losses, model, optimizer)

# --- grad_scaler
model, losses = mlp(inner=32), []
optimizer, scaler = adam(model), torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
for x, y in batches(16):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    losses += [loss.item(), norm, scaler.get_scale()]
done("grad_scaler", losses, model, optimizer, scaler.state_dict())

# --- schedulers
from torch.optim import lr_scheduler as schedules
class Half(schedules.LRScheduler):
    def get_lr(self):
        return [base * 0.5**self.last_epoch for base in self.base_lrs]
model, losses = mlp(), []
for build in (
    lambda o: schedules.OneCycleLR(o, max_lr=0.05, total_steps=12),
    lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o), schedules.CosineAnnealingLR(o, 9)], milestones=[3]),
    lambda o: schedules.ChainedScheduler([schedules.ConstantLR(o), schedules.ExponentialLR(o, 0.9)]),
    lambda o: schedules.LambdaLR(o, lambda step: 1 / (1 + step)),
    Half,
):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = build(optimizer)
    for x, y in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses += [loss.item(), *scheduler.get_last_lr()]
    losses.append(sorted(scheduler.state_dict()))
    pickle.loads(pickle.dumps(optimizer.state_dict()))
plateau = schedules.ReduceLROnPlateau(optimizer, patience=1)
for metric in (3.0, 3.0, 3.0, 3.0):
    plateau.step(metric)
done("schedulers", losses, model, optimizer, plateau.state_dict())

# --- validation
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(4, 3)
    def forward(self, x):
        return self.head(self.drop(self.act(self.norm(self.conv(x))).mean((2, 3))))
model, losses = Net(), []
optimizer = adam(model)
for epoch in range(4):
    model.train()
    for _ in range(5):
        x = torch.randn(8, 1, 8, 8)
        loss = F.cross_entropy(model(x), (x.mean((1, 2, 3)) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses.append(model(torch.randn(8, 1, 8, 8)))
    with torch.inference_mode():
        losses.append(model(torch.randn(8, 1, 8, 8)).clone())
done("validation", losses, model, optimizer)

# --- lstm
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 12, num_layers=2, dropout=0.2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 30)
    def forward(self, x, state=None):
        out, state = self.lstm(self.words(x), state)
        return self.head(out), state
model, losses, state = Tagger(), [], None
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for at in range(12):
    x = torch.randint(1, 30, (4, 10))
    out, state = model(x[:, :-1], state)
    state = tuple(s.detach() for s in state)
    loss = F.cross_entropy(out.transpose(1, 2), x[:, 1:])
    model.zero_grad()
    loss.backward()
    losses += [loss.item(), clip_grad_norm_(model.parameters(), 0.25)]
    clip_grad_value_(model.parameters(), 0.1)
    optimizer.step()
packed = nn.utils.rnn.pack_sequence([torch.randn(5, 8), torch.randn(3, 8)])
losses.append(model.lstm(packed)[0].data)
done("lstm", losses, model, optimizer)

# --- vae
class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(8, 8), nn.Linear(4, 8)
    def forward(self, x):
        mean, spread = self.down(x).chunk(2, 1)
        return self.up(mean + torch.randn_like(mean) * (0.5 * spread).exp()), mean, spread
model, losses = Vae(), []
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for x, _ in batches():
    back, mean, spread = model(x)
    loss = F.mse_loss(back, x, reduction="sum") - 0.5 * (1 + spread - mean**2 - spread.exp()).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
done("vae", losses, model, optimizer, model.up(torch.randn(3, 4)))

# --- reinforce
policy, losses = mlp(out=2), []
optimizer = adam(policy)
for _ in range(12):
    position, kept, rewards = torch.zeros(8), [], []
    for _ in range(6):
        choice = torch.distributions.Categorical(logits=policy(position))
        action = choice.sample()
        kept.append(choice.log_prob(action))
        position = position + (action.item() - 0.5) + 0.1 * torch.tensor(np.random.randn(8), dtype=torch.float32)
        rewards.append(-position.abs().mean().item() + random.random() * 0.01)
    optimizer.zero_grad()
    loss = -(torch.stack(kept) * (torch.tensor(rewards).flip(0).cumsum(0).flip(0))).sum()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
done("reinforce", losses, policy, optimizer)

# --- workers
class Noisy(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, at):
        x = torch.randn(8) + at * 0.01 + np.random.rand() + random.random()
        return x.float(), int(at % 3)
def seed(worker):
    np.random.seed(torch.initial_seed() % 2**32), random.seed(worker)
model, losses = mlp(), []
optimizer = adam(model)
for keep in (False, True):
    loader = DataLoader(Noisy(), 8, shuffle=True, num_workers=2, worker_init_fn=seed, persistent_workers=keep)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses += [loss.item(), x]
del loader
done("workers", losses, model, optimizer)

# --- shuffled
data = TensorDataset(torch.randn(50, 8), torch.randint(0, 3, (50,)))
train, rest = torch.utils.data.random_split(data, [40, 10])
weights = torch.utils.data.WeightedRandomSampler([1.0] * 30 + [3.0] * 10, 40)
loaders = [DataLoader(train, 8, shuffle=True), DataLoader(train, 8, sampler=weights), DataLoader(rest, 5)]
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for _ in range(20):
            yield {"x": torch.randn(8), "pair": (torch.tensor(1), random.random())}
model, losses = mlp(), []
optimizer = adam(model)
for epoch in range(3):
    for loader in loaders[:2]:
        for at, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if at == 3:
                break
    with torch.no_grad():
        losses += [model(x).sum().item() for x, _ in loaders[2]]
iterator = iter(loaders[0])
losses += [next(iterator)[1], len(iterator), sorted(batch["pair"][1][0].item() for batch in DataLoader(Stream(), 4))]
done("shuffled", losses, model, optimizer)

# --- collated
rows = [(torch.randn(random.randint(2, 9), 8), random.randrange(3)) for _ in range(90)]
class Lines(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(rows)
class Padded:
    def __init__(self, longest_first):
        self.longest_first = longest_first
    def collate(self, items):
        items = sorted(items, key=lambda item: -len(item[0])) if self.longest_first else items
        return torch.stack([x.sum(0) for x, _ in items]), torch.tensor([y for _, y in items]), torch.rand(1)
model, losses = mlp(), []
optimizer = adam(model)
for epoch in range(2):
    for longest_first in (True, False):
        for data in (rows, Lines()):
            shuffle = data is rows
            for x, y, noise in DataLoader(data, 5, shuffle=shuffle, collate_fn=Padded(longest_first).collate):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x) + noise, y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    for x, y in DataLoader(rows, 1, collate_fn=lambda items: items[0]):
        losses.append(x[0, 0].item() + y)
done("collated", losses, model, optimizer)

# --- checkpoint_reentrant
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
class Deep(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant, self.first, self.head = reentrant, nn.Linear(8, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)) for _ in range(3)
        )
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)
model = Deep(True)
optimizer = adam(model)
done("checkpoint_reentrant", fit(model, optimizer), model, optimizer)

# --- checkpoint_not_reentrant
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
ran = []
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)) for _ in range(3))
        )
        for block in self.blocks:
            block.register_forward_pre_hook(lambda module, args: ran.append(module.training))
    def forward(self, x):
        x = self.first(x)
        x = checkpoint(self.blocks[0], x, use_reentrant=False)
        return self.head(checkpoint_sequential(self.blocks[1:], 2, x, use_reentrant=False))
model = Deep()
optimizer = adam(model)
done("checkpoint_not_reentrant", fit(model, optimizer), model, optimizer, len(ran))

# --- saved_tensor_hooks
moves, losses = [], []
def pack(tensor):
    moves.append("pack")
    return tensor.numpy().copy() if not tensor.requires_grad and tensor.is_floating_point() else tensor
def unpack(kept):
    moves.append("unpack")
    return torch.from_numpy(kept) if isinstance(kept, np.ndarray) else kept
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = adam(model)
for x, y in batches():
    optimizer.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.autograd.graph.save_on_cpu():
    loss = F.cross_entropy(model(x), y)
loss.backward()
done("saved_tensor_hooks", losses, model, moves)

# --- parametrized
from torch.nn.utils import parametrizations, parametrize
class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).T
model = nn.Sequential(
    parametrizations.weight_norm(nn.Linear(8, 16)), nn.ReLU(), nn.utils.spectral_norm(nn.Linear(16, 16)), nn.Tanh(),
    parametrizations.spectral_norm(nn.Linear(16, 16)), parametrizations.orthogonal(nn.Linear(16, 16)),
    nn.Linear(16, 16), nn.Linear(16, 3),
)
parametrize.register_parametrization(model[6], "weight", Symmetric())
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    nn.utils.weight_norm(model[7])
optimizer = adam(model)
losses = fit(model, optimizer)
parametrize.remove_parametrizations(model[0], "weight")
model.eval()
done("parametrized", [*losses, model(torch.ones(2, 8))], model)

# --- tied
class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight
        self.layer = nn.Linear(8, 8)
        self.same = self.layer
    def forward(self, x):
        return self.head(self.same(self.layer(self.words(x)).tanh()))
model, losses = Language(), []
optimizer = adam(model)
for _ in range(12):
    x = torch.randint(0, 20, (4, 7))
    loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
done("tied", losses, model, optimizer)

# --- custom_function
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.kept = x * 2
        return x**3
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2
class Straight(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sign()
    @staticmethod
    def setup_context(ctx, inputs, output):
        pass
    @staticmethod
    def backward(ctx, grad):
        return grad
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)
    def forward(self, x):
        return self.b(Straight.apply(Cube.apply(self.a(x) * 0.3) + 0.1))
model = Net()
optimizer = adam(model)
done("custom_function", fit(model, optimizer), model, optimizer)

# --- maml
from torch.func import functional_call
model, losses = mlp(), []
optimizer = adam(model)
for x, y in batches():
    weights = dict(model.named_parameters())
    for _ in range(2):
        inner = F.cross_entropy(functional_call(model, weights, (x[:8],)), y[:8])
        slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        weights = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), slopes)}
    loss = F.cross_entropy(functional_call(model, weights, (x[8:],)), y[8:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
done("maml", losses, model, optimizer)

# --- attention
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.look = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)
    def forward(self, x, mask):
        x = self.body(x, src_key_padding_mask=mask)
        return self.head(self.look(x, x, x, key_padding_mask=mask, need_weights=False)[0].mean(1))
model, losses = Reader(), []
optimizer = adam(model)
mask = torch.zeros(4, 6, dtype=torch.bool)
mask[:, 4:] = True
for at in range(14):
    x = torch.randn(4, 6, 8)
    loss = F.cross_entropy(model.train()(x, mask), x.mean(1)[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        losses += [loss.item(), model.eval()(x, mask)]  # torch's fast path, which some hooks would switch off
done("attention", losses, model, optimizer)

# --- averaged
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
model, losses = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)), []
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
swa = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
rates = SWALR(optimizer, swa_lr=0.02, anneal_epochs=4)
for x, y in batches():
    fit(model, optimizer, 1, losses)
    ema.update_parameters(model)
    swa.update_parameters(model)
    rates.step()
    with torch.no_grad():
        losses.append(ema.eval()(x))
update_bn([x for x, _ in batches(4)], swa)
done("averaged", losses, model, ema, swa, optimizer)

# --- sparse
words, losses = nn.Embedding(50, 8, sparse=True), []
bag, head = nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 3)
first = torch.optim.SparseAdam([*words.parameters(), *bag.parameters()], lr=1e-2)
second = adam(head)
for _ in range(12):
    x = torch.randint(0, 50, (6, 4))
    loss = F.cross_entropy(head(words(x).mean(1) + bag(x)), x[:, 0] % 3)
    first.zero_grad(), second.zero_grad()
    loss.backward()
    first.step(), second.step()
    losses.append(loss.item())
done("sparse", losses, words, bag, head, first, second)

# --- complex
class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))
        self.short = nn.Parameter(torch.randn(8, dtype=torch.bfloat16))
        self.empty = nn.Parameter(torch.empty(0))
        self.number = nn.Parameter(torch.tensor(1.5))
    def forward(self, x):
        return (torch.fft.fft(x) @ self.w).abs() * self.short.float() * self.number + self.empty.sum()
model, losses = Waves(), []
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for x, _ in batches():
    loss = F.l1_loss(model(x), x.abs())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
done("complex", losses, model, optimizer)

# --- per_sample_gradients
from torch.func import functional_call, grad, jacrev, jvp, vmap
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 3)
    def forward(self, x):
        return self.b(self.drop(self.a(x).tanh()))
model, losses = Net(), []
optimizer = adam(model)
def cost(weights, x, y):
    return F.cross_entropy(functional_call(model, weights, (x[None],)), y[None])
for x, y in batches():
    weights = {name: p.detach() for name, p in model.named_parameters()}
    slopes = vmap(grad(cost), in_dims=(None, 0, 0), randomness="different")(weights, x, y)
    optimizer.zero_grad()
    for name, p in model.named_parameters():
        each = slopes[name].flatten(1)
        p.grad = (each / each.norm(dim=1, keepdim=True).clamp(min=1)).mean(0).view_as(p) + torch.randn_like(p) * 0.01
    optimizer.step()
    losses.append(F.cross_entropy(model(x), y).item())
model.eval()
losses += [jacrev(model)(x[0]), jvp(model, (x,), (torch.ones_like(x),))[1]]
with torch.autograd.forward_ad.dual_level():
    losses.append(torch.autograd.forward_ad.unpack_dual(model(torch.autograd.forward_ad.make_dual(x, x))).tangent)
done("per_sample_gradients", losses, model, optimizer)

# --- scripted
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    scripted, traced = torch.jit.script(mlp()), torch.jit.trace(mlp(), torch.randn(2, 8))
model = nn.Sequential(scripted, nn.ReLU(), nn.Linear(3, 8), traced)
optimizer = adam(model)
losses = fit(model, optimizer)
kept = io.BytesIO()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.jit.save(torch.jit.script(mlp()), kept)
done("scripted", [*losses, str(traced.graph).count("aten::"), str(scripted.code)], model, optimizer)

# --- saved
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)
    def forward(self, x):
        return self.b(self.norm(self.a(x)).relu())
model = Net()
optimizer = adam(model)
losses = fit(model, optimizer, 3)
for _ in range(3):
    whole = io.BytesIO()
    torch.save({"model": model, "optimizer": optimizer, "weights": model.state_dict()}, whole)
    sizes = [len(pickle.dumps(thing)) for thing in (model, optimizer, next(DataLoader([1]).__iter__()))]
    twin = copy.deepcopy(model)
    back = torch.load(io.BytesIO(whole.getvalue()), weights_only=False)
    losses += [len(whole.getvalue()) // 64, *sizes, sorted(vars(model)), sorted(vars(optimizer)), sorted(vars(twin.a))]
    fit(back["model"], back["optimizer"], 4, losses)
    twin.load_state_dict(back["weights"])
    other = adam(twin)
    other.load_state_dict(optimizer.state_dict())
    fit(twin, other, 4, losses)
    fit(model, optimizer, 4, losses)
done("saved", losses, model, optimizer, back["model"], twin, copy.deepcopy(optimizer))

# --- users_hooks
seen, losses = [], []
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
model[0].register_forward_hook(lambda module, args, out: out * 1.01)
model[2].register_forward_pre_hook(lambda module, args: (args[0] + 0.01,))
model[1].register_full_backward_hook(lambda module, into, out: (into[0] * 0.9,))
model[2].weight.register_hook(lambda grad: grad * 0.5)
model[2].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm().item()))
optimizer = adam(model)
optimizer.register_step_pre_hook(lambda *args: seen.append("before"))
optimizer.register_step_post_hook(lambda *args: seen.append("after"))
fit(model, optimizer, losses=losses)
done("users_hooks", losses, model, optimizer, seen)

# --- optimizer_in_backward
model, losses = mlp(), []
each = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}
def update(p):
    each[p].step()
    each[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(update)
for x, y in batches():
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    losses.append(loss.item())
done("optimizer_in_backward", losses, model)

# --- own_optimizer
class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("average", torch.zeros_like(p))
                    p.sub_(average.lerp(p.grad, 0.1).sign() * group["lr"])
                    average.lerp_(p.grad, 0.01)
losses, kept = [], []
for build in (Lion, functools.partial(torch.optim.AdamW, fused=True), functools.partial(torch.optim.SGD, foreach=True),
              functools.partial(torch.optim.Adam, foreach=False, amsgrad=True), torch.optim.Adagrad):
    model = mlp()
    optimizer = build([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 1e-2}], lr=1e-3)
    optimizer.add_param_group({"params": list(model[4].parameters())})
    fit(model, optimizer, 10, losses)
    kept += [model, optimizer.state_dict()]
with torch.no_grad():
    for p in model.parameters():
        p -= 0.01 * p.grad
done("own_optimizer", losses, kept, list(model.parameters()))

# --- retained
model, losses = mlp(), []
optimizer = adam(model)
for x, y in batches():
    out = model(x)
    loss, other = F.cross_entropy(out, y), out.pow(2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True, inputs=list(model[4].parameters()))
    torch.autograd.backward([other, loss], [torch.tensor(0.5), torch.tensor(1.0)])
    out = model(x)
    out.backward(torch.full_like(out, 0.01))
    optimizer.step()
    losses += [loss.item(), other.item()]
done("retained", losses, model, optimizer)

# --- traced_tensors
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
model, losses = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)), []
x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
optimizer = adam(model)
with FlopCounterMode(display=False) as counter:
    F.cross_entropy(model(x), y).backward()
ghost = copy.deepcopy(model).to("meta")
losses += [counter.get_total_flops(), ghost(x.to("meta")).shape]
F.cross_entropy(ghost(x.to("meta")), y.to("meta")).backward()
with FakeTensorMode(allow_non_fake_inputs=True) as mode:
    losses.append(F.cross_entropy(model(mode.from_tensor(x)), mode.from_tensor(y)).shape)
graph = torch.fx.experimental.proxy_tensor.make_fx(model)(x) if hasattr(torch.fx, "experimental") else None
losses += [len(list(torch.fx.symbolic_trace(model).graph.nodes)), str(graph.code) if graph is not None else ""]
losses.append(len(list(torch.export.export(model, (x,)).graph.nodes)))
for _ in range(6):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
done("traced_tensors", losses, model, optimizer)

# --- watched_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
class Ops(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
model, losses = mlp(), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Ops():
    fit(model, optimizer, 20, losses)
with torch.overrides.BaseTorchFunctionMode():
    fit(model, optimizer, 5, losses)
done("watched_dispatch", losses, model)

# --- subclassed
class Marked(torch.Tensor):
    calls = 0
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Marked.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)
    def forward(self, x):
        return {"logits": self.b(self.a(x).relu()), "extra": None}
    def __len__(self):
        return 0
    def __eq__(self, other):
        return type(self) is type(other)
    __hash__ = nn.Module.__hash__
model, losses = Net(), []
optimizer = adam(model)
for x, y in batches():
    out = model(x.as_subclass(Marked))["logits"]
    loss = F.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses += [loss.item(), type(loss).__name__]
done("subclassed", losses, model, optimizer)

# --- lazy
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    model = nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))
optimizer = adam(model)
done("lazy", fit(model, optimizer), model, optimizer)

# --- anomaly
torch.use_deterministic_algorithms(True)
torch.set_default_dtype(torch.float64)
model, losses = mlp(), []
optimizer = adam(model)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    with torch.autograd.set_detect_anomaly(True):
        fit(model, optimizer, 6, losses)
with torch.profiler.profile() as profile:
    fit(model, optimizer, 2, losses)
torch.set_default_dtype(torch.float32)
torch.use_deterministic_algorithms(False)
done("anomaly", losses, model, optimizer)

# --- frozen
model, losses = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)), []
for p in model[:2].parameters():
    p.requires_grad_(False)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
model[1].eval()
fit(model, optimizer, 8, losses)
for p in model[0].parameters():
    p.requires_grad_(True)
optimizer.add_param_group({"params": model[0].parameters(), "lr": 1e-3})
fit(model, optimizer, 8, losses)
for _ in range(6):  # folds: a new model and a new optimizer each
    model = mlp()
    fit(model, torch.optim.SGD(model.parameters(), 0.1), 4, losses)
done("frozen", losses, model, optimizer)

# --- caught
model, losses = mlp(), []
optimizer = adam(model)
for x, y in batches():
    for bad in (lambda: F.cross_entropy(model(x[:, :5]), y), lambda: model(x).detach().sum().backward(),
                lambda: F.cross_entropy(model(x), y + 9), lambda: loss.backward()):
        try:
            bad()
        except (RuntimeError, IndexError) as error:
            losses.append(str(error).splitlines()[0])
        except NameError:
            pass
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
done("caught", losses, model, optimizer)

# --- threads
models = [mlp(), mlp()]
results = [[], []]
def work(at):
    random_source = torch.Generator().manual_seed(at)
    optimizer = torch.optim.SGD(models[at].parameters(), lr=0.1)
    for _ in range(15):
        while len(results[1 - at]) < len(results[at]):
            time.sleep(0)  # side by side on any machine: neither ends before the other has begun
        x = torch.randn(16, 8, generator=random_source)
        optimizer.zero_grad()
        loss = F.cross_entropy(models[at](x), x[:, :3].argmax(1))
        loss.backward()
        optimizer.step()
        results[at].append(loss.item())
started = [threading.Thread(target=work, args=(at,)) for at in range(2)]
[thread.start() for thread in started]
[thread.join() for thread in started]
done("threads", results, *models)
"""

TEXTS = dict(re.findall(r"^# --- (\w+)\n(.*?)(?=^# --- |\Z)", STYLES, re.M | re.S))


@dataclass(frozen=True)
class Ended:
    """What a process left behind."""

    status: int
    out: str
    errors: str
    report: dict[str, list]

    def line(self, style: str) -> str:
        return "\n".join(line for line in self.out.splitlines() if line.split(" ", 1)[0] == style)


class Runs:
    """Processes started before anyone asks for their results, a few at a time."""

    def __init__(self, folder: Path, styles: list[str]) -> None:
        self.folder, self.styles = folder, styles
        self.pool = ThreadPoolExecutor(AT_ONCE)
        (folder / "common.py").write_text(COMMON)
        (folder / "main.py").write_text(MAIN)
        for style in styles:
            (folder / f"style_{style}.py").write_text("from common import *\n" + TEXTS[style])
        self._plain = self.pool.submit(self.run, *styles)
        self._some = [self.pool.submit(self.watch, *pair) for pair in self._pairs()]
        self._together: Future[Ended] = self.pool.submit(self.watch, *styles)

    @cached_property
    def plain(self) -> Ended:
        ended = self._plain.result()
        broken = [style for style in self.styles if " weights " not in ended.line(style)]
        assert (broken, ended.status) == ([], STATUS), f"without flatline, too:\n{ended.errors[-3000:]}"
        return ended

    def _pairs(self) -> list[list[str]]:
        return [self.styles[at : at + SHARE] for at in range(0, len(self.styles), SHARE)]

    def some(self, style: str) -> Ended:
        return self._some[self.styles.index(style) // SHARE].result()

    def alone(self, style: str) -> Ended:
        """Its pair, when that is as clean as can be; else the style by itself, to tell whose fault it is."""
        pair = self.some(style)
        clean = pair.report and not pair.report["notes"] and not pair.report["findings"] and pair.status == STATUS
        return pair if clean else self._by_itself(style)

    @cache  # noqa: B019 - lives as long as the module's tests
    def _by_itself(self, style: str) -> Ended:
        return self.watch(style)

    @property
    def together(self) -> Ended:
        return self._together.result()

    def watch(self, *styles: str) -> Ended:
        report = self.folder / f"{len(styles)}_{styles[0]}.json"
        flatline = ("-m", "flatline", "run", "--format", "json", "--output", str(report))
        return self.run(*styles, under=flatline, report=report)

    def run(self, *styles: str, under: tuple[str, ...] = (), report: Path | None = None) -> Ended:
        settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
        command = [sys.executable, *under, "main.py", *styles]
        ended = subprocess.run(
            command, cwd=self.folder, env=settings, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        read = json.loads(report.read_text()) if report and report.exists() else {}
        return Ended(ended.returncode, ended.stdout, ended.stderr, read)


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    mine = [item for item in request.session.items if item.path == request.path]
    chosen = {item.callspec.params["style"] for item in mine if hasattr(item, "callspec")}
    everything = Runs(tmp_path_factory.mktemp("styles"), [style for style in TEXTS if style in chosen or not chosen])
    yield everything
    everything.pool.shutdown(cancel_futures=True)


def warnings_in(errors: str) -> list[str]:
    return re.findall(r"^\S*?(\w+\.py:\d+: \w*Warning.*)$", errors, re.M)


ALONE = "the watch was switched off: SeveralThreads: another thread began to train at the same time"


@pytest.mark.parametrize("style", TEXTS)
def test_ends_the_same(style, runs):
    watched = runs.some(style)
    assert watched.line(style) == runs.plain.line(style), watched.errors[-2000:]
    assert watched.status == STATUS


@pytest.mark.parametrize("style", TEXTS)
def test_no_sensor_breaks(style, runs):
    assert runs.alone(style).report["notes"] == ([ALONE] if style == "threads" else [])


@pytest.mark.parametrize("style", TEXTS)
def test_is_found_healthy(style, runs):
    assert [f"{f['code']} {f['message']}" for f in runs.alone(style).report["findings"]] == []


@pytest.mark.parametrize("style", TEXTS)
def test_ends_the_same_after_many_other_trainings(style, runs):
    assert runs.together.line(style) == runs.plain.line(style)


def test_many_trainings_in_one_process(runs):
    assert runs.together.out.splitlines()[1:] == runs.plain.out.splitlines()[1:]
    assert runs.together.status == STATUS
    assert runs.together.report["notes"] == [ALONE]  # by the last of them
    assert [f"{f['code']} {f['message']}" for f in runs.together.report["findings"]] == []


def test_the_script_is_started_as_by_python(runs):
    assert runs.together.line("main") == runs.plain.line("main")


def test_users_warnings_are_still_shown(runs):
    assert warnings_in(runs.plain.errors)
    assert warnings_in(runs.together.errors) == warnings_in(runs.plain.errors)
