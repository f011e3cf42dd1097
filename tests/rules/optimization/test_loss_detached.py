from dataclasses import replace

import pytest

from flatline.events import (
    BackwardStarted,
    OptimizerFacts,
    OutputsUnused,
    ParameterFacts,
    ParametersAudited,
    ScriptCrashed,
    WeightsSevered,
    Where,
)
from flatline.rules.optimization.loss_detached import LossDetached
from flatline.testing import lint, play

LINE = Where("train.py", 30)
LEAF = BackwardStarted(
    step=1, where=LINE, has_graph=False, is_leaf=True, reached=0, optimizer_parameters=6, source_hint=".item()",
    hint_where=Where("train.py", 28),
)  # fmt: skip
CUT = ParameterFacts(name="body.weight", optimizers=(0,), reached=False, moved=False, cut="before head")
HEAD = ParameterFacts(name="head.weight", optimizers=(0,))
SGD = OptimizerFacts(name="SGD", steps=3, where=Where("train.py", 12))
CRASH = ScriptCrashed(
    where=LINE, message="element 0 of tensors does not require grad and does not have a grad_fn", in_backward=True
)


def audit(*parameters, **facts):
    return ParametersAudited(step=3, backward_where=LINE, parameters=parameters, optimizers=(SGD,), **facts)


# --------------------------------------------------------------------------- backward


def test_fires_on_a_number_that_was_told_to_require_a_gradient():
    (finding,) = play(LossDetached, LEAF)
    assert finding.severity == "error"
    assert finding.where == LINE
    assert finding.key == "leaf"
    assert finding.message == (
        "backward() was called on a tensor that was not computed from any parameter (.item() at line 28): "
        "0 of 6 tensors of the optimizers get a gradient"
    )
    assert finding.evidence == {"reached": 0, "severing_call": ".item()"}


def test_fires_without_a_hint():
    (finding,) = play(LossDetached, replace(LEAF, source_hint="", hint_where=None))
    assert "from any parameter: 0 of 6" in finding.message
    assert finding.evidence["severing_call"] is None


def test_near_miss_a_graph():
    assert play(LossDetached, BackwardStarted(optimizer_parameters=6)) == []


def test_near_miss_a_leaf_that_is_optimised_itself():
    assert play(LossDetached, replace(LEAF, optimizer_parameters=0)) == []


def test_near_miss_no_leaf_crashes_anyway():
    assert play(LossDetached, replace(LEAF, is_leaf=False)) == []


# --------------------------------------------------------------------------- parameters


def test_fires_on_a_cut_between_layers():
    (finding,) = play(LossDetached, audit(CUT, replace(CUT, name="body.bias"), HEAD))
    assert finding.severity == "error"
    assert finding.where == LINE
    assert finding.key == "cut"
    assert finding.message == (
        "2 of 3 parameters in the optimizer are never reached by the loss (first body.weight): the gradient ends before "
        "head"
    )
    assert finding.fix.startswith("take out what cuts the graph before head")
    assert finding.evidence == {"unreached": 2, "total": 3, "cut": "before head"}


def test_a_cut_that_is_not_proven_is_a_warning():
    (finding,) = play(LossDetached, audit(CUT, replace(CUT, cut_proven=False), HEAD))
    assert finding.severity == "warning"


def test_near_miss_reached():
    assert play(LossDetached, audit(replace(CUT, reached=True), HEAD)) == []


def test_near_miss_not_in_the_path_of_this_loss():
    assert play(LossDetached, audit(replace(CUT, cut=""), HEAD)) == []


def test_near_miss_stop_gradient_on_a_target_network():
    assert play(LossDetached, audit(replace(CUT, optimizers=()), HEAD)) == []
    assert play(LossDetached, audit(replace(CUT, trainable=False), HEAD)) == []


def test_near_miss_cut_in_this_step_and_moved_in_others():
    assert play(LossDetached, audit(replace(CUT, moved=True), HEAD)) == []


def test_near_miss_graph_that_cannot_be_seen():
    assert play(LossDetached, audit(CUT, HEAD, opaque=True)) == []


