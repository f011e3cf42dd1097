"""Rates that the loop works out and the optimizer never gets."""

from __future__ import annotations

import linecache

import pytest
from watching import seen

from flatline.events import RateLost
from flatline.sensors.lost_rates import lost_rate

HEAD = """
import copy, math
import torch
BASE, STEPS = 0.1, 80
def lr_at(step):
    return BASE * 0.5 * (1 + math.cos(math.pi * step / STEPS))
model = torch.nn.Linear(3, 1)
{head}opt = torch.optim.{kind}(model.parameters(), lr={start})
rows, logs = [], []
"""
STEP = """    opt.zero_grad()
    model(torch.ones(4, 3)).square().mean().backward()
    opt.step()
"""
LOOP = "for step in range(STEPS):\n"
EACH = "    for group in opt.param_groups:\n"


def script(before, after="", head="", kind="SGD", start="BASE"):
    indented = "".join(f"    {line}\n" for line in before.splitlines())
    later = "".join(f"    {line}\n" for line in after.splitlines())
    return f"{HEAD.format(kind=kind, start=start, head=head)}{LOOP}{indented}{STEP}{later}"


@pytest.fixture
def told(tmp_path):
    def run(text):
        file = tmp_path / "train.py"
        file.write_text(text)
        linecache.checkcache()
        lost_rate.cache_clear()
        code = compile(text, str(file), "exec")
        variables = {"__name__": "train"}  # that live to the end of the run, as those of a script do
        return seen(lambda: exec(code, variables), RateLost)

    return run


GROUP = "lr = lr_at(step)\nfor group in opt.param_groups:\n    "


@pytest.mark.parametrize(
    "before",
    [
        GROUP + "group = dict(group, lr=lr)",
        GROUP + 'group = {**group, "lr": lr}',
        GROUP + 'group = group | {"lr": lr}',
        GROUP + 'copy.copy(group)["lr"] = lr',
        GROUP + 'mine = group.copy()\n    mine["lr"] = lr',
        'lr = lr_at(step)\nfor i, group in enumerate(opt.state_dict()["param_groups"]):\n    group["lr"] = lr',
        'lr = lr_at(step)\nopt.state_dict()["param_groups"][0]["lr"] = lr',
        'lr = lr_at(step)\nstate = opt.state_dict()\nstate["param_groups"][0]["lr"] = lr',
        'lr = lr_at(step)\nfor g in copy.deepcopy(opt.param_groups):\n    g["lr"] = lr',
    ],
)
def test_a_rate_written_to_a_copy(told, before):
    (event,) = told(script(before))
    assert (event.copied, event.lr) == (True, 0.1)
    assert max(event.values) > 0.09 > 0.02 > event.values[-1]


def test_without_a_name_and_in_a_helper(told):
    (event,) = told(script('for group in opt.param_groups:\n    group = {**group, "lr": lr_at(step)}'))
    assert (event.copied, event.values) == (True, ())
    helper = (
        "def adjust(opt, step):\n    lr = lr_at(step)\n    for g in opt.param_groups:\n        g = dict(g, lr=lr)\n"
    )
    (event,) = told(script("adjust(opt, step)", head=helper))
    assert (event.text, event.values) == ("g = dict(g, lr=lr)", ())


KEEPS = """class Keeps:
    def __init__(self, opt):
        self.opt, self.groups, self.t = opt, {copies}, 0
    def step(self):
        self.t += 1
        for g in self.groups:
            g["lr"] = lr_at(self.t)
{also}class Trainer:
    def __init__(self, opt):
        self.schedule = Keeps(opt)
"""


def kept(copies, also=""):
    text = script("trainer.schedule.step()", head=KEEPS.format(copies=copies, also=also))
    return text.replace("rows, logs = [], []", "rows, logs = [], []\ntrainer = Trainer(opt)")


@pytest.mark.parametrize(
    "also",
    ["        print(self.groups[0]['lr'])\n", "        for g in self.groups:\n            g['lr'] = 2 * g['lr']\n"],
)
def test_copies_whose_rate_is_told_or_written_anew(told, also):
    assert told(kept("[dict(g) for g in opt.param_groups]", also))


CURRENT = "    def current(self):\n        return self.groups[0]['lr']\n"
COPIES_OF_GROUPS = "[dict(g) for g in opt.param_groups]"


