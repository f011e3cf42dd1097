"""Reading Python source: what is handed on to builders, tables, optimizers and criteria, and what is written out by hand."""

from __future__ import annotations

from functools import partial

import pytest
from parsed import kinds_in, parsed

HEAD = """import torch
from torch import nn
import torch.nn.functional as F
"""
event_of, kinds = partial(parsed, HEAD), partial(kinds_in, HEAD)


def fed(code: str, **others: str) -> list[tuple[str, str]]:
    """The losses of train.py, and what feeds them."""
    return [(loss.kind, loss.fed_by) for loss in event_of(code, **others).losses]


HALVED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
def groups(net):
    return [{{"params": net.trunk.parameters(), "lr": 1e-4}}, dict(params=net.head.parameters())]
net = Net()
net.half()
params = {params}
optimizer = torch.optim.Adam({given})
net(x).sum().backward()
"""


@pytest.mark.parametrize(
    ("params", "given", "expected"),
    [
        ("list(net.parameters())", "params", True),
        ("filter(lambda p: p.requires_grad, net.parameters())", "params", True),
        ("[p for _, p in net.named_parameters() if p.requires_grad]", "params, lr=1e-3", True),
        ("groups(net)", "params", True),
        ("[*net.trunk.parameters()] + [*net.head.parameters()]", "params=params", True),
        ("[p.detach().clone().float() for p in net.parameters()]", "params", False),
        ("copies(net.parameters())", "params", False),
        ("[*net.parameters(), *other]", "params", False),
        ("list(net.parameters())", "params, eps=1e-4", False),
    ],
)
def test_parameters_behind_names_lists_and_groups(params, given, expected):
    assert ("eps of zero" in kinds(HALVED.format(params=params, given=given))) is expected


WRITTEN_OUT = """
def scores(x):
    z = F.linear(x, w)
    e = {first}
    {more}
    return {value}
loss = F.cross_entropy(scores(x), y)
"""


@pytest.mark.parametrize(
    ("first", "more", "value", "expected"),
    [
        ("(z - z.max(-1, keepdim=True).values).exp()", "pass", "e / e.sum(dim=-1, keepdim=True)", "softmax"),
        ("torch.exp(z)", "norm = torch.sum(e, 1, keepdim=True)", "e / norm", "softmax"),
        ("-z", "pass", "1 / (1 + torch.exp(e))", "sigmoid"),
        ("torch.exp(z)", "pass", "z.exp() / z.exp().sum(1, True)", "softmax"),
        ("z.relu()", "pass", "e / e.sum(-1, keepdim=True)", ""),
        ("torch.exp(z)", "pass", "z / e.sum(-1, keepdim=True)", ""),
        ("torch.exp(z)", "norm = e.sum(-1, keepdim=True); e = other(e)", "e / norm", ""),
        ("torch.exp(z)", "pass", "e / e.sum()", ""),
        ("torch.exp(z)", "pass", "1 / (2 + e)", ""),
    ],
)
def test_written_out_by_hand(first, more, value, expected):
    found = fed(WRITTEN_OUT.format(first=first, more=more, value=value))
    assert found == ([("cross_entropy", expected)] if expected else [])


PICKED = "loss = -{}.log().mean()\nloss.backward()\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (PICKED.format("x.softmax(1).diagonal()"), True),
        (PICKED.format("F.softmax(x, 1).gather(1, y[:, None])"), True),
        ("p = F.softmax(x, 1)\n" + PICKED.format("torch.gather(p, 1, y)"), True),
        ("p = F.softmax(x, 1)\n" + PICKED.format("p[torch.arange(len(y)), y]"), True),
        (PICKED.format("x.softmax(1).cumsum(1)"), False),
        (PICKED.format("(1e-8 + x.softmax(1).diagonal())"), False),
        ("with torch.no_grad():\n    ratio = x.softmax(1).diag().log()\n(ratio * z).backward()\n", False),
    ],
)
def test_entries_that_are_picked(code, expected):
    assert ("logged softmax" in kinds(code)) is expected


def test_rows_by_an_attribute():
    assert fed("layer = nn.Linear(4, 2)\nout = layer(x)\nF.nll_loss(out[data.mask], y)\n") == [("nll", "linear")]
    assert fed("layer = nn.Linear(4, 2)\nout = layer(x), 3\nF.nll_loss(out[data.index], y)\n") == []


BUILT = """
def build(a, b, last=None, name=""):
    layers = []
    for _ in range(2):
        layers += [nn.Linear(a, a), nn.ReLU()]
    layers.append(nn.Linear(a, b))
    {test}:
        layers.append({last})
    return nn.Sequential(*layers)
