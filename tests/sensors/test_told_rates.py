"""Which setting a loop tells as its learning rate."""

from __future__ import annotations

import linecache

import pytest
import torch
from watching import seen

from flatline.events import RateMisplaced
from flatline.sensors.told_rates import _written, constant_told

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


def trained(write, kind=torch.optim.SGD, steps=60, of_group=True):
    def loop():
        model = torch.nn.Linear(3, 1)
        optimizer = kind(model.parameters(), lr=0.1)
        for step in range(steps):
            write(optimizer.param_groups[0] if of_group else optimizer, 0.1 * (1 - step / steps))
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()

    return loop


class Own(torch.optim.SGD):
    """Reads what it likes."""


def test_a_rate_under_a_key_that_nobody_reads():
    (event,) = seen(trained(lambda group, rate: group.update(learning_rate=rate)), RateMisplaced)
    assert (event.place, event.first, event.lr) == ('group["learning_rate"]', 0.1, 0.1)
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


def both(optimizer, rate):
    optimizer.lr = rate
    for group in optimizer.param_groups:
        group["lr"] = rate


@pytest.mark.parametrize(
    ("write", "place"),
    [
        (lambda optimizer, rate: setattr(optimizer, "lr", rate), "optimizer.lr"),
        (lambda optimizer, rate: setattr(optimizer, "learning_rate", rate), "optimizer.learning_rate"),
        (lambda optimizer, rate: optimizer.defaults.update(lr=rate), 'optimizer.defaults["lr"]'),
    ],
)
def test_a_rate_of_the_optimizer_that_nobody_reads(write, place):
    (event,) = seen(trained(write, of_group=False), RateMisplaced)
    assert (event.place, event.first, event.lr) == (place, 0.1, 0.1)


def test_a_warm_up_of_the_defaults():
    (event,) = seen(
        trained(lambda optimizer, rate: optimizer.defaults.update(lr=9 - 30 * rate), of_group=False), RateMisplaced
    )
    assert (event.place, event.lr) == ('optimizer.defaults["lr"]', 0.1)
    assert event.first < event.value == event.highest


@pytest.mark.parametrize(
    "write",
    [
        both,
        lambda optimizer, rate: setattr(optimizer, "lr", 0.1),
        lambda optimizer, rate: setattr(optimizer, "lr", 30 * rate),
        lambda optimizer, rate: setattr(optimizer, "progress", rate),
        lambda optimizer, rate: optimizer.defaults.update(weight_decay=rate),
    ],
)
def test_near_miss_attributes(write):
    assert seen(trained(write, of_group=False), RateMisplaced) == []


def test_near_miss_an_attribute_of_the_users_own_optimizer():
    assert (
        seen(trained(lambda optimizer, rate: setattr(optimizer, "lr", rate), Own, of_group=False), RateMisplaced) == []
    )


def test_the_line_that_writes_it(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(
        'self.opt.lr = cfg.lr = 1\nfor step in range(9):\n    opt.defaults["lr"] = 2\n    group["lr"] = 3\n'
    )
    assert _written(str(file), "optimizer", "lr").line == 1
    assert _written(str(file), "optimizer.defaults", "lr").line == 3
    assert _written(str(file), "group", "lr").line == 4
    assert _written(str(file), "group", "learning_rate") is None