@pytest.mark.parametrize(
    "use",
    [
        "print(f'lr {trainer.schedule.current():.3g}')",
        "now = trainer.schedule.current()\n    print('lr', now)",
        "row = {'step': step, 'lr': trainer.schedule.current()}\n    rows.append(row)",
    ],
)
def test_copies_whose_rate_a_method_returns_to_be_told(told, use):
    text = kept(COPIES_OF_GROUPS, CURRENT)
    (event,) = told(f"{text}    {use}\n")
    assert event.copied
    assert event.optimizer.steps == 80  # also those after the last look


@pytest.mark.parametrize(
    "use",
    [
        "opt.param_groups[0]['lr'] = trainer.schedule.current()",
        "now = trainer.schedule.current()\n    opt.param_groups[0].update(lr=now)\n    print(now)",
        "now = trainer.schedule.current()\n    if now < 1e-4:\n        break",
        "shift = trainer.schedule.current() * 0.1\n    model.weight.data.mul_(1 - shift)",
        "",  # who knows who asks for it
    ],
)
def test_near_miss_a_rate_that_a_method_returns_for_use(told, use):
    assert told(f"{kept(COPIES_OF_GROUPS, CURRENT)}    {use}\n") == []


HELD = """class Held:
    def __init__(self, opt):
        self.groups = [dict(g) for g in opt.param_groups]
        self.base = [g["lr"] for g in self.groups]
    def step(self, step):
        if step > 60:
            for g, base in zip(self.groups, self.base):
                g["lr"] = base * 0.1
"""


def test_copies_that_move_after_the_last_look(told):
    text = script("held.step(step)", "if step % 20 == 0:\n    print(f'lr {held.groups[0][\"lr\"]}')", head=HELD)
    (event,) = told(text.replace("rows, logs", "held = Held(opt)\nrows, logs"))
    assert (event.copied, event.values[-1]) == (True, pytest.approx(0.01))


def test_near_miss_a_function_that_uses_the_rate_and_returns_it(told):
    also = "            [p.data.mul_(1 - g['lr']) for p in g['params']]\n        return self.groups[0]['lr']\n"
    text = kept(COPIES_OF_GROUPS, also).replace("trainer.schedule.step()", "print(trainer.schedule.step())")
    assert told(text) == []


@pytest.mark.parametrize("copies", ["[dict(g) for g in opt.param_groups]", "[g.copy() for g in opt.param_groups]"])
def test_copies_that_an_object_keeps(told, copies):
    (event,) = told(kept(copies))
    assert (event.copied, event.lr, event.text) == (True, 0.1, "g['lr'] = lr_at(self.t)")
    assert len(event.values) > 8


@pytest.mark.parametrize(
    ("copies", "also"),
    [
        ("list(opt.param_groups)", ""),
        ("opt.param_groups", ""),
        ("[dict(g) for g in opt.param_groups]", "        self.opt.param_groups[0].update(lr=self.groups[0]['lr'])\n"),
        ("[{'lr': BASE}]", ""),
        ("[dict(g) for g in opt.param_groups]", "        return self.groups[0]['lr'] / BASE\n"),
        ("[dict(g) for g in opt.param_groups]", "        [p.mul(g['lr']) for g in self.groups for p in g['params']]\n"),
    ],
)
def test_near_miss_an_object_that_keeps_groups(told, copies, also):
    assert told(kept(copies, also)) == []


def test_optimizer_and_loop_of_a_function_that_is_gone_at_the_end(told):
    text = script(GROUP + "group = dict(group, lr=lr)")
    imports, _, rest = text.partition("BASE,")
    body = "".join(f"    {line}\n" for line in f"BASE,{rest}".splitlines())
    (event,) = told(f"{imports}def main():\n{body}main()\n")
    assert event.copied
    assert len(event.values) > 8


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("lr = lr_at(step)", 'print(f"step {step} lr={lr:.5f}")'),
        ("lr = BASE * (1 - step / STEPS)", 'rows.append({"lr": lr})'),
        ("", 'lr *= 0.97\nprint("lr", lr)'),
        ("lr = max(1e-4, BASE * 0.97**step)", 'if step % 9 == 0:\n    logs.append(f"{step}: lr {lr}")'),
    ],
)
def test_a_rate_that_is_only_told(told, before, after):
    (event,) = told(script(before, after, head="lr = BASE\n", start="lr"))
    assert (event.copied, event.text, event.lr) == (False, "lr", 0.1)


