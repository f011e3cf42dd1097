from dataclasses import replace

import pytest

from flatline.events import (
    BackwardFacts,
    ClipFacts,
    GroupFacts,
    LayerNumbers,
    LossesRead,
    NumbersSampled,
    OptimizerFacts,
    OptimizerStepped,
    RunEnded,
    Where,
)
from flatline.rules.optimization.accumulation_not_averaged import AccumulationNotAveraged
from flatline.testing import lint, play

BACKWARD = BackwardFacts(where=Where("train.py", 20))
MICRO = ("batch", "forward", "backward")


def windows(*backwards, steps=3, tape=None, **facts):
    tape = tape or ("zero", *MICRO * len(backwards))
    return [OptimizerStepped(step=i, index=i, tape=tape, backwards=backwards, **facts) for i in range(1, steps + 1)]


def test_fires_on_micro_batches_that_add_up():
    (finding,) = play(AccumulationNotAveraged, *windows(*[BACKWARD] * 4))
    assert finding.severity == "warning"
    assert finding.step == 2
    assert finding.count == 2
    assert finding.where == Where("train.py", 20)
    assert finding.message == ("4 backwards of a mean loss add up before each step of SGD, and none is divided by 4")
    assert "the learning rate is 4 times higher" in finding.cause
    assert finding.fix == "divide before backward: (loss / 4).backward()"
    assert finding.evidence == {"micro_batches": 4}


def test_fires_without_a_data_loader():
    assert len(play(AccumulationNotAveraged, *windows(BACKWARD, BACKWARD, tape=("zero", *MICRO[1:] * 2)))) == 1


def test_adam_hides_it():
    lion = OptimizerFacts(name="Lion", adaptive=True)
    (finding,) = play(AccumulationNotAveraged, *windows(BACKWARD, BACKWARD, optimizer=lion))
    assert finding.severity == "hint"
    assert "Lion divides that out, until gradients are clipped" in finding.cause


@pytest.mark.parametrize(
    ("clips", "decay", "decoupled", "severity"),
    [
        ((ClipFacts(),), 0.0, False, "warning"),
        ((), 0.01, False, "warning"),
        ((), 0.01, True, "hint"),
    ],
)
def test_clipping_and_decay_in_the_gradient_do_not_hide_it(clips, decay, decoupled, severity):
    groups = (GroupFacts(weight_decay=decay),)
    adam = OptimizerFacts(name="Adam", adaptive=True, decoupled=decoupled, groups=groups)
    (finding,) = play(AccumulationNotAveraged, *windows(BACKWARD, BACKWARD, optimizer=adam, clips=clips))
    assert finding.severity == severity
    assert ("Adam hides it" in finding.cause) is (severity == "warning")


def test_each_optimizer_on_its_own():
    first, second = (windows(BACKWARD, BACKWARD, steps=2, optimizer=OptimizerFacts(key=key)) for key in (1, 2))
    found = play(AccumulationNotAveraged, first[0], second[0])
    assert found == []
    assert [f.key for f in play(AccumulationNotAveraged, *first, *second)] == ["1", "2"]


def test_near_miss_one_backward():
    assert play(AccumulationNotAveraged, *windows(BACKWARD)) == []


def test_near_miss_divided():
    assert play(AccumulationNotAveraged, *windows(*[replace(BACKWARD, factor=0.25)] * 4)) == []


def test_near_miss_sums():
    assert play(AccumulationNotAveraged, *windows(*[replace(BACKWARD, mean=False)] * 4)) == []


def test_near_miss_gradients_divided_by_hand():
    assert play(AccumulationNotAveraged, *windows(*[BACKWARD] * 4, rescaled_by_hand=True)) == []


def test_near_miss_several_losses_one_by_one():
    other = replace(BACKWARD, where=Where("train.py", 21))
    assert play(AccumulationNotAveraged, *windows(BACKWARD, other)) == []
    assert play(AccumulationNotAveraged, *windows(*[replace(BACKWARD, plain=False)] * 2)) == []
    assert play(AccumulationNotAveraged, *windows(*[replace(BACKWARD, where=None)] * 2)) == []


def test_near_miss_one_line_for_several_losses():
    heads = [replace(BACKWARD, reached=which) for which in (1, 2, 3)]
    assert play(AccumulationNotAveraged, *windows(*heads)) == []
    signs = [replace(BACKWARD, factor=which) for which in (1.0, -1.0)]
    assert play(AccumulationNotAveraged, *windows(*signs)) == []
    real_and_fake = [replace(BACKWARD, one_target=True)] * 2
    assert play(AccumulationNotAveraged, *windows(*real_and_fake)) == []


