"""Which setting a loop tells as its learning rate."""

from __future__ import annotations

import linecache

import pytest
import torch
from watching import seen

from flatline.events import RateMisplaced
from flatline.sensors.told_rates import constant_told

START = 'opt = torch.optim.SGD(net.parameters(), lr=cfg["lr"])\nfor epoch in range(9):\n'


@pytest.fixture
def told(tmp_path):
    def find(text):
        file = tmp_path / "train.py"
        file.write_text(text)
        linecache.checkcache()
        constant_told.cache_clear()
        line = next(at for at, each in enumerate(text.splitlines(), 1) if "sched.step()" in each)
        found = constant_told(str(file), line)
        return found and (found.text, found.where.line)

    return find


@pytest.mark.parametrize(
    "line",
    [
        'print(f"epoch {epoch} lr={cfg["lr"]:.3g}")'.replace('cfg["lr"]', "cfg['lr']"),
        'print("lr", cfg["lr"])',
        'rows.append({"loss": loss, "lr": cfg["lr"]})',
        'writer.add_scalar("train/lr", cfg["lr"], epoch)',
        'wandb.log({"train/learning_rate": cfg["lr"]})',
    ],
)
def test_a_setting(told, line):
    assert told(f"{START}    train()\n    sched.step()\n    {line}\n") == ("cfg['lr']", 5)


def test_names_and_attributes(told):
    assert told('LR = 1\nopt = torch.optim.SGD(p, LR)\nwhile go:\n    sched.step()\n    print("lr:", LR)') == ("LR", 5)
    built = "class T:\n    def build(self):\n        self.o = Adam(p, lr=self.lr)\n    def fit(self):\n"
    assert told(built + '        for e in x:\n            sched.step()\n            print("lr=", self.lr)')[1] == 7


@pytest.mark.parametrize(
    "text",
    [
        START + '    sched.step()\n    print("lr", opt.param_groups[0]["lr"])',
        START + '    sched.step()\n    print("base_lr", cfg["lr"])',
        START + '    sched.step()\n    torch.save({"lr": cfg["lr"]}, file)',
        START + '    sched.step()\n    if epoch == 0:\n        print("lr", cfg["lr"])',
        START + '    sched.step()\n    opt.add_param_group({"params": more, "lr": cfg["lr"]})',
        START + '    sched.step()\n    cfg["lr"] *= 0.5\n    print("lr", cfg["lr"])',
        START + '    sched.step()\nprint("lr", cfg["lr"])',
        'for lr in rates:\n    o = SGD(p, lr=lr)\n    for e in range(3):\n        sched.step()\n    print("lr", lr)',
        'def make(lr):\n    return SGD(p, lr=lr)\ndef fit(lr):\n    for e in x:\n        sched.step()\n        print("lr", lr)',
        "sched.step()",
    ],
)
def test_no_constant_or_none_of_its_business(told, text):
    assert told(text) is None


def trained(write, kind=torch.optim.SGD, steps=60):
    def loop():
        model = torch.nn.Linear(3, 1)
        optimizer = kind(model.parameters(), lr=0.1)
        for step in range(steps):
            write(optimizer.param_groups[0], 0.1 * (1 - step / steps))
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()

    return loop


class Own(torch.optim.SGD):
    """Reads what it likes."""


def test_a_rate_under_a_key_that_nobody_reads():
    (event,) = seen(trained(lambda group, rate: group.update(learning_rate=rate)), RateMisplaced)
    assert (event.key, event.first, event.lr) == ("learning_rate", 0.1, 0.1)
    assert event.value < 0.09


@pytest.mark.parametrize(
    "write",
    [
        lambda group, rate: group.update(lr=rate),
        lambda group, rate: group.update(lr=rate, learning_rate=rate),
        lambda group, rate: group.update(learning_rate=0.1),
        lambda group, rate: group.update(learning_rate=7 * rate),
        lambda group, rate: group.update(lr_scale=rate),
    ],
)
def test_near_miss_keys(write):
    assert seen(trained(write), RateMisplaced) == []


def test_near_miss_an_optimizer_of_the_users_own():
    assert seen(trained(lambda group, rate: group.update(learning_rate=rate), Own), RateMisplaced) == []