first, second = build(8, 4), build(4, 2, {given})
loss = F.cross_entropy({net}(x), y)
"""


@pytest.mark.parametrize(
    ("test", "last", "given", "net", "expected"),
    [
        ("if last is not None", "last()", "last=nn.Softmax", "second", "softmax"),
        ("if last is not None", "last", "nn.Softmax(-1)", "second", "softmax"),
        ("if last", "nn.Softmax(-1)", "True", "second", "softmax"),
        ("if name == 'soft'", "nn.Softmax(-1)", "name='soft'", "second", "softmax"),
        ("if not name == 'plain'", "nn.Softmax(-1)", "name='plain'", "second", "linear"),
        ("if last is not None", "last()", "last=nn.Softmax", "first", "linear"),
        ("if last is not None", "last()", "last=given", "second", ""),
        ("if last is not None", "last()", "**options", "second", ""),
        ("if torch.cuda.is_available()", "nn.Softmax(-1)", "None", "second", ""),
        ("for _ in range(1)", "nn.Softmax(-1)", "None", "second", ""),
    ],
)
def test_last_layers_as_one_call_says(test, last, given, net, expected):
    found = fed(BUILT.format(test=test, last=last, given=given, net=net))
    assert found == ([("cross_entropy", expected)] if expected else [])


TABLES = """ACTS = {"soft": lambda: nn.Softmax(-1), "none": nn.Identity}
NETS, LOSSES = {}, {}
def register(table, name):
    def keep(given):
        table[name] = given
        return given
    return keep
def add(name, net):
    NETS[name] = net
