from dataclasses import replace

import pytest

from flatline.events import OptimizerFacts, ParameterFacts, ParametersAudited, Where
from flatline.rules.optimization.parameter_not_in_optimizer import ParameterNotInOptimizer
from flatline.testing import lint, play

SGD = OptimizerFacts()
BODY = ParameterFacts(name="body.weight", numel=1000, optimizers=(0,))
HEAD = ParameterFacts(name="head.weight", numel=5120, moved=False)
NORM = ParameterFacts(name="bn.weight", numel=10, optimizers=(0,), norm=True, kind="BatchNorm2d")
FROZEN = ParameterFacts(name="body.weight", numel=990, optimizers=(0,), trainable=False, moved=False)


def audit(*parameters, optimizers=(SGD,), **facts):
    return ParametersAudited(step=3, where=Where("train.py", 30), parameters=parameters, optimizers=optimizers, **facts)


def found(*parameters, **facts):
    look = audit(*parameters, **facts)
    finding, *_ = play(ParameterNotInOptimizer, look, *([replace(look, step=20)] if look.hollow else []))
    assert finding.where == Where("train.py", 30)
    return finding


# --------------------------------------------------------------------------- left out


def test_fires_on_a_head_made_after_the_optimizer():
    finding = found(BODY, replace(HEAD, after_optimizer=True))
    assert finding.severity == "error"
    assert finding.message == (
        "1 trainable parameter (5,120 elements) that the loss reaches in no optimizer (head.weight): "
        "unchanged after 3 steps though gradients arrive"
    )
    assert "made after the optimizer was built" in finding.cause
    assert finding.fix.startswith("build the optimizer after the last change of the model")
    assert finding.evidence == {"tensors": 1, "elements": 5120, "first": "head.weight"}


def test_fires_on_layers_in_a_plain_list():
    layers = [replace(HEAD, name=f"layers.{i}.weight", numel=10, registered=False) for i in range(5)]
    finding = found(BODY, *layers)
    assert finding.severity == "error"
    assert "5 trainable parameters (50 elements)" in finding.message
    assert "(layers.0.weight, layers.1.weight, layers.2.weight, … 2 more)" in finding.message
    assert "plain list or dict" in finding.cause
    assert finding.fix == "keep them in nn.ModuleList / nn.ModuleDict"


def test_fires_on_a_plain_tensor():
    finding = found(BODY, replace(HEAD, name="model.scale", registered=False, kind="tensor"))
    assert "plain attribute of a module" in finding.cause
    assert finding.fix == "self.scale = nn.Parameter(…)"


def test_fires_on_a_submodule_that_was_not_passed():
    finding = found(BODY, HEAD)
    assert finding.severity == "error"
    assert finding.fix.startswith("pass these parameters to the optimizer")


def test_another_model_without_any_optimizer_is_a_warning():
    assert found(BODY, replace(HEAD, model="encoder")).severity == "warning"
    assert found(BODY, replace(HEAD, model="encoder", after_optimizer=True)).severity == "error"


def test_near_miss_all_in_an_optimizer():
    assert play(ParameterNotInOptimizer, audit(BODY, replace(HEAD, optimizers=(0,)))) == []


def test_near_miss_an_optimizer_each():
    both = OptimizerFacts(key=0), OptimizerFacts(key=1)
    assert play(ParameterNotInOptimizer, audit(BODY, replace(HEAD, optimizers=(1,)), optimizers=both)) == []


@pytest.mark.parametrize(
    "facts",
    [
        {"trainable": False},  # frozen teacher
        {"reached": False},  # averaged copy
        {"has_gradient": False},
        {"moved": True},  # updated by hand
        {"training": False},  # a network in eval mode, through which the loss only passes
        {"loaded": True},
    ],
)
def test_near_miss_not_meant_to_learn(facts):
    assert play(ParameterNotInOptimizer, audit(BODY, replace(HEAD, **facts))) == []