def test_near_miss_cut_while_not_every_backward_was_looked_at():
    assert play(LossDetached, replace(audit(CUT, HEAD), optimizers=(replace(SGD, seen=False),))) == []


# --------------------------------------------------------------------------- whole optimizers

ALONE = replace(CUT, name="encoder.weight", cut="")


def test_fires_on_an_optimizer_that_gets_no_gradient():
    other = OptimizerFacts(key=1, steps=3)
    (finding,) = play(LossDetached, replace(audit(ALONE, replace(HEAD, optimizers=(1,))), optimizers=(SGD, other)))
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 12)
    assert finding.key == "optimizer 0"
    assert finding.message == (
        "SGD made 3 steps without a gradient: none of its 1 parameters is reached by any loss (first encoder.weight)"
    )


def test_near_miss_optimizer_that_has_hardly_stepped():
    assert play(LossDetached, replace(audit(ALONE), optimizers=(replace(SGD, steps=1),))) == []


def test_near_miss_optimizer_whose_backwards_were_not_all_seen():
    assert play(LossDetached, replace(audit(ALONE), optimizers=(replace(SGD, seen=False),))) == []


def test_near_miss_optimizer_of_a_model_that_does_not_run_or_moves():
    assert play(LossDetached, audit(replace(ALONE, ran=False))) == []
    assert play(LossDetached, audit(replace(ALONE, moved=True))) == []
    assert play(LossDetached, audit(replace(ALONE, trainable=False))) == []


# --------------------------------------------------------------------------- crashes


def crash(**facts):
    (finding,) = play(LossDetached, replace(CRASH, **facts))
    assert (finding.severity, finding.key, finding.where) == ("error", "crash", LINE)
    return finding


def test_fires_on_a_crash_with_its_severing_call():
    finding = crash(source_hint=".item()", hint_where=Where("train.py", 28))
    assert finding.message == "backward() was called on a loss without a graph: .item() at line 28 cut it"
    assert finding.evidence == {"severing_call": ".item()"}


def test_fires_on_a_crash_under_no_grad():
    hinted = crash(source_hint="with torch.no_grad()", hint_where=Where("train.py", 25))
    assert hinted.message == "backward() was called on a loss without a graph: gradients were off at line 25"
    seen = crash(forward_without_grad=Where("train.py", 26))
    assert seen.message.endswith("gradients were off at line 26")
    assert seen.fix == "run the training forward outside of no_grad()"


def test_fires_on_a_crash_of_a_frozen_model():
    finding = crash(all_frozen=True, source_hint=".item()", hint_where=Where("train.py", 28))
    assert finding.cause == "every parameter of the model has requires_grad=False"
    assert "requires_grad_(True)" in finding.fix


def test_fires_on_a_crash_without_a_trace():
    assert crash().message == "backward() was called on a loss without a graph"


def test_near_miss_other_errors_of_backward():
    for message in (
        "grad can be implicitly created only for scalar outputs",
        "Trying to backward through the graph a second time",
    ):
        assert play(LossDetached, replace(CRASH, message=message)) == []


def test_near_miss_interrupted():
    assert play(LossDetached, replace(CRASH, error="KeyboardInterrupt", message="")) == []


# --------------------------------------------------------------------------- two models

ENCODER = ParameterFacts(name="enc.weight", model="enc", optimizers=(0,), reached=False, moved=False)
DECODER = ParameterFacts(name="dec.weight", model="dec", optimizers=(0,))


def test_fires_on_a_model_that_no_loss_reaches_beside_one_that_learns():
    (finding,) = play(LossDetached, audit(ENCODER, DECODER))
    assert finding.severity == "warning"
    assert finding.message == (
        "enc runs at every step, and no loss reaches any of its 1 parameters in the optimizer (first enc.weight)"
    )


def test_near_miss_models_that_rest_or_learn_in_part():
    assert play(LossDetached, audit(replace(ENCODER, ran=False), DECODER)) == []
    assert play(LossDetached, audit(replace(ENCODER, moved=True), DECODER)) == []
    assert play(LossDetached, audit(replace(ENCODER, optimizers=()), DECODER)) == []
    assert play(LossDetached, audit(ENCODER, replace(ENCODER, name="enc.bias", reached=True), DECODER)) == []