def test_near_miss_one_forward_for_both():
    tape = ("zero", "batch", "forward", "backward", "backward")
    assert play(AccumulationNotAveraged, *windows(BACKWARD, BACKWARD, tape=tape)) == []


def test_near_miss_real_and_fake_half_of_one_batch():
    tape = ("zero", "batch", "forward", "backward", "forward", "backward")
    assert play(AccumulationNotAveraged, *windows(BACKWARD, BACKWARD, tape=tape)) == []


def test_near_miss_a_batch_that_was_left_out():
    """Its gradient was not finite: no step, and zeroed with the next batch."""
    assert (
        play(AccumulationNotAveraged, *windows(BACKWARD, BACKWARD, tape=("zero", *MICRO, "clip", "zero", *MICRO))) == []
    )


def test_fires_when_the_batch_is_drawn_before_zeroing():
    tape = ("batch", "zero", "forward", "backward", *MICRO)
    assert len(play(AccumulationNotAveraged, *windows(BACKWARD, BACKWARD, tape=tape))) == 1


def test_near_miss_one_window():
    assert play(AccumulationNotAveraged, *windows(BACKWARD, BACKWARD, steps=1), *windows(BACKWARD)) == []


def test_near_miss_not_zeroed_is_another_rule():
    assert play(AccumulationNotAveraged, *windows(BACKWARD, BACKWARD, leftover=True)) == []


def test_near_miss_closure():
    assert play(AccumulationNotAveraged, *windows(BACKWARD, BACKWARD, closure=True)) == []


ACCUMULATED = """
import torch
import torch.nn.functional as F
opt = torch.optim.SGD(net.parameters(), 0.1)
for i, (x, y) in enumerate(data):
    loss = F.cross_entropy(net(x), y{}){}
    loss.backward()
    {}
"""
SOMETIMES = "if i % 4 == 3:\n        opt.step()\n        opt.zero_grad()"


def test_source_undivided():
    """Seen as a SourceParsed."""
    (finding,) = lint(AccumulationNotAveraged, ACCUMULATED.format("", "", SOMETIMES))
    assert finding.where.line == 6


@pytest.mark.parametrize(
    ("reduction", "divided", "end"),
    [
        ("", " / 4", SOMETIMES),
        (", reduction='sum'", "", SOMETIMES),
        ("", "", "opt.step()\n    opt.zero_grad()"),
        ("", "\n    loss /= 4", SOMETIMES),
        ("", "", "opt.zero_grad()\n    if i % 4 == 3:\n        opt.step()"),
    ],
)
def test_near_miss_source_averaged(reduction, divided, end):
    assert lint(AccumulationNotAveraged, ACCUMULATED.format(reduction, divided, end)) == []


SCALED = """
import torch
import torch.nn as nn
from torch.cuda.amp import GradScaler, autocast
def fit(data, net, criterion, opt, scaler):
    for i, (x, y) in enumerate(data):
        with autocast():
            loss = criterion(net(x), y){divided}
        scaler.scale(loss).backward()
        if i % 4 == 3:
            scaler.step(opt)
            {update}
            opt.zero_grad()
if __name__ == "__main__":
    net = nn.Linear(4, 1)
    fit(data, net, nn.{criterion}, torch.optim.SGD(net.parameters(), 0.1), {scaler})
"""


@pytest.mark.parametrize(
    ("divided", "criterion", "update", "scaler", "expected"),
    [
        ("", "SmoothL1Loss()", "scaler.update()", "GradScaler()", 1),
        ("", "SmoothL1Loss()", "scaler.update()", "made[0]", 1),  # that it is one is seen by what it does
        ("", "SmoothL1Loss()", "other.update()", "GradScaler()", 0),
        ("", "SmoothL1Loss()", "scaler.update(opt)", "GradScaler()", 0),
        ("", "SmoothL1Loss(reduction='sum')", "scaler.update()", "GradScaler()", 0),
        (" / 4", "SmoothL1Loss()", "scaler.update()", "GradScaler()", 0),
    ],
)
def test_source_scaled(divided, criterion, update, scaler, expected):
    """The update of a scaler trains nothing; that of anything else might."""
    code = SCALED.format(divided=divided, criterion=criterion, update=update, scaler=scaler)
    assert len(lint(AccumulationNotAveraged, code)) == expected