def test_near_miss_no_optimizer_of_torch():
    assert play(ParameterNotInOptimizer, audit(replace(HEAD, moved=False), optimizers=())) == []


# --------------------------------------------------------------------------- an optimizer of another model


def test_fires_on_an_optimizer_of_another_model():
    finding = found(HEAD, held=8, stale=8)
    assert finding.severity == "error"
    assert finding.message == (
        "none of the 8 tensors in the optimizer is reached by the loss; it trains 1 trainable parameter "
        "(5,120 elements) that no optimizer holds (head.weight)"
    )
    assert "another model object" in finding.cause
    assert finding.evidence == {"held": 8, "stale": 8}


def test_near_miss_some_tensors_are_reached():
    assert play(ParameterNotInOptimizer, audit(HEAD, held=8, stale=7)) == []


def test_near_miss_backwards_that_nobody_looked_at():
    assert play(ParameterNotInOptimizer, audit(HEAD, held=8, stale=8, optimizers=(OptimizerFacts(seen=False),))) == []


LOADED = replace(HEAD, loaded=True)


def test_fires_on_an_optimizer_of_a_model_that_a_loaded_one_took_the_place_of():
    old = replace(BODY, name="base.weight", optimizers=(0,))
    begun, stage = OptimizerFacts(key=0, seen=False), OptimizerFacts(key=1)
    finding = found(old, LOADED, held=8, stale=8, twins=8, hollow=True, optimizers=(begun, stage), idle=(0,))
    assert finding.severity == "error"
    assert finding.message.startswith("none of the 8 tensors in the optimizer is reached by the loss")


def test_fires_on_an_optimizer_that_was_left_to_an_earlier_fold():
    finding = found(replace(HEAD, name="new.weight"), held=4, stale=0, twins=4, hollow=True)
    assert finding.message.startswith("none of the 4 tensors in the optimizer is reached by the loss")


def test_fires_on_a_loaded_encoder_that_took_the_place_of_another():
    finding = found(BODY, replace(LOADED, after_optimizer=True), held=8, stale=4, twins=4)
    assert "made after the optimizer was built" in finding.cause


@pytest.mark.parametrize(
    "facts",
    [
        {
            "held": 8,
            "stale": 8,
            "twins": 3,
            "hollow": True,
        },  # other shapes: a network that the loss only passes through
        {"held": 8, "stale": 8, "twins": 8},  # it found gradients
        {"held": 8, "stale": 0, "twins": 0},
    ],
)
def test_near_miss_loaded_and_in_no_optimizer(facts):
    assert play(ParameterNotInOptimizer, audit(BODY, LOADED, **facts)) == []


def test_near_miss_a_loaded_teacher_of_before_beside_a_part_without_a_use():
    assert play(ParameterNotInOptimizer, audit(BODY, LOADED, held=8, stale=4, twins=4)) == []


def test_near_miss_gradients_of_workers_that_come_some_steps_late():
    look = audit(replace(HEAD, name="new.weight"), held=4, stale=0, twins=4, hollow=True)
    found_some = replace(look, step=9, hollow=False, twins=0)
    assert play(ParameterNotInOptimizer, look, replace(look, step=5), found_some, replace(look, step=14)) == []


def test_near_miss_master_weights_of_gradients_that_are_all_zero():
    zero = replace(HEAD, name="new.weight", gradient_zero=True)
    assert play(ParameterNotInOptimizer, audit(zero, held=4, stale=0, twins=4, hollow=True)) == []


def test_near_miss_master_weights_whose_steps_are_rounded_away_for_some():
    """The loop copies them into the model: most of it moves, gains of 1 in bfloat16 do not."""
    moved = replace(HEAD, name="body.weight", moved=True)
    assert play(ParameterNotInOptimizer, audit(moved, HEAD, held=2, stale=2)) == []


def test_near_miss_updated_by_hand_beside_an_optimizer_of_plain_tensors():
    assert play(ParameterNotInOptimizer, audit(replace(HEAD, moved=True), held=8, stale=8)) == []


# --------------------------------------------------------------------------- nearly all frozen