SEVERED = (
    "import torch\nfor x, y in data:\n    loss = criterion(net(x), y)\n    {}\n    loss.backward()\n    opt.step()"
)


@pytest.mark.parametrize(
    "line", ["loss = loss.detach()", "loss = torch.tensor(loss.item(), requires_grad=True)", "loss = loss.data"]
)
def test_source_cut(line):
    """Seen as a SourceParsed."""
    (finding,) = lint(LossDetached, SEVERED.format(line))
    assert finding.where.line == 5
    assert "(line 4) cut it" in finding.message


@pytest.mark.parametrize(
    "line",
    [
        "total += loss.item()",
        "value = loss.detach()",
        "if skip: loss = loss.detach()",
        "loss = torch.stack([loss]).mean()",
    ],
)
def test_near_miss_source_kept_for_logging(line):
    assert lint(LossDetached, SEVERED.format(line)) == []


UNRECORDED = """import torch
for x, y in data:
    with torch.no_grad():
        logits = net(x)
        loss = criterion(logits, y)
    loss.backward()
    opt.step()
"""


def test_source_computed_under_no_grad():
    (finding,) = lint(LossDetached, UNRECORDED)
    assert finding.where.line == 6
    assert "with torch.no_grad(): (line 3) cut it" in finding.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        loss =", "    loss ="),  # the scores alone: the loss may have other parts that learn
        ("    loss.backward", "    loss.requires_grad_()\n    loss.backward"),
        ("logits = net(x)", "torch.set_grad_enabled(True)"),
        ("    loss.backward", "    if train:\n        loss = criterion(net(x), y)\n    loss.backward"),
        ("torch.no_grad()", "no_grad()"),
    ],
)
def test_near_miss_source_computed_under_no_grad(old, new):
    assert lint(LossDetached, UNRECORDED.replace(old, new)) == []


DETACHING = """import torch
from torch import nn
class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 8)
    def forward(self, x):
        return self.fc(x)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Body()
        self.head = nn.Linear(8, 2)
    def forward(self, x):
        h = self.body(x)
        return self.head(h)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in data:
    opt.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return self.fc(x)", "h = self.fc(x)\n        return h.detach()"),
        ("h = self.body(x)", "h = self.body(x).detach()"),
        ("Body()\n", "nn.Linear(4, 8)\n"),
    ],
)
def test_source_layers_whose_results_are_detached(old, new):
    code = DETACHING.replace(old, new)
    code = code if "detach" in code else code.replace("self.head(h)", "self.head(h.detach())")
    (finding,) = lint(LossDetached, code)
    assert "every result of self.body is detached" in finding.message


INNER = DETACHING.replace(
    "        return self.fc(x)\n",
    "        return self.embed(x)\n    {head}\n    def embed(self, x):\n        return torch.relu(self.fc(x))\n",
).replace("self.body = Body()", "self.body = {body}")


@pytest.mark.parametrize(
    ("head", "body", "old", "new", "expected"),
    [
        ("@torch.no_grad()", "Body()", "", "", True),
        ("@torch.no_grad()", "nn.Sequential(nn.Dropout(0.1), Body())", "", "", True),
        ("", "Body()", "return self.embed(x)", "with torch.no_grad():\n            return self.embed(x)", True),
        ("", "Body()", "    def forward(self, x):\n        return self.e", "    @torch.no_grad()\n    def forward(self, x):\n        return self.e", True),
        ("", "Body()", "", "", False),
        ("@torch.no_grad()", "Body()", "net.parameters()", "net.head.parameters()", False),
        ("@torch.no_grad()", "Body()", "return self.embed(x)", "return self.fc(x) + self.embed(x)", False),
        ("@torch.no_grad()", "pretrained(Body())", "", "", False),
        ("", "Body()", "return self.embed(x)", "with torch.no_grad():\n            self.embed(x)\n        return self.embed(x)", False),
    ],
)  # fmt: skip
def test_source_layers_of_a_part_that_run_without_gradients(head, body, old, new, expected):
    assert bool(lint(LossDetached, INNER.format(head=head, body=body).replace(old, new))) is expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return self.fc(x)", "h = self.fc(x)\n        return h + (h.round() - h).detach()"),
        ("return self.head(h)", "return self.head(h), self.head(h.detach())"),
        ("h = self.body(x)", "h = self.body(x).detach()\n        self.aux = self.body(x)"),
        ("self.body = Body()", "self.body = Body().requires_grad_(False)  # and h.detach()"),
        ("(net.parameters(), lr=0.1)", "(net.head.parameters())  # h.detach()"),
        ("net = Net()", "net = Net()\nnet.body.load_state_dict(torch.load('b'))  # h.detach()"),
    ],
)
def test_near_miss_source_layers_that_learn_or_may_not(old, new):
    assert lint(LossDetached, DETACHING.replace(old, new)) == []


ADVERSARIES = """import torch
from torch import nn
G, D = nn.Linear(4, 4), nn.Linear(4, 1)
opt_g = torch.optim.Adam(G.parameters(), 1e-3)
for real in data:
    fake = G(torch.randn(8, 4)).detach()
    {}
    loss = -D(fake).mean()
    opt_g.zero_grad()
    loss.backward()
    opt_g.step()