"""
USED = """from tables import ACTS, LOSSES, NETS, add, register
class Net(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.out = nn.Sequential(nn.Linear(4, 2), ACTS[act]())
    def forward(self, x):
        return self.out(x)
{fill}
net, criterion = NETS[{net}]("{act}"), LOSSES["ce"]()
criterion(net(x), y).backward()
"""
BOTH = "add('mlp', Net)\nregister(LOSSES, 'ce')(nn.CrossEntropyLoss)"


@pytest.mark.parametrize(
    ("fill", "net", "act", "expected"),
    [
        (BOTH, "'mlp'", "soft", "softmax"),
        (BOTH, "'mlp'", "none", "linear"),
        (BOTH, "'mlp'", "other", ""),
        (BOTH, "name", "soft", "softmax"),
        (BOTH.replace("'ce'", "given()"), "'mlp'", "soft", ""),
        (BOTH.replace("Net)", "wrapped(Net))"), "'mlp'", "soft", ""),
    ],
)
def test_tables_that_calls_fill(fill, net, act, expected):
    found = fed(USED.format(fill=fill, net=net, act=act), tables=TABLES)
    assert found == ([("cross_entropy", expected)] if expected else [])


LEAVES = """
weights = torch.tensor([1.0, 0.5])
net = nn.Linear(4, 2)
def terms(x, y):
    out = net(x)
    return [F.mse_loss(out, y), out.abs().mean()]
{before}
for x, y in data:
    {line}
    total = {total}
    total.backward()
"""
MADE = "losses = torch.tensor(terms(x, y), requires_grad=True)"


@pytest.mark.parametrize(
    ("before", "line", "total", "expected"),
    [
        ("", MADE, "(weights * losses).sum()", True),
        ("", "losses = torch.tensor(terms(x, y)).requires_grad_()", "0.5 * losses.mean()", True),
        ("", "losses = torch.tensor(terms(x, y), requires_grad=True)", "torch.sum(losses) / 2 + 1", True),
        ("", MADE, "losses.sum() / len(x)", True),
        (
            "",
            "parts = []; parts.append(F.mse_loss(net(x), y)); s = torch.tensor(parts, requires_grad=True)",
            "s.sum()",
            True,
        ),
        (
            "def put(parts):\n    return torch.tensor(sum(parts), requires_grad=True)",
            "pass",
            "0.5 * put(terms(x, y))",
            True,
        ),
        ("", MADE, "(weights * losses).sum() + F.mse_loss(net(x), y)", False),
        ("", "losses = torch.stack(terms(x, y))", "(weights * losses).sum()", False),
        ("start = torch.tensor(terms(a, b), requires_grad=True)", "pass", "(weights * start).sum()", False),
        ("", "point = torch.tensor(x, requires_grad=True)", "(point * point).sum()", False),
        ("", "z = torch.tensor(net(x).tolist(), requires_grad=True)", "z.mean()", True),
        ("", "z = torch.tensor(net(x).tolist(), requires_grad=True); o = torch.optim.SGD([z], 1)", "z.mean()", False),
        (
            "",
            "z = torch.tensor(net(x).tolist(), requires_grad=True); z.mean().backward(); print(z.grad)",
            "z.sum()",
            False,
        ),
        ("", "losses = torch.tensor([1.0, 2.0], requires_grad=True)", "(weights * losses).sum()", False),
    ],
)
def test_losses_in_a_new_leaf(before, line, total, expected):
    assert ("severed" in kinds(LEAVES.format(before=before, line=line, total=total))) is expected


EPISODES = """
class Agent:
    def __init__(self):
        self.actor = nn.Linear(4, 2)
        self.optim = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.logp = []
    def act(self, state):
        chances = torch.distributions.Categorical(logits=self.actor(state))
        action = chances.sample()
        self.logp.append({kept})
        return action
    def learn(self, rewards):
        returns = torch.tensor(rewards)
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        logp = {gathered}
        loss = -(logp * returns).sum()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        self.logp = []
"""


@pytest.mark.parametrize(
    ("kept", "gathered", "expected"),
    [
        ("chances.log_prob(action).item()", "torch.tensor(self.logp, requires_grad=True)", True),
        ("chances.log_prob(action).item()", "torch.FloatTensor(self.logp).requires_grad_()", True),
        ("chances.log_prob(action)", "torch.stack(self.logp)", False),
        ("chances.log_prob(action)", "sum(self.logp)", False),
        (
            "chances.log_prob(action).item()",
            "self.z = torch.tensor(self.logp, requires_grad=True)\n        o = torch.optim.SGD([logp], 1)",
            False,
        ),
    ],
)
def test_log_probabilities_in_a_new_leaf(kept, gathered, expected):
    assert ("severed" in kinds(EPISODES.format(kept=kept, gathered=gathered))) is expected


CRITERION = """
class Margin(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter({made})
    def forward(self, x, y):
        {line}
        return (x - self.centers[y]).pow(2).mean()
net, criterion = nn.Linear(4, 2), Margin()
optimizer = torch.optim.SGD({given}, 0.1)
for x, y in data:
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("made", "line", "given", "expected"),
    [
        ("torch.randn(9, 2)", "pass", "net.parameters()", True),
        ("0.1 * torch.empty(9, 2)", "pass", "net.parameters()", True),
        ("torch.randn(9, 2)", "pass", "[*net.parameters(), *criterion.parameters()]", False),
        ("torch.randn(9, 2)", "pass", "[*net.parameters(), criterion.centers]", False),
        ("torch.randn(9, 2), requires_grad=False", "pass", "net.parameters()", False),
        ("torch.tensor([[0.485, 0.456]])", "pass", "net.parameters()", False),
        ("torch.zeros(9, 2)", "self.centers.data[y] += 0.1 * x", "net.parameters()", False),
    ],
)
def test_criteria_with_parameters_of_their_own(made, line, given, expected):
    assert ("orphan" in kinds(CRITERION.format(made=made, line=line, given=given))) is expected


NET = """class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.trunk, self.head = nn.Linear(4, 8), nn.Linear(8, n)
    def set_classes(self, n):
        self.head = nn.Linear(8, n)
    def rename(self, names):
        self.names = names
"""
EXPERIMENT = """from net import Net
class Experiment:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD({given}, 0.1)
    def prepare(self, n):
        {line}
{after}
"""
WHOLE, HEADS = (
    "self.net.parameters()",
    '[{"params": self.net.trunk.parameters()}, {"params": self.net.head.parameters()}]',
)
AFTER = "net = Net(9)\nexperiment = Experiment(net)\nexperiment.prepare(3)"
OUTSIDE = "net = Net(9)\nexperiment = Experiment(net)\nnet.set_classes(3)"


@pytest.mark.parametrize(
    ("given", "line", "after", "expected"),
    [
        (WHOLE, "self.net.set_classes(n)", AFTER, True),
        (HEADS, "self.net.set_classes(n)", AFTER, True),
        (WHOLE, "pass", OUTSIDE, True),
        ("self.net.trunk.parameters()", "self.net.set_classes(n)", AFTER, False),
        (WHOLE, "self.net.rename(n)", AFTER, False),
        (WHOLE, "self.net.set_classes(n); self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)", AFTER, False),
        (WHOLE, "pass", "net = Net(9)\nnet.set_classes(3)\nexperiment = Experiment(net)", False),
        (WHOLE, "pass", f"{OUTSIDE}\nexperiment.optimizer = torch.optim.SGD(net.parameters(), 0.1)", False),
    ],
)
def test_methods_that_replace_layers(given, line, after, expected):
    code = EXPERIMENT.format(given=given, line=line, after=after)
    assert ("rebound" in kinds(code, net=NET)) is expected


TIMM = """
import timm
net = timm.create_model("vit_small", pretrained=True)
{before}
opt = torch.optim.AdamW({given})
{after}
for x, y in data:
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("before", "given", "after", "expected"),
    [
        ("", "net.parameters()", "net.reset_classifier(37)", True),
        ("net.reset_classifier(37)", "net.parameters()", "", False),
        ("", "net.blocks.parameters()", "net.reset_classifier(37)", False),
        ("", "net.parameters()", "net.reset_classifier(37); opt = torch.optim.AdamW(net.parameters())", False),
        ("", "net.parameters()", "net.set_grad_checkpointing(True)", False),
    ],
)
def test_methods_of_libraries_that_replace_layers(before, given, after, expected):
    assert ("rebound" in kinds(TIMM.format(before=before, given=given, after=after))) is expected


POLICY = """
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi, self.v = nn.Linear(4, 2), nn.Linear(4, 1)
    {head}
    def act(self, x, a=None):
        dist = Categorical(logits=self.pi(x))
        a = dist.sample() if a is None else a
        return a, dist.log_prob(a)
def update(agent, optimizer, data):
    for x, a in data:
        {line}
        loss = -(logp * 2).mean() + agent.v(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
agent = Agent()
update(agent, torch.optim.Adam(agent.parameters()), data)
"""


@pytest.mark.parametrize(
    ("head", "line", "expected"),
    [
        ("@torch.no_grad()", "_, logp = agent.act(x, a)", True),
        ("@torch.inference_mode()", "logp = agent.act(x, a)[1]", True),
        ("@staged", "_, logp = agent.act(x, a)", False),
        ("@torch.no_grad()", "logp = Categorical(logits=agent.pi(x)).log_prob(a)", False),
        ("@torch.no_grad()", "a, _ = agent.act(x); logp = agent.v(y)", False),
    ],
)
def test_helpers_that_are_learned_from(head, line, expected):
    assert ("cut layer" in kinds(POLICY.format(head=head, line=line))) is expected


HOLDER = """
class Learner:
    def __init__(self{more}):
        self.actor = {actor}
        self.critic = nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam([*self.actor.parameters(), *self.critic.parameters()])
    @torch.no_grad()
    def evaluate(self, x, a):
        return {value}
    def learn(self, data):
        self.actor.train()
        for x, a in data:
            loss = self.critic(x).pow(2).mean() - {term}.mean()
            loss.backward()
            self.optimizer.step()
"""
MADE_HERE, OFF = "nn.Linear(4, 2).to(device)", "Categorical(logits=self.actor(x)).log_prob(a)"


@pytest.mark.parametrize(
    ("more", "actor", "value", "term", "expected"),
    [
        ("", MADE_HERE, OFF, "self.evaluate(x, a)", True),
        ("", MADE_HERE, OFF, "(self.evaluate(x, a) * self.actor(x))", False),
        ("", MADE_HERE, OFF, "x", False),
        (", actor", "actor", OFF, "self.evaluate(x, a)", False),
    ],
)
def test_parts_of_a_learner_that_is_no_module(more, actor, value, term, expected):
    after = "" if not more else "Learner(nn.Linear(4, 2))\n"
    code = HOLDER.format(more=more, actor=actor, value=value, term=term) + after
    assert ("cut layer" in kinds(code)) is expected


ORDER = """from net import Net
def main():
    net = Net(9)
    {first}
    {second}
    {third}
    for x in data:
        optimizer.step()
"""
TAKEN, MADE_OF, SET = (
    "params = list(net.parameters())",
    "optimizer = torch.optim.SGD(params, 0.1)",
    "net.set_classes(3)",
)


@pytest.mark.parametrize(
    ("first", "second", "third", "expected"),
    [
        (TAKEN, MADE_OF, SET, True),
        (TAKEN, SET, MADE_OF, True),
        (SET, TAKEN, MADE_OF, False),
        (SET, "optimizer = torch.optim.SGD(net.parameters(), 0.1)", "pass", False),
    ],
)
def test_parameters_that_were_asked_for_before(first, second, third, expected):
    assert ("rebound" in kinds(ORDER.format(first=first, second=second, third=third), net=NET)) is expected