TELL = 'print(f"lr={lr:.5f}")'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (GROUP + 'group["lr"] = lr', TELL),
        (GROUP + "group.update(lr=lr)", TELL),
        (GROUP + "new = dict(group, lr=lr)\n    rows.append(new)", ""),
        ("lr = lr_at(step)\nopt.param_groups[:] = [dict(g, lr=lr) for g in opt.param_groups]", ""),
        (
            'lr = lr_at(step)\nstate = opt.state_dict()\nstate["param_groups"][0]["lr"] = lr\nopt.load_state_dict(state)',
            "",
        ),
        ("lr = lr_at(step)\nwith torch.no_grad():\n    model.bias -= lr * 0.01", TELL),
        ("lr = lr_at(step)\nrows.append(lr)", TELL),
        ("lr = lr_at(step)\nadjust(lr)", TELL),
        ("lr = lr_at(step)\nhold.lr = lr", TELL),
        ('lr = opt.param_groups[0]["lr"]', TELL),
        ("lr = lr_at(step) * 9", TELL),
        ("lr = min(BASE, BASE * (step + 60) / 60)", TELL),
        ("lr = read(step)", TELL),
        (GROUP + "group = dict(group, momentum=lr)", ""),
        ("for group in opt.param_groups:\n    group = dict(group, lr=BASE)", ""),
        (GROUP + 'group = dict(group, lr=lr)\n    rows.append(group["lr"])', ""),
        (GROUP + 'mine = group\n    mine["lr"] = lr', TELL),
        (GROUP + 'for g in list(opt.param_groups):\n        g["lr"] = lr', TELL),
    ],
)
def test_near_miss_rates_that_arrive_or_are_of_use(told, before, after):
    head = "def adjust(lr): pass\ndef read(step): return other.param_groups[0]['lr'] * (1 - step / STEPS)\n"
    head += "other = torch.optim.SGD(model.parameters(), lr=BASE)\nclass hold: pass\n"
    assert told(script(before, after, head=head)) == []


def test_near_miss_optimizers_whose_rate_moves_within(told):
    assert told(script("lr = BASE / (1 + 0.05 * step)", TELL, kind="Adagrad")) == []


def test_near_miss_another_optimizer_has_the_rate_that_is_told(told):
    head = "other = torch.optim.SGD(torch.nn.Linear(3, 1).parameters(), lr=BASE)\n"
    before = "lr = lr_at(step)\nother.param_groups[0].update(lr=lr_at(step))\nother.step()"
    assert told(script(before, TELL, head=head)) == []


def test_near_miss_an_optimizer_of_the_users_own(told):
    text = script("lr = lr_at(step)", TELL, head="class Own(torch.optim.SGD): pass\n")
    assert told(text.replace("opt = torch.optim.SGD", "opt = Own")) == []


def test_near_miss_a_few_steps(told):
    text = script(GROUP + "group = dict(group, lr=lr)").replace("STEPS = 0.1, 80", "STEPS = 0.1, 8")
    assert told(text) == []


def test_a_file_that_cannot_be_read(tmp_path):
    assert lost_rate(str(tmp_path / "nothing.py"), 3) is None


@pytest.mark.parametrize("before", ["opt.lr = lr_at(step)", "opt.learning_rate = lr_at(step)", "opt.lr = 0.001"])
def test_a_rate_that_becomes_an_attribute_of_the_optimizer(told, before):
    (event,) = told(script(before))
    assert (event.attribute, event.text) == (True, before)
    assert event.where.line == 11
    assert event.lr == 0.1


@pytest.mark.parametrize(
    ("before", "head"),
    [
        ("opt.lr = lr_at(step)\n" + EACH.strip() + '\n    group["lr"] = opt.lr', ""),
        ("opt.lr = 0.1", ""),  # the rate in use
        ("opt.schedule = lr_at(step)", ""),
        ("opt.lr = lr_at(step)", "class Own(torch.optim.SGD):\n    pass\ntorch.optim.SGD = Own\n"),
    ],
)
def test_near_miss_attributes_that_go_with_the_rate_or_are_of_a_class_of_the_users(told, before, head):
    import torch

    kept = torch.optim.SGD
    try:
        assert told(script(before, head=head)) == []
    finally:
        torch.optim.SGD = kept