def test_warns_where_only_norms_learn():
    finding = found(NORM, FROZEN)
    assert finding.severity == "warning"
    assert finding.message == (
        "the optimizer holds 2 tensors, of which 1 have requires_grad=False; only normalisation layers learn "
        "(1.0% of the elements, bn.weight)"
    )
    assert finding.evidence == {"frozen": 1, "learning": 1}


def test_near_miss_a_head_learns_too():
    assert play(ParameterNotInOptimizer, audit(NORM, FROZEN, replace(HEAD, optimizers=(0,)))) == []


def test_near_miss_norms_of_a_pretrained_network():
    assert play(ParameterNotInOptimizer, audit(NORM, replace(FROZEN, loaded=True))) == []


def test_near_miss_only_norms_were_passed():
    assert play(ParameterNotInOptimizer, audit(NORM, replace(FROZEN, optimizers=()))) == []


REBOUND = """
import torch
from torch import nn
def main(model):
    opt = torch.optim.SGD(model.parameters(), 0.1)
    {}
    fit(model, opt)
"""
LISTED = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        {}
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


def test_source_head_after_the_optimizer():
    """Seen as a SourceParsed."""
    (finding,) = lint(ParameterNotInOptimizer, REBOUND.format("model.fc = nn.Linear(8, 2)"))
    assert finding.where.line == 5


GROUPS = """
import torch
from torch import nn
from torchvision import models
model = models.resnet18()
rest = [p for n, p in model.named_parameters() if not n.startswith("fc")]
opt = torch.optim.SGD([{"params": rest, "lr": 0.01}, {"params": model.fc.parameters()}], lr=0.1)
%s
fit(model, opt)
"""


def test_source_part_of_a_group_after_the_optimizer():
    (finding,) = lint(ParameterNotInOptimizer, GROUPS % "model.fc = nn.Linear(512, 2)")
    assert finding.where.line == 7


@pytest.mark.parametrize(
    "then",
    [
        "model.fc = model.fc.to('cuda')",
        "model.fc = nn.Linear(512, 2)\nopt.add_param_group({'params': model.fc.parameters()})",
        "model.aux = nn.Linear(512, 2)",
    ],
)
def test_near_miss_source_part_of_a_group(then):
    assert lint(ParameterNotInOptimizer, GROUPS % then) == []


@pytest.mark.parametrize(
    "start",
    [
        "self.layers = [nn.Linear(3, 3) for _ in range(n)]",
        "self.layers = []\n        for _ in range(n):\n            self.layers.append(nn.Conv2d(3, 3, 1))",
        "self.layers = [nn.Linear(3, 3).to('cuda') for _ in range(n)]",
    ],
)
def test_source_plain_list(start):
    (finding,) = lint(ParameterNotInOptimizer, LISTED.format(start))
    assert "nn.ModuleList" in finding.fix


@pytest.mark.parametrize(
    "then",
    [
        "model = model.to('cuda')",
        "model = nn.DataParallel(model)",
        "model.name = nn.Linear.__name__",
        "model.fc = nn.Linear(8, 2)\n    opt.add_param_group({'params': model.fc.parameters()})",
        "model.act = nn.ReLU()",
    ],
)
def test_near_miss_source_nothing_new(then):
    assert lint(ParameterNotInOptimizer, REBOUND.format(then)) == []


@pytest.mark.parametrize(
    "start",
    [
        "self.layers = nn.ModuleList([nn.Linear(3, 3)])",
        "layers = [nn.Linear(3, 3)]\n        self.layers = nn.Sequential(*layers)",
        "self.layers = [nn.Linear(3, 3)]\n        self.kept = nn.ModuleList(self.layers)",
        "self.layers = [nn.ReLU(), nn.Dropout(0.1)]",
        "self.fc = nn.Linear(3, 3)\n        self.layers = [self.fc]",
    ],
)
def test_near_miss_source_registered(start):
    assert lint(ParameterNotInOptimizer, LISTED.format(start)) == []


