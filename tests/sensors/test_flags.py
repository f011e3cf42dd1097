"""``requires_grad`` as an attribute of a module."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from watching import seen

import flatline
from flatline.events import FlagOnModule
from flatline.sensors.flags import Flags, flagged


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x))


class Setting(Net):
    def __init__(self, requires_grad):
        super().__init__()
        self.requires_grad = requires_grad
        self.requires_grad_(not requires_grad)


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.trunk(x))


def told(change, *, held=True):
    """What is told of a net after a change."""
    net = Net()
    change(net)
    trained = {id(p) for p in net.parameters()} if held else set()
    return [(each.module, each.flag, each.tensors) for each in flagged(net, (), 9, trained)]


def thawed(net):
    net.body.requires_grad_(False)
    net.body.requires_grad = True


def not_frozen(net):
    net.body.requires_grad = False


def well_thawed(net):
    net.body.requires_grad_(False)
    net.body.requires_grad = True
    net.body.requires_grad_(True)


def other_value(net):
    net.body.requires_grad = "yes"


def nothing_held(net):
    net.body[1].requires_grad = True


@pytest.mark.parametrize(("change", "flag"), [(thawed, True), (not_frozen, False)])
def test_nobody_reads_it(change, flag):
    assert told(change) == [("body", flag, 2)]


@pytest.mark.parametrize("change", [well_thawed, other_value, nothing_held, lambda net: None])
def test_nothing_is_wrong(change):
    assert told(change) == []


def test_what_is_in_no_optimizer_need_not_be_frozen():
    assert told(not_frozen, held=False) == []


def test_a_setting_of_the_users_class():
    assert list(flagged(Setting(True), (), 9, set())) == []


def test_the_line_is_found():
    torch.manual_seed(0)
    net = Trunk()
    net.trunk.requires_grad_(False)
    with flatline.watch() as run:
        events, emit = [], run._session.engine.emit
        run._session.engine.emit = lambda event: (events.append(event), emit(event))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(4):
            if step == 2:
                net.trunk.requires_grad = True  # <- here
            optimizer.zero_grad()
            net(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
    (flag,) = [event for event in events if isinstance(event, FlagOnModule)]
    with open(__file__, encoding="utf-8") as file:
        lines = file.read().split("\n")
    assert "<- here" in lines[flag.where.line - 1]
    assert (flag.module, flag.elements) == ("trunk", 40)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("def switch(module, flag):\n    module.requires_grad = flag\nx.requires_grad = False\n", 2),
        ("net.body.requires_grad = True\nmodule.requires_grad = flag\n", 1),
        ("one.requires_grad = flag\nother.requires_grad = flag\n", None),
    ],
)
def test_the_line_of_a_function_that_is_given_the_value(tmp_path, text, line):
    file = tmp_path / "train.py"
    file.write_text(text, encoding="utf-8")
    net = Net()
    thawed(net)
    (flag,) = flagged(net, [str(file)], 9, set())
    assert (flag.where.line if flag.where is not None else None) == line


def watched(body):
    """Flags on modules that are told of, where a function trains and its model goes with it."""
    return [(event.module, event.flag) for event in seen(body, FlagOnModule)]


def trained(stages):
    """A model in a function; ``stages`` maps a step to what is done to its trunk then."""
    torch.manual_seed(0)
    net = Trunk()
    for p in net.trunk.parameters():
        p.requires_grad = False
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(300):
        stages.get(step, lambda trunk: None)(net.trunk)
        optimizer.zero_grad()
        net(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()


def as_attribute(part):
    part.requires_grad = True


def test_the_model_of_a_function_that_returned():
    assert watched(lambda: trained({100: as_attribute})) == [("trunk", True)]


def test_it_was_put_right_later():
    assert watched(lambda: trained({100: as_attribute, 160: lambda trunk: trunk.requires_grad_(True)})) == []


def test_the_model_of_a_function_without_such_a_flag():
    assert watched(lambda: trained({100: lambda trunk: trunk.requires_grad_(True)})) == []


def test_modules_are_looked_at_in_turn():
    net = nn.Sequential(*[nn.Linear(2, 2) for _ in range(20)])
    flags = Flags()
    assert not flags.changed()
    flags.update([net])
    assert not any(flags.changed() for _ in range(6))
    net[17].requires_grad = True
    assert sum(flags.changed() for _ in range(21)) >= 6
    flags.update([net])
    assert not any(flags.changed() for _ in range(21))
