from dataclasses import replace

import pytest

from flatline.events import OptimizerFacts, OptimizerStepped, StepMissing, Where
from flatline.rules.optimization.update_order_broken import UpdateOrderBroken
from flatline.testing import lint, play

GOOD = ("zero", "forward", "backward")
BETWEEN = ("forward", "backward", "zero")
ADAM = OptimizerFacts(key=7, name="Adam")
FIRST = OptimizerStepped(
    step=1, index=1, where=Where("train.py", 25), optimizer=ADAM, tape=("zero", "forward"), gradients="none",
    backward_ever=False,
)  # fmt: skip


def steps(*tapes, first=1, **facts):
    known = {"where": Where("train.py", 25), "optimizer": ADAM} | facts
    return [OptimizerStepped(step=i, index=i, tape=tape, **known) for i, tape in enumerate(tapes, first)]


# --------------------------------------------------------------------------- never zeroed


def test_fires_on_gradients_that_are_never_zeroed():
    (finding,) = play(UpdateOrderBroken, *steps(*[GOOD[1:]] * 4, leftover=True))
    assert finding.severity == "error"
    assert (finding.step, finding.count) == (2, 3)
    assert finding.where == Where("train.py", 25)
    assert finding.key == "unzeroed 7"
    assert finding.message == "the gradients of the step before were still there when Adam step 2 added to them"
    assert finding.fix == "call optimizer.zero_grad() once per step, before backward()"


def test_fires_on_a_closure_that_does_not_zero():
    (finding,) = play(UpdateOrderBroken, *steps(GOOD[1:] * 5, closure=True, leftover=True))
    assert finding.message.startswith("the gradients of the closure's previous run were still there")
    assert finding.fix == "call optimizer.zero_grad() first thing in the closure"


def test_near_miss_canonical_order():
    assert play(UpdateOrderBroken, *steps(*[GOOD] * 5)) == []


def test_near_miss_zeroed_after_the_step():
    assert play(UpdateOrderBroken, *steps(GOOD[1:], *[GOOD] * 5)) == []


def test_near_miss_zeroed_by_hand():
    assert play(UpdateOrderBroken, *steps(*[GOOD[1:]] * 5)) == []


def test_near_miss_accumulation():
    assert play(UpdateOrderBroken, *steps(*[("zero", *GOOD[1:] * 4)] * 5)) == []


def test_near_miss_gradients_of_before_the_first_step():
    assert play(UpdateOrderBroken, *steps(GOOD[1:], leftover=True)) == []


def test_near_miss_closure_that_zeroes():
    assert play(UpdateOrderBroken, *steps(*[GOOD * 5] * 3, closure=True)) == []


# --------------------------------------------------------------------------- zeroed in between


def test_fires_on_zeroing_between_backward_and_step():
    (finding,) = play(UpdateOrderBroken, *steps(*[BETWEEN] * 3, gradients="none", zero_where=Where("train.py", 24)))
    assert finding.severity == "error"
    assert (finding.step, finding.count) == (2, 2)
    assert finding.key == "between 7"
    assert finding.message == ("zero_grad() (line 24) stands between backward() and step(): Adam found no gradient")
    assert finding.fix == "move zero_grad() before backward()"
    assert finding.evidence == {"gradients": "none"}


def test_fires_on_zeroing_with_zeros():
    (finding,) = play(UpdateOrderBroken, *steps(*[BETWEEN] * 2, gradients="zero"))
    assert finding.message == "zero_grad() stands between backward() and step(): Adam found only zeros"


def test_fires_on_gradients_wiped_by_hand():
    (finding,) = play(UpdateOrderBroken, *steps(*[BETWEEN] * 2, gradients="none", wiped_by_hand=True))
    assert finding.message == "the gradients are zeroed by hand between backward() and step(): Adam found no gradient"
    assert finding.fix == "move what zeroes them before backward()"


def test_near_miss_zeroed_in_between_once():
    assert play(UpdateOrderBroken, *steps(BETWEEN, gradients="none"), *steps(*[GOOD] * 5, first=2)) == []


def test_near_miss_gradients_that_are_zero_themselves():
    assert play(UpdateOrderBroken, *steps(*[GOOD] * 5, gradients="zero")) == []


def test_near_miss_zeroed_in_between_for_other_parameters():
    assert play(UpdateOrderBroken, *steps(*[BETWEEN] * 5)) == []