HEADS = """import copy, torch
from torch import nn
import torch.nn.functional as F
body = nn.Linear(4, 8)
head = nn.Linear(8, 2)
opt = torch.optim.SGD(body.parameters(), lr=0.1)
{}
for x, y in data:
    opt.zero_grad()
    h = body(x)
    z = head(h){}
    loss = F.cross_entropy(z, y)
    loss.backward()
    opt.step()
"""
PARTS = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)
    def forward(self, x):
        return self.head(self.body(x))
net = Net()
opt = torch.optim.SGD(net.{}.parameters(), lr=0.1)
{}
for x, y in data:
    opt.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
"""
COPY = """import copy, torch
from torch import nn
def fit(data):
    base = nn.Linear(4, 2)
    opt = torch.optim.SGD(base.parameters(), lr=0.1)
    model = copy.deepcopy(base)
    for x, y in data:
        opt.zero_grad()
        loss = nn.functional.cross_entropy({}, y)
        loss.backward()
        opt.step()
        {}
    return model
"""


def test_source_head_in_no_optimizer():
    (finding,) = lint(ParameterNotInOptimizer, HEADS.format("head.train()", ""))
    assert "goes through head" in finding.message
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    ("then", "cut"),
    [
        ("opt.add_param_group({'params': head.parameters()})", ""),
        ("head.requires_grad_(False)", ""),
        ("everything = nn.ModuleList([body, head])", ""),
        ("head.load_state_dict(torch.load('head.pt'))", ""),
        ("for p in vars()['head'].parameters(): p.requires_grad = False", ""),
        ("head.eval()", ""),
        ("", ".detach()"),
    ],
)
def test_near_miss_source_head_held_or_cut(then, cut):
    assert lint(ParameterNotInOptimizer, HEADS.format(then, cut)) == []


def test_near_miss_source_head_of_no_loss():
    assert lint(ParameterNotInOptimizer, HEADS.format("", "").replace("cross_entropy(z", "cross_entropy(h")) == []


def test_source_last_layers_left_out():
    (finding,) = lint(ParameterNotInOptimizer, PARTS.format("body", ""))
    assert "net.head" in finding.message


@pytest.mark.parametrize(
    ("part", "then"),
    [
        ("head", ""),  # features that are random on purpose
        ("body", "opt.add_param_group({'params': net.head.parameters()})"),
        ("body", "other = torch.optim.SGD(list(net.head.parameters()), lr=0.1)"),
        ("body", "register(net)"),
    ],
)
def test_near_miss_source_parts(part, then):
    assert lint(ParameterNotInOptimizer, PARTS.format(part, then)) == []


def test_source_copy_of_what_is_optimized():
    (finding,) = lint(ParameterNotInOptimizer, COPY.format("model(x)", "pass"))
    assert "a copy of" in finding.message


@pytest.mark.parametrize(
    ("scores", "then"),
    [
        ("base(x) + model(x)", "pass"),
        ("model(x)", "model.load_state_dict(base.state_dict())"),
        ("model(x)", "for p, q in zip(model.parameters(), base.parameters()): q.grad = p.grad"),
    ],
)
def test_near_miss_source_copy(scores, then):
    assert lint(ParameterNotInOptimizer, COPY.format(scores, then)) == []


BUILT = """import torch
from torch import nn
def build(width):
    net = nn.Sequential(nn.Linear(4, width))
    return net, torch.optim.SGD(net.parameters(), lr=0.1)
def main():
    net, opt = build(8)
    {}
    for x, y in data:
        opt.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
"""
LATER = """import torch
from torch import nn
class Fit:
    def __init__(self):
        self.net = make()
        {}
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def prepare(self):
        self.net.fc = nn.Linear(8, 2)
        {}
    def run(self, x):
        self.opt.step()
