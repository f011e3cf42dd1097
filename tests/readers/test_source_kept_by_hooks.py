"""Reading Python source: losses that hooks keep."""

from __future__ import annotations

from functools import partial

import pytest
from parsed import kinds_in

HEAD = """import torch, wandb
from collections import defaultdict, deque
from torch import nn
import torch.nn.functional as F
data = torch.utils.data.DataLoader(torch.load("data.pt"), 8)
"""
kinds = partial(kinds_in, HEAD)

HOOKS = """
class History:
    def __init__(self):
        self.losses = {start}
    def on_step(self, step, logs):
        {keep}
    def on_epoch(self):
        {end}
class Quiet:
    def on_step(self, step, logs):
        pass
    def on_epoch(self):
        pass
"""
SCRIPT = """
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
history, quiet = History(), Quiet()
for epoch in range(3):
    for step, (x, y) in enumerate(data):
        opt.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        logs = {logs}
        for hook in (history, quiet):
            hook.on_step(step, {given})
    for hook in (history, quiet):
        hook.on_epoch()
"""
TEMPLATE = """
class Trainer:
    def __init__(self, net, hooks):
        self.net, self.hooks = net, hooks
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
    def step(self, x, y):
        self.opt.zero_grad()
        loss = F.mse_loss(self.net(x), y)
        loss.backward()
        self.opt.step()
        return {{"loss": {returned}}}
    def fit(self, data):
        for step, (x, y) in enumerate(data):
            logs = self.step(x, y)
            {between}
            for hook in self.hooks:
                hook.on_step(step, logs)
Trainer(nn.Linear(4, 2), {hooks}).fit(data)
"""
EVERY = "self.losses.append(logs['loss'])"


TRAINER = partial(TEMPLATE.format, between="pass", hooks="[Quiet(), History()]")


def keeps(rest, *, start="[]", keep=EVERY, end="pass"):
    return "kept" in kinds(HOOKS.format(start=start, keep=keep, end=end) + rest)


@pytest.mark.parametrize(
    ("logs", "given", "keep", "expected"),
    [
        ("{'loss': loss}", "logs", EVERY, True),
        ("dict(loss=loss)", "logs", "self.losses.append(logs.get('loss'))", True),
        ("None", "{'loss': loss, 'step': step}", EVERY, True),
        ("None", "loss", "self.losses.append(logs)", True),
        ("{'loss': loss.item()}", "logs", EVERY, False),
        ("{'loss': loss.detach()}", "logs", EVERY, False),
        ("{'loss': loss}", "logs", "self.losses.append(logs['loss'].item())", False),
        ("{'loss': loss}", "logs", "self.losses.append(logs['step'])", False),
        ("{'loss': loss}", "other(logs)", EVERY, False),
    ],
)
def test_hooks_of_a_loop(logs, given, keep, expected):
    assert keeps(SCRIPT.format(logs=logs, given=given), keep=keep) is expected


def test_what_lets_go_again_keeps_nothing():
    assert not keeps(SCRIPT.format(logs="{'loss': loss}", given="logs"), start="deque(maxlen=50)")


@pytest.mark.parametrize("end", ["self.losses = []", "self.losses.clear()", "self.__init__()"])
def test_lists_that_are_emptied_after_each_epoch_keep_all_of_one(end):
    assert keeps(SCRIPT.format(logs="{'loss': loss}", given="logs"), end=end)


@pytest.mark.parametrize(
    ("returned", "hooks", "expected"),
    [
        ("loss", "[Quiet(), History()]", True),
        ("loss.item()", "[Quiet(), History()]", False),
        ("loss", "[Quiet()]", False),
        ("loss", "found()", False),
    ],
)
def test_hooks_of_a_trainer(returned, hooks, expected):
    assert keeps(TRAINER(returned=returned, hooks=hooks)) is expected


EACH = "for key, value in logs.items():\n            {}"


@pytest.mark.parametrize(
    ("start", "keep", "end", "returned", "expected"),
    [
        ("{}", "self.losses.setdefault(key, []).append(value)", "pass", "loss", True),
        ("defaultdict(list)", "self.losses[key].append(value)", "pass", "loss", True),
        ("defaultdict(list)", "self.losses[key].append(float(value))", "pass", "loss", False),
        ("defaultdict(list)", "self.losses[key].append(value)", "pass", "loss.item()", False),
        ("{}", "self.losses[key] = value", "pass", "loss", False),
    ],
)
def test_hooks_that_keep_each_value_of_a_table(start, keep, end, returned, expected):
    trainer = TRAINER(returned=returned, hooks="[Quiet(), History()]")
    assert keeps(trainer, start=start, keep=EACH.format(keep), end=end) is expected


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ("logs['lr'] = 0.1", True),
        ("logs.update(lr=0.1, epoch=step)", True),
        ("wandb.log(logs)", True),
        ("for key, value in logs.items(): writer.add_scalar(key, value.item(), step)", True),
        ("logs['loss'] = logs['loss'].item()", False),
        ("logs.update(loss=logs['loss'].item())", False),
        ("logs.update({k: v.item() for k, v in logs.items()})", False),
        ("for key, value in logs.items(): logs[key] = value.item()", False),
        ("for value in logs.values(): value.detach_()", False),
        ("logs['loss'].detach_()", False),
        ("logs.get('loss').detach_()", False),
        ("to_numbers(logs)", False),
        ("del logs['loss']", False),
    ],
)
def test_a_table_that_is_changed_before_the_hooks_get_it(between, expected):
    assert keeps(TRAINER(returned="loss", between=between)) is expected


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("print(value)", True),
        ("if step % 2: continue", True),
        ("value.detach_()", False),
        ("if torch.is_tensor(value): continue", False),
        ("logs[key] = 0.0", True),
    ],
)
def test_hooks_that_look_at_each_value_first(first, expected):
    keep = EACH.format(f"{first}\n            self.losses[key].append(value)")
    assert keeps(TRAINER(returned="loss"), start="defaultdict(list)", keep=keep) is expected


def test_another_hook_that_makes_numbers_of_them():
    numbers = "class Numbers(Quiet):\n    def on_step(self, step, logs):\n        logs['loss'] = logs['loss'].item()\n"
    assert not keeps(numbers + TRAINER(returned="loss", hooks="[Numbers(), History()]"))


RETURNED = """
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def step(x, y):
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    return {{"loss": loss}}
losses = []
for x, y in data:
    logs = step(x, y)
    {between}
    losses.append(logs["loss"])
"""


@pytest.mark.parametrize(
    ("between", "expected"),
    [("print(logs)", True), ("logs['loss'].detach_()", False), ("logs['loss'] = 0.0", False), ("cut(logs)", False)],
)
def test_a_table_that_a_function_returned(between, expected):
    assert ("kept" in kinds(RETURNED.format(between=between))) is expected