COUNTED = """
import torch
import torch.nn.functional as F
from tqdm import tqdm
import torchmetrics
def fit(data, net, opt):
    bar = {made}
    for i, (x, y) in enumerate(data):
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        {told}
        if i % 4 == 3:
            opt.step()
            opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("made", "told", "expected"),
    [
        ("tqdm(total=len(data))", "bar.update(1)", 1),
        ("torchmetrics.MeanMetric()", "bar.update(loss.item())", 1),
        ("tqdm(total=9) if data else unknown(opt)", "bar.update(1)", 0),
        ("unknown(opt)", "bar.update(1)", 0),
        ("tqdm(total=len(data))", "bar.fit(opt)", 0),
    ],
)
def test_source_counted(made, told, expected):
    """A progress bar and a metric train nothing."""
    assert len(lint(AccumulationNotAveraged, COUNTED.format(made=made, told=told))) == expected
    entered = COUNTED.format(made=made, told=told).replace(f"bar = {made}", f"with {made} as bar:\n        pass")
    assert len(lint(AccumulationNotAveraged, entered)) == expected


def test_source_clipped_sum():
    clipped = SOMETIMES.replace(
        "opt.step()", "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n        opt.step()", 1
    )
    assert len(lint(AccumulationNotAveraged, ACCUMULATED.format("", "", clipped))) == 1


PARTS = """
import torch
import torch.nn.functional as F
opt = torch.optim.SGD(net.parameters(), 0.1)
def loss_of(x, y):
    return F.cross_entropy(net(x), y)
for xs, ys in data:
    opt.zero_grad()
    for x, y in zip(xs.split(8), {}):
        loss = {}
        {}
    opt.step()
"""


@pytest.mark.parametrize("loss", ["loss_of(x, y)", "F.cross_entropy(net(x), y)"])
def test_source_parts_of_a_batch(loss):
    (finding,) = lint(AccumulationNotAveraged, PARTS.format("ys.split(8)", loss, "loss.backward()"))
    assert "on the mean of each part of a batch" in finding.message
    assert finding.where.line == 10


@pytest.mark.parametrize(
    ("parts", "loss", "back"),
    [
        ("ys.split(8)", "loss_of(x, y) / 4", "loss.backward()"),
        ("ys.split(8)", "loss_of(x, y)", "(loss * len(x) / len(xs)).backward()"),
        ("ys.split(8)", "loss_of(x, y)", "loss = loss / 4\n        loss.backward()"),
        ("ys.split(8)", "F.cross_entropy(net(x), y, reduction='sum')", "loss.backward()"),
        ("ys.split(8, dim=1)", "loss_of(x, y)", "loss.backward()"),
        ("ys.split(8)", "loss_of(x, y)", "loss.backward()\n        opt.step()"),
        ("ys.split(8)", "loss_of(x, y)", "loss.backward()\n    for p in net.parameters(): p.grad /= 4"),
        ("tasks", "loss_of(x, y)", "loss.backward()"),
        ("ys.split(8)", "unknown(x, y)", "loss.backward()"),
    ],
)
def test_near_miss_source_parts_of_a_batch(parts, loss, back):
    assert lint(AccumulationNotAveraged, PARTS.format(parts, loss, back)) == []


def test_near_miss_update_by_hand_may_divide():
    by_hand = OptimizerFacts(name="a step by hand", by_hand=True)
    assert not play(AccumulationNotAveraged, *windows(*[BACKWARD] * 4, optimizer=by_hand))


READY = """
from transformers import {kind}
import torch
model = {kind}.from_pretrained("roberta-base")
opt = torch.optim.AdamW(model.parameters())
for i, batch in enumerate(loader):
    {loss}
    loss.backward()
    if (i + 1) % 8 == 0:
        opt.step()
        opt.zero_grad()