f = Fit()
f.prepare()
"""


def test_source_head_after_a_function_that_built_the_optimizer():
    (finding,) = lint(ParameterNotInOptimizer, BUILT.format("net.fc = nn.Linear(8, 2)"))
    assert finding.where.line == 8


@pytest.mark.parametrize(
    "then",
    [
        "other, _ = build(9)\n    other.fc = nn.Linear(8, 2)",
        "net.fc = nn.Linear(8, 2)\n    opt = torch.optim.SGD(net.parameters(), lr=0.1)",
        "net, opt = build(9)",
    ],
)
def test_near_miss_source_after_a_function(then):
    assert lint(ParameterNotInOptimizer, BUILT.format(then)) == []


def test_source_head_in_a_later_method():
    assert len(lint(ParameterNotInOptimizer, LATER.format("", ""))) == 1


@pytest.mark.parametrize(
    ("before", "then"),
    [("self.prepare()", ""), ("", "self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)")],
)
def test_near_miss_source_in_a_method(before, then):
    assert lint(ParameterNotInOptimizer, LATER.format(before, then)) == []


def test_source_plain_list_by_another_name():
    start = "layers = []\n        for _ in range(n):\n            layers.append(nn.Linear(3, 3))\n        self.layers = layers"
    assert len(lint(ParameterNotInOptimizer, LISTED.format(start))) == 1


def test_source_head_that_is_moved_to_the_device():
    moved = LATER.replace("nn.Linear(8, 2)", "nn.Linear(8, 2).to(device)")
    assert len(lint(ParameterNotInOptimizer, moved.format("", ""))) == 1
    again = moved.format("", "").replace(
        "    def run",
        "    def build(self):\n        self.opt = torch.optim.SGD(self.net.parameters(), 0.1)\n    def run",
    )
    assert lint(ParameterNotInOptimizer, again) == []


def test_near_miss_source_model_that_is_moved():
    moved = REBOUND.format("model = model.to(device)")
    assert lint(ParameterNotInOptimizer, moved) == []


COPIED = """import copy, torch
from torch import nn
from torch.utils.data import DataLoader
def prepare():
    base = nn.Linear(4, 2)
    opt = torch.optim.SGD({}.parameters(), lr=0.1)
    model = copy.deepcopy(base).to(device)
    return base, model, {}
def run():
    base, model, opt = prepare()
    for x, y in data:
        opt.zero_grad()
        loss = nn.functional.cross_entropy({}, y)
        loss.backward()
        opt.step()
        {}
    print(distance(base, model))
"""


def test_source_copy_that_a_function_returns():
    (finding,) = lint(ParameterNotInOptimizer, COPIED.format("base", "opt", "model(x)", "pass"))
    assert (finding.where.line, "a copy of" in finding.message) == (7, True)


@pytest.mark.parametrize(
    ("held", "given", "scores", "then"),
    [
        ("base", "opt", "base(x)", "pass"),
        ("base", "opt", "base(x) + model(x)", "pass"),
        ("base", "torch.optim.SGD(model.parameters(), lr=0.1)", "model(x)", "pass"),
        ("other", "opt", "model(x)", "pass"),
        ("base", "opt", "model(x)", "base.load_state_dict(model.state_dict())"),
        ("base", "opt", "model(x)", "for p, q in zip(model.parameters(), base.parameters()): q.grad = p.grad"),
        ("base", "opt", "model(x)", "opt.add_param_group({'params': model.parameters()})"),
    ],
)
def test_near_miss_source_copy_that_a_function_returns(held, given, scores, then):
    assert lint(ParameterNotInOptimizer, COPIED.format(held, given, scores, then)) == []


TABLE = """from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = {}
    def forward(self, x):
        return [head(x) for head in self.heads.values()]
"""


def test_source_layers_in_a_plain_dictionary():
    (finding,) = lint(ParameterNotInOptimizer, TABLE.format("{k: nn.Linear(4, 4) for k in names}"))
    assert "plain dict" in finding.message
    assert "ModuleDict" in finding.fix


@pytest.mark.parametrize("start", ["nn.ModuleDict({k: nn.Linear(4, 4) for k in names})", "{k: len for k in names}"])
def test_near_miss_source_dictionary(start):
    assert lint(ParameterNotInOptimizer, TABLE.format(start)) == []


MADE = """import torch
from torch import nn
def make():
    body, head = nn.Linear(4, 4), nn.Linear(4, 2)
    {}
    return body, head