"""


def test_source_generator_whose_results_are_detached():
    (finding,) = lint(LossDetached, ADVERSARIES.format("print(G(real).mean().item())"))
    assert "every result of G is detached" in finding.message


@pytest.mark.parametrize(
    "line", ["fake = G(real)", "outs.append(G(real))", "train(G)", "for p in G.parameters(): p.add_(1)"]
)
def test_near_miss_source_generator_that_learns(line):
    assert lint(LossDetached, ADVERSARIES.format(line)) == []


def test_fires_where_no_output_is_ever_used():
    (finding,) = play(LossDetached, OutputsUnused(step=24, models=("Net",), steps=24))
    assert (finding.code, finding.key) == ("O3", "unused")
    assert finding.message == "what Net returned reached the loss at none of 24 steps: no gradient came back to it"


def test_near_miss_unused_for_a_few_steps():
    assert play(LossDetached, OutputsUnused(step=24, models=("Net",), steps=4)) == []


def test_near_miss_no_model_was_named():
    assert play(LossDetached, OutputsUnused()) == []


def test_fires_where_no_gradient_finds_the_way_back_to_the_data():
    parts = ("enc.0", "enc.2", "enc.4", "enc.6")
    (finding,) = play(LossDetached, WeightsSevered(step=24, model="Net", parts=parts, tensors=8, steps=24))
    assert (finding.code, finding.severity, finding.key) == ("O3", "warning", "severed")
    assert finding.message == (
        "the output of Net changes with the weights of enc.0, enc.2, enc.4 …, and no gradient came to any of their 8 tensors "
        "in 24 steps, though an optimizer holds them"
    )


def test_near_miss_severed_for_a_few_steps():
    assert play(LossDetached, WeightsSevered(step=24, model="Net", parts=("enc",), tensors=2, steps=4)) == []


def test_near_miss_severed_in_no_step():
    assert play(LossDetached, WeightsSevered(step=24, model="Net", parts=("enc",), tensors=2)) == []


EMBEDDING = DETACHING.replace("h = self.body(x)", "h = self.embed(x)").replace(
    "net = Net()", "    def embed(self, x):\n        return self.body(x).detach()\nnet = Net()"
)


def test_source_a_method_that_detaches():
    (finding,) = lint(LossDetached, "loader = download\n" + EMBEDDING)
    assert "every result of self.body is detached" in finding.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.embed(x)\n", "self.body(x)\n"),  # the other one is for those who only want the numbers
        ("h = self.embed(x)", "h = x"),
        ("self.body(x).detach()", "self.body(x)  # no detach"),
        ("net = Net()\n", "net = load()\n"),
    ],
)
def test_near_miss_source_a_method_that_detaches(old, new):
    assert lint(LossDetached, EMBEDDING.replace(old, new)) == []


TERMS = """import torch.nn.functional as F
def depth(pred, target):
    return {}
def losses(out, y, z):
    total = F.cross_entropy(out["cls"], y) + 0.5 * depth(out["depth"], z)
    return total, {{}}