"""
KIND = "AutoModelForSequenceClassification"


@pytest.mark.parametrize(
    "loss", ["loss = model(**batch).loss", "out = model(**batch); loss = out.loss", "loss = model(x, labels=y)[0]"]
)
def test_source_the_mean_of_a_model_of_transformers(loss):
    assert len(lint(AccumulationNotAveraged, READY.format(kind=KIND, loss=loss))) == 1


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        (KIND, "loss = model(**batch).loss / 8"),
        (KIND, "loss = model(**batch, num_items_in_batch=n).loss"),
        (KIND, "loss = model(**batch)[0]"),
        ("AutoModel", "loss = model(**batch).loss"),
    ],
)
def test_near_miss_source_a_model_that_may_not_average(kind, loss):
    assert lint(AccumulationNotAveraged, READY.format(kind=kind, loss=loss)) == []


HOOKED = """
import torch
from torch import nn
net, criterion = nn.Linear(3, 3), nn.CrossEntropyLoss()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
{before}
for i, (x, y) in enumerate(loader):
    loss = criterion(net(x), y)
    loss.backward({given})
    if (i + 1) % 8 == 0:
        {then}
        opt.step()
        opt.zero_grad()
"""


def test_source_a_plain_sum_of_means():
    assert len(lint(AccumulationNotAveraged, HOOKED.format(before="", given="", then="pass"))) == 1


@pytest.mark.parametrize(
    ("before", "given", "then"),
    [
        ("for p in net.parameters(): p.register_hook(lambda g: g / 8)", "", "pass"),
        ("", "gradient=torch.tensor(1 / 8)", "pass"),
        ("", "torch.tensor(0.125)", "pass"),
        ("", "", "for p in net.parameters(): p.grad /= 8"),
        ("", "", "for p in net.parameters(): p.grad.div_(8)"),
    ],
)
def test_near_miss_source_gradients_that_are_divided(before, given, then):
    assert lint(AccumulationNotAveraged, HOOKED.format(before=before, given=given, then=then)) == []


SAMPLE = replace(BACKWARD, mean=False)
SGD = OptimizerFacts(name="SGD")


def of_samples(*, each=SAMPLE, count=16, update=0.05, losses=(1.5, 19.7), optimizer=SGD):
    """Windows of single samples, the first steps, and what came of the loss."""
    yield from windows(*[each] * count, optimizer=optimizer)
    for step in range(1, 17):
        layers = (LayerNumbers(name="a.weight", update_ratio=update),)
        yield NumbersSampled(step=step, index=step, layers=layers, optimizer=optimizer)
    values = (losses[0], *(value for value in losses[1:] for _ in range(79)))
    steps, rates = tuple(range(1, len(values) + 1)), (0.05,) * len(values)
    yield LossesRead(step=len(values), optimizer=optimizer, steps=steps, losses=values, rates=rates)
    yield RunEnded(step=len(values), how="finished", loss=losses[-1], first_loss=losses[0])


def test_fires_on_single_samples_that_add_up_to_steps_that_are_too_large():
    (finding,) = play(AccumulationNotAveraged, *of_samples())
    assert (finding.severity, finding.where) == ("warning", Where("train.py", 20))
    assert finding.message == (
        "the gradients of 16 single samples add up before each step of SGD, and nothing is divided by 16; the first steps changed "
        "the weights by 5.0% each (healthy: about 0.1 %), and the loss went from 1.5 to 19.7"
    )


def test_fires_on_single_samples_whose_sum_threw_the_weights_away():
    (finding,) = play(AccumulationNotAveraged, *of_samples(losses=(1.3, 0.2, 12.0, 1.1)))
    assert finding.message.endswith("and the loss went from 1.3 by way of 12 to 1.1")
    assert "W1" in finding.consequences


@pytest.mark.parametrize(
    "change",
    [
        {"losses": (1.3, 0.2, 12.0, 0.4)},  # it found back
        {"losses": (1.3, 0.2, 4.0, 1.1)},  # a rough time
        {"losses": (1.3, 0.2, 12.0, 1.1), "update": 2e-3},
        {"losses": (-1.3, 12.0, -1.3)},  # a reward
        {"losses": (1.5, 0.2)},  # the rate was chosen for the sum
        {"losses": (0.83, 1.03)},  # it stands at the noise
        {"update": 2e-3},  # it does not learn, but not for this
        {"each": replace(SAMPLE, factor=1 / 16)},
        {"count": 4},
        {"each": replace(SAMPLE, losses=("mse_loss",))},
        {"optimizer": OptimizerFacts(name="Adam", adaptive=True)},
    ],
)
def test_near_miss_of_single_samples(change):
    """NumbersSampled, LossesRead and RunEnded have to say that it went wrong."""
    assert play(AccumulationNotAveraged, *of_samples(**change)) == []