def test_near_miss_no_backward_reached_its_parameters():
    assert play(UpdateOrderBroken, *steps(*[("zero", "forward")] * 5, gradients="none")) == []
    assert play(UpdateOrderBroken, *steps(*[BETWEEN] * 5, gradients="none", backward_ever=False)) == []


# --------------------------------------------------------------------------- step before backward


def test_fires_on_a_step_before_backward():
    later = steps(*[("backward", "zero", "forward")] * 2, first=2, gradients="none")
    (finding,) = play(UpdateOrderBroken, FIRST, *later)
    assert finding.severity == "error"
    assert (finding.step, finding.count) == (2, 2)
    assert finding.key == "before 7"
    assert finding.message == "step() runs before this batch's backward(): Adam found no gradient"
    assert finding.fix == "move step() behind backward()"


def test_fires_on_gradients_of_the_batch_before():
    (finding,) = play(UpdateOrderBroken, FIRST, *steps(*[("zero", "backward", "forward")] * 2, first=2))
    assert finding.message == (
        "step() runs before this batch's backward(): Adam applied the gradients of the batch before"
    )


def test_near_miss_a_forward_pass_for_logging_after_backward():
    assert play(UpdateOrderBroken, *steps(*[(*GOOD, "forward")] * 5)) == []


def test_near_miss_empty_first_step():
    assert play(UpdateOrderBroken, FIRST, *steps(*[GOOD] * 5, first=2)) == []


def test_near_miss_optimizers_that_alternate():
    other = replace(ADAM, key=8)
    events = []
    for first, second in zip(
        steps(*[("forward", "backward", *GOOD)] * 5), steps(*[("forward", "backward", *GOOD)] * 5), strict=True
    ):
        events += [first, replace(second, optimizer=other)]
    assert play(UpdateOrderBroken, *events) == []


# --------------------------------------------------------------------------- no step


def test_fires_where_step_is_missing():
    event = StepMissing(where=Where("train.py", 24), optimizer=ADAM, cycles=12)
    (finding,) = play(UpdateOrderBroken, event)
    assert finding.severity == "error"
    assert finding.where == Where("train.py", 24)
    assert finding.key == "missing 7"
    assert finding.message == (
        "gradients were computed and zeroed again 12 times, and Adam.step() was never called in between"
    )
    assert finding.fix == "call optimizer.step() after backward(), with its parentheses"
    assert finding.evidence == {"cycles": 12}


def test_fires_where_nothing_is_zeroed_either():
    (finding,) = play(UpdateOrderBroken, StepMissing(cycles=12, zeroed=False))
    assert finding.message == "gradients were computed 12 times, and SGD.step() was never called in between"


@pytest.mark.parametrize("tape", [("zero", *GOOD * 12), ("forward", "backward", "zero") * 12 + GOOD])
def test_near_miss_attacks_and_saliency_maps_between_steps(tape):
    assert play(UpdateOrderBroken, *steps(*[tape] * 3)) == []


LOOP = """
import torch
net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def run(loader, opt):
    for x, y in loader:
        {}
run(data, opt)
"""


def looped(*lines):
    return LOOP.format("\n        ".join(lines))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ("loss = net(x).mean()", "loss.backward()", "opt.zero_grad()", "opt.step()"),
            "zero_grad() (line 8) stands between",
        ),
        (("opt.zero_grad()", "opt.step()", "net(x).mean().backward()"), "stands between"),
        (("net(x).mean().backward()", "net.zero_grad()", "opt.step()"), "stands between"),
        (("loss = net(x).mean()", "loss.backward()", "opt.step()"), "zeroed nowhere"),
        (("opt.zero_grad()", "net(x).mean().backward()", "opt.step"), "without parentheses"),
    ],
)
def test_source_order(lines, said):
    """Seen as a SourceParsed."""
    assert said in lint(UpdateOrderBroken, looped(*lines))[0].message


def test_source_step_missing():
    (finding,) = lint(UpdateOrderBroken, looped("opt.zero_grad()", "net(x).mean().backward()").replace("step", ""))
    assert "step() is nowhere" in finding.message


def test_source_zeroed_per_epoch_only():
    code = looped("net(x).mean().backward()", "opt.step()").replace("    for x", "    opt.zero_grad()\n    for x")
    (finding,) = lint(UpdateOrderBroken, code)
    assert "only outside of it" in finding.message