def main():
    body, head = make()
    opt = torch.optim.SGD(body.parameters(), lr=0.1)
    for x, y in data:
        opt.zero_grad()
        nn.functional.cross_entropy(head(body(x)), y).backward()
        opt.step()
"""


def test_source_model_that_another_function_made():
    (finding,) = lint(ParameterNotInOptimizer, MADE.format("pass"))
    assert finding.message.startswith("the loss goes through head")


@pytest.mark.parametrize("then", ["register(head)", "every.extend(head.parameters())", "head.requires_grad_(False)"])
def test_near_miss_source_model_that_another_function_gave_away(then):
    assert lint(ParameterNotInOptimizer, MADE.format(then)) == []


REPLACED = """import torch
from torch import nn
from torchvision.models import resnet18
def set_head(model, n):
    if n > 3:
        model.fc = nn.Linear(512, n)
    {other}
    return model
def split(model):
    head, body = [], []
    for name, p in model.named_parameters():
        {put}
    return body, head
model, teacher = resnet18(), resnet18()
body, head = split(model)
opt = torch.optim.SGD({given}, lr=0.1)
set_head({whose}, 10)
{then}
for x, y in data:
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
"""
OTHER = "else:\n        model.fc = nn.Sequential(nn.Dropout(0.1), nn.Linear(512, n))"
PUT = "(head if name.startswith('fc') else body).append(p)"
BY_NAME = "[{'params': body, 'lr': 1e-3}, {'params': head}]"


def replaced(*, other=OTHER, put=PUT, given=BY_NAME, whose="model", then=""):
    return lint(ParameterNotInOptimizer, REPLACED.format(other=other, put=put, given=given, whose=whose, then=then))


@pytest.mark.parametrize("given", [BY_NAME, "model.parameters()", "body + head"])
def test_source_a_head_that_a_function_replaces_on_every_way(given):
    (finding,) = replaced(given=given)
    assert finding.where.line == 6


@pytest.mark.parametrize(
    "change",
    [
        {"other": "pass"},  # perhaps it is not replaced
        {"whose": "teacher"},
        {"then": "opt.add_param_group({'params': model.fc.parameters()})"},
        {"put": PUT.replace("append(p)", "append(copies[name])")},
    ],
)
def test_near_miss_source_a_head_that_a_function_replaces(change):
    assert replaced(**change) == []


SWAPPED = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 4), nn.Linear(4, 9)
    def forward(self, x):
        return self.head(self.body(x))
def frozen(module):
    for p in module.parameters():
        p.requires_grad = False
def change(model):
    old = model.head
    new = nn.Linear(4, 2)
    {before}
    model.head = new
    {then}
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
change(model)
for x, y in data:
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("before", "then"),
    [
        ("pass", "pass"),
        ("nn.init.zeros_(new.bias)", "frozen(model.body)"),
        ("pass", "model.body.requires_grad_(False)"),
    ],
)
def test_source_a_function_puts_another_head_in(before, then):
    (finding,) = lint(ParameterNotInOptimizer, SWAPPED.format(before=before, then=then))
    assert finding.where.line == 16


@pytest.mark.parametrize(
    ("before", "then"),
    [
        ("pass", "print(model(x)); model.head = old"),
        ("new.weight, new.bias = old.weight, old.bias", "pass"),
        ("new.requires_grad_(False)", "pass"),
        ("pass", "frozen(model.head)"),
        ("pass", "for p in model.head.parameters(): p.requires_grad = False"),
        ("pass", "tell(opt, old, new)"),
        ("pass", "opt.__init__(model.parameters(), lr=0.1)"),
    ],
)
def test_near_miss_source_a_head_that_is_put_back_tied_frozen_or_told(before, then):
    assert lint(ParameterNotInOptimizer, SWAPPED.format(before=before, then=then)) == []


HOOKED = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 4), nn.Linear(4, 9)
    def forward(self, x):
        return self.head(self.body(x))
class Trainer:
    def __init__(self, model, hooks):
        self.model, self.hooks = model, hooks
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    def fit(self, data):
        for hook in self.hooks:
            hook.first(self)
        for x, y in data:
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
        for hook in self.hooks:
            hook.last(self)
class Change:
    def first(self, trainer):
        {first}
    def last(self, trainer):
        {last}
Trainer(Net(), [Change()]).fit(data)
"""
CHANGE = "trainer.model.head = nn.Linear(4, 2)"