def fit(model, opt, data):
    for x, y, z in data:
        total, logs = losses(model(x), y, z)
        total.backward()
"""


@pytest.mark.parametrize("value", ["F.l1_loss(pred, target).item()", "float(F.l1_loss(pred, target))"])
def test_source_term_that_is_a_number(value):
    (finding,) = lint(LossDetached, TERMS.format(value))
    assert finding.severity == "warning"
    assert finding.where.line == 3


@pytest.mark.parametrize("value", ["F.l1_loss(pred, target)", "0.1", "(pred - target).mean().item()"])
def test_near_miss_source_term(value):
    assert lint(LossDetached, TERMS.format(value)) == []


def test_near_miss_source_term_that_is_only_shown():
    code = TERMS.format("F.l1_loss(pred, target).item()").replace("total.backward()", "logs.backward()")
    assert lint(LossDetached, code) == []


CHOSEN = """
import torch
from torch import nn
net, criterion = nn.Linear(3, 4), nn.MSELoss()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in data:
    opt.zero_grad()
    out = net(x)
    {}
    loss = criterion(guess.float(), y.float())
    loss.requires_grad = True
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    "line",
    [
        "_, guess = torch.max(out, 1)",
        "guess = out.argmax(1)",
        "guess = torch.argmax(out, dim=1)",
        "guess = out.max(1)[1]",
        "guess = torch.sigmoid(out) > 0.5",
        "guess = out.topk(1).indices.squeeze(1)",
    ],
)
def test_source_a_loss_of_what_the_model_chose(line):
    (finding,) = lint(LossDetached, CHOSEN.format(line))
    assert finding.where.line == 11
    assert "the scores themselves" in finding.fix


@pytest.mark.parametrize(
    "line",
    [
        "guess, _ = torch.max(out, 1)",
        "guess = out.max(1)[0]",
        "hard = (out > 0.5).float(); guess = hard - out.detach() + out",
        "guess = torch.sigmoid(out)",
        "guess = mine.argmax(out)(x)",
        "guess = torch.maximum(out, floor)",
        "guess, y = x > 0, out",
        "guess = x.argmax(1)",
    ],
)
def test_near_miss_source_a_loss_of_scores(line):
    assert lint(LossDetached, CHOSEN.format(line)) == []


REDUCED = """
import torch
from torch import nn
import torch.distributed as dist
def reduced(values, average=True):
    with torch.no_grad():
        names = sorted(values.keys())
        stacked = torch.stack([values[k] for k in names]) / dist.get_world_size()
        dist.all_reduce(stacked)
        return dict(zip(names, stacked))
def train(model, optimizer, loader):
    for images, targets in loader:
        terms = reduced(model(images, targets))
        loss = sum(terms.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("sum(terms.values())", "sum(term for term in terms.values())"),
        ("return dict(zip(names, stacked))", "return {k: v * 1.0 for k, v in zip(names, stacked)}"),
        ("return dict(zip(names, stacked))", "return stacked.sum()"),
        ("        return dict(zip(names, stacked))", "        return [each * 2 for each in stacked]"),
    ],
)
def test_source_terms_that_a_function_works_out_without_gradients(old, new):
    code = REDUCED.replace(old, new)
    code = code.replace("terms.values()", "terms") if "each" in new else code
    code = code.replace("sum(terms.values())", "reduced(terms)") if "stacked.sum" in new else code
    (finding,) = lint(LossDetached, code)
    assert "with torch.no_grad()" in finding.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "    with torch.no_grad():",
            "    if dist.get_world_size() < 2:\n        return values\n    with torch.no_grad():",
        ),
        ("return dict(zip(names, stacked))", "return values"),
        ("return dict(zip(names, stacked))", "return {name: value for name, value in values.items()}"),
        ("    with torch.no_grad():", "    with nullcontext():"),
        ("        loss = ", "        terms['more'] = more(model)\n        loss = "),
        ("loss = sum(terms.values())", "told, loss = sum(terms.values()), model(images, targets)"),
    ],
)
def test_near_miss_source_of_terms_without_gradients(old, new):
    assert old in REDUCED
    assert lint(LossDetached, REDUCED.replace(old, new)) == []