@pytest.mark.parametrize(
    "lines",
    [
        ("opt.zero_grad()", "net(x).mean().backward()", "opt.step()"),
        ("net(x).mean().backward()", "opt.step()", "opt.zero_grad()"),
        ("net(x).mean().backward()", "if i % 4 == 3:", "    opt.step()", "    opt.zero_grad()"),
        ("for p in net.parameters():", "    p.grad = None", "net(x).mean().backward()", "opt.step()"),
        ("update(net, opt, x)", "opt.zero_grad()", "compute_backward(x)", "opt.step()"),
        ("opt.zero_grad()", "opt.step(closure)"),
        ("net(x).mean().backward()", "opt.zero_grad()", "p.grad.copy_(total)", "opt.step()"),
        ("net(x).mean().backward()", "opt.zero_grad()", "set_gradients(net, total)", "opt.step()"),
        ("net(x).mean().backward()", "opt.zero_grad()", "for p in net.parameters(): p.grad = g", "opt.step()"),
        ("opt.zero_grad()", "net(x).mean().backward()", "critic.zero_grad()", "opt.step()"),
        ("opt.zero_grad()", "accelerator.backward(net(x).mean())", "opt.step()"),
        ("opt.zero_grad()", "other.zero_grad()", "net(x).mean().backward()", "other.step()", "opt.step()"),
    ],
)
def test_near_miss_source_healthy_orders(lines):
    assert lint(UpdateOrderBroken, looped(*lines)) == []


@pytest.mark.parametrize("more", ["model.zero_grad = opt.zero_grad", "from helpers import zero_grad"])
def test_near_miss_source_zeroed_in_a_way_that_is_not_followed(more):
    assert lint(UpdateOrderBroken, looped("net(x).mean().backward()", "opt.step()") + more) == []


CLOSURE = """
import torch
opt = torch.optim.LBFGS(net.parameters())
for x, y in data:
    def closure():
        {}
        loss = criterion(net(x), y)
        loss.backward()
        return loss
    opt.step(closure)
"""


def test_source_closure_that_zeroes_nothing():
    (finding,) = lint(UpdateOrderBroken, CLOSURE.format("pass"))
    assert finding.where.line == 7


@pytest.mark.parametrize("first", ["opt.zero_grad()", "for p in net.parameters(): p.grad = None"])
def test_near_miss_source_closure_that_zeroes(first):
    assert lint(UpdateOrderBroken, CLOSURE.format(first)) == []


def test_source_zeroed_by_hand_between():
    lines = ("net(x).mean().backward()", "for p in net.parameters():", "    p.grad = None", "opt.step()")
    (finding,) = lint(UpdateOrderBroken, looped(*lines))
    assert "what empties p.grad" in finding.message


@pytest.mark.parametrize(
    "lines",
    [
        ("net(x).mean().backward()", "for p in other.parameters():", "    p.grad = None", "opt.step()"),
        ("for g in opt.param_groups:", "    for p in g['params']:", "        if p.grad is not None:", "            p.grad.zero_()",
         "net(x).mean().backward()", "opt.step()"),
    ],
)  # fmt: skip
def test_near_miss_source_zeroed_by_hand(lines):
    assert lint(UpdateOrderBroken, looped(*lines)) == []


PAIR = """import torch
from torch import nn
G, D = nn.Linear(4, 4), nn.Linear(4, 1)
opt_g = torch.optim.Adam(G.parameters(), 1e-3)
opt_d = torch.optim.Adam(D.parameters(), 1e-3)
{}
for real in data:
    fake = G(torch.randn(8, 4))
    {}
    loss_d = (D(fake.detach()) - D(real)).mean()
    loss_d.backward()
    {}
    opt_g.zero_grad()
    loss_g = -D(fake).mean()
    loss_g.backward()
    opt_g.step()
"""


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [("opt_d.zero_grad()", "pass", "asked for zero_grad() only"), ("pass", "opt_d.step()", "zeroes those of others")],
)
def test_source_one_of_two_optimizers(first, last, said):
    (finding,) = lint(UpdateOrderBroken, PAIR.format("", first, last))
    assert said in finding.message