@pytest.mark.parametrize(("first", "last", "found"), [(CHANGE, "pass", 1), ("pass", CHANGE, 0), ("pass", "pass", 0)])
def test_source_a_hook_that_runs_when_the_training_is_over_changes_nothing(first, last, found):
    assert len(lint(ParameterNotInOptimizer, HOOKED.format(first=first, last=last))) == found


PART = """import torch
from torch import nn
from torchvision.models import resnet18
model = resnet18()
opt = torch.optim.SGD(model.{part}.parameters(), lr=0.1)
{then}
for x, y in data:
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("part", "then", "found"),
    [
        ("fc", "model.fc = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 2))", 1),
        ("fc", "model.fc = nn.Linear(model.fc.in_features, 2)", 1),
        ("layer4", "model.fc = nn.Linear(512, 2)", 0),
        ("fc", "model.fc = nn.Sequential(model.fc, nn.ReLU())", 0),
        ("fc", "model.fc = nn.Linear(512, 2)\nopt = torch.optim.SGD(model.fc.parameters(), lr=0.1)", 0),
    ],
)
def test_source_the_part_that_an_optimizer_was_built_for(part, then, found):
    assert len(lint(ParameterNotInOptimizer, PART.format(part=part, then=then))) == found


MOVED = """from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.heads = {made}
    {more}
    def forward(self, x):
        return {result}
"""
NAMED = "{k: nn.Linear(4, 4) for k in names}"
INSIDE = "{k: head(x) for k, head in self.heads.items()}"


def moved(*, made=NAMED, more="pass", result=INSIDE):
    return lint(ParameterNotInOptimizer, MOVED.format(made=made, more=more, result=result))


@pytest.mark.parametrize(
    "changed",
    [
        {"more": "def to(self, d):\n        [h.to(d) for h in self.heads.values()]\n        return super().to(d)"},
        {"more": "def train(self, on=True):\n        for k in self.heads: self.heads[k].train(on)"},
        {"more": f"def split(self, x):\n        return {INSIDE}", "result": "self.split(self.body(x))"},
        {"more": "@torch.no_grad()\n    def tell(self, x):\n        return [self.heads[k](x) for k in self.heads]"},
        {
            "more": "def cuda(self):\n        for h in self.heads: h.cuda()\n        return super().cuda()",
            "made": "[nn.Linear(4, 4)]",
            "result": "[h(x) for h in self.heads]",
        },
    ],
)
def test_source_layers_in_a_dictionary_that_the_module_moves_itself(changed):
    (finding,) = moved(**changed)
    assert "self.heads is a plain" in finding.message


@pytest.mark.parametrize(
    "changed",
    [
        {"more": "def to(self, d):\n        self.all = nn.ModuleDict(self.heads)\n        return super().to(d)"},
        {"more": "def parts(self):\n        return [p for h in self.heads.values() for p in h.parameters()]"},
        {"more": "def every(self):\n        return self.heads", "result": "[h(x) for h in self.every().values()]"},
        {"more": "def tell(self):\n        return list(self.heads.values())"},
        {"more": f"@torch.no_grad()\n    def split(self, x):\n        return {INSIDE}", "result": "self.split(x)"},
    ],
)
def test_near_miss_source_layers_in_a_dictionary_that_the_module_moves_itself(changed):
    assert moved(**changed) == []