@pytest.mark.parametrize(
    ("before", "first", "last"),
    [
        ("", "opt_d.zero_grad()", "opt_d.step()"),
        ("", "D.zero_grad()", "opt_d.step()"),
        ("", "nn.ModuleList([G, D]).zero_grad()", "opt_d.step()"),
        ("", "for p in D.parameters(): p.grad = None", "opt_d.step()"),
        ("", "for o in (opt_g, opt_d): o.zero_grad()", "opt_d.step()"),
        ("", "pass", "scaler.step(opt_d)"),
        ("", "opt_d.zero_grad()", "update(opt_d)"),
        ("opt_all = torch.optim.SGD([*G.parameters(), *D.parameters()], 0.1)", "opt_d.zero_grad()", "opt_all.step()"),
        ("D = GAN(G)\nopt_d = torch.optim.Adam(D.parameters(), 1e-3)", "opt_d.zero_grad()", "opt_d.step()"),
    ],
)
def test_near_miss_source_one_of_two_optimizers(before, first, last):
    assert lint(UpdateOrderBroken, PAIR.format(before, first, last)) == []


def test_source_loop_in_a_comprehension():
    code = looped("net(x).mean().backward()", "opt.step()").replace("for x, y in data:", "def turn(x):")
    (finding,) = lint(UpdateOrderBroken, code + "\nlosses = [turn(x) for x in data]\n")
    assert "zeroed nowhere" in finding.message


def test_source_the_word_step_is_no_step():
    code = looped("opt.zero_grad()", "net(x).mean().backward()").replace("opt.step()", "")
    assert len(lint(UpdateOrderBroken, f"# step by step\nfor step in range(3): pass\n{code}")) == 1
    assert lint(UpdateOrderBroken, f"{code}\ngetattr(opt, 'step')()") == []


TABLE = """import torch
from torch import nn
def make(a, b):
    return {{"a": torch.optim.Adam(a.parameters()), "b": torch.optim.Adam({}.parameters())}}
def run():
    a, b = nn.Linear(4, 4), nn.Linear(4, 1)
    opts = make(a, b)
    for x, y in data:
        for opt in opts.values():
            opt.zero_grad()
        (b(a(x)) - y).pow(2).mean().backward()
        {}
"""


def test_source_one_of_a_dictionary_of_optimizers():
    (finding,) = lint(UpdateOrderBroken, TABLE.format("b", "opts['b'].step()"))
    assert "opts['a'] is asked for zero_grad() only" in finding.message


@pytest.mark.parametrize(
    ("second", "steps"),
    [
        ("b", "opts['a'].step()\n        opts['b'].step()"),
        ("b", "opts['b'].step()\n        for o in opts.values(): o.step()"),
        ("b", "opts['b'].step()\n        update(opts)"),
        ("b", "opts['b'].step()\n        opts[name].step()"),
        ("b", "opts['b'].step()\n        if late: opts['a'].step()"),
        ("a", "opts['b'].step()"),
    ],
)
def test_near_miss_source_a_dictionary_of_optimizers(second, steps):
    assert lint(UpdateOrderBroken, TABLE.format(second, steps)) == []


def test_near_miss_source_an_optimizer_that_was_built_two_calls_away():
    code = """import torch
from torch import nn
def build():
    net = nn.Linear(3, 3)
    return net, torch.optim.Adam(net.parameters())
def update(opt, loss):
    loss.backward()
    opt.step()
    return loss.item()
def run(seed):
    net, opt = build()
    for x in data:
        opt.zero_grad()
        update(opt, net(x).mean())
    return net
def all_of():
    nets = [run(seed) for seed in range(3)]
    return nets
for k in range(3):
    all_of()
"""
    assert lint(UpdateOrderBroken, code) == []


# --------------------------------------------------------------------------- a loop that steps by hand

BY_HAND = OptimizerFacts(key=7, name="a step by hand", by_hand=True)


def test_fires_on_gradients_that_a_step_by_hand_never_zeroes():
    (finding,) = play(UpdateOrderBroken, *steps(*[GOOD[1:]] * 4, leftover=True, optimizer=BY_HAND))
    assert (
        finding.message == "the gradients of the step before were still there when the backward of step 2 added to them"
    )
    assert (
        finding.fix
        == "call model.zero_grad(), or set p.grad = None for every parameter, once per step, before backward()"
    )


def test_near_miss_gradients_that_a_step_by_hand_leaves_empty():
    assert not play(UpdateOrderBroken, *steps(*[BETWEEN] * 4, gradients="none", backward_ever=True, optimizer=BY_HAND))


def test_near_miss_forward_before_a_step_by_hand_is_seen():
    assert not play(UpdateOrderBroken, *steps(*[("backward", "forward")] * 4, optimizer=BY_HAND))
