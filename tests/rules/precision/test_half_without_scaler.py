from dataclasses import replace

import pytest

from flatline.events import PrecisionObserved, Where
from flatline.rules.precision.half_without_scaler import HalfWithoutScaler
from flatline.testing import lint, play

HALF = PrecisionObserved(step=3, where=Where("train.py", 9), dtype="float16", loss=1.0, elements=1000, zeros=100)
COARSE = replace(HALF, coarse=450, lowest=5)


def found(event, times=3):
    return [f for f in play(HalfWithoutScaler, *[event] * times) if f.severity != "hint"]


def test_fires_on_subnormal_gradients():
    (finding,) = found(COARSE)
    assert (finding.code, finding.severity) == ("FP1", "warning")
    assert "10% of them are exactly 0, and 50% of the others are below 6.1e-5" in finding.message
    assert "GradScaler" in finding.fix


def test_error_where_the_distribution_is_cut_off():
    (finding,) = found(replace(COARSE, zeros=850, coarse=150, lowest=130))
    assert finding.severity == "error"


def test_error_where_every_gradient_is_zero():
    (finding,) = found(replace(HALF, zeros=1000))
    assert finding.severity == "error"
    assert finding.message.endswith("every one of them is exactly 0")


def test_half_parameters_need_another_fix():
    (finding,) = found(replace(COARSE, parameters="float16"))
    assert "keep the parameters in float32" in finding.fix


def test_hint_where_gradients_are_large_enough():
    (finding,) = play(HalfWithoutScaler, *[HALF] * 3)
    assert finding.severity == "hint"


def test_near_miss_scaled():
    assert play(HalfWithoutScaler, *[replace(COARSE, scaled=True)] * 5) == []


def test_near_miss_bfloat16_and_float32():
    for dtype in ("bfloat16", "float32"):
        assert play(HalfWithoutScaler, *[replace(COARSE, dtype=dtype)] * 5) == []


def test_near_miss_zeros_of_dead_units_only():
    assert found(replace(HALF, zeros=900)) == []


def test_near_miss_once():
    assert [f.severity for f in play(HalfWithoutScaler, COARSE, HALF, COARSE, HALF)] == ["hint"]
    assert found(replace(HALF, zeros=1000, loss=0.0)) == []


AUTOCAST = "import torch\nfor x, y in data:\n    with {}:\n        loss = criterion(net(x), y)\n    {}.backward()\n    opt.step()"


@pytest.mark.parametrize(
    "context", ["torch.autocast('cuda', dtype=torch.float16)", "torch.cuda.amp.autocast()", "torch.autocast('cuda')"]
)
def test_source_no_scaler(context):
    """Seen as a SourceParsed."""
    (finding,) = lint(HalfWithoutScaler, AUTOCAST.format(context, "loss"))
    assert finding.where.line == 3


@pytest.mark.parametrize(
    ("context", "loss"),
    [
        ("torch.autocast('cuda', dtype=torch.bfloat16)", "loss"),
        ("torch.autocast('cpu')", "loss"),
        ("torch.autocast('cuda', dtype=dtype)", "loss"),
        ("torch.cuda.amp.autocast(enabled=amp)", "loss"),
        ("torch.cuda.amp.autocast()", "scaler.scale(loss)"),
    ],
)
def test_near_miss_source_other_dtype_or_scaled(context, loss):
    assert lint(HalfWithoutScaler, AUTOCAST.format(context, loss)) == []


def test_source_context_by_name():
    code = (
        "def run(data):\n    amp = torch.autocast('cuda', dtype={})\n"
        + AUTOCAST.format("amp", "loss").partition("\n")[2]
    )
    body = "\n".join(f"    {line}" if n > 1 else line for n, line in enumerate(code.split("\n")))
    code = "import torch\n" + body
    assert len(lint(HalfWithoutScaler, code.format("torch.float16"))) == 1
    assert lint(HalfWithoutScaler, code.format("torch.bfloat16")) == []


COMPUTED = """
import torch
from torch import nn
class Engine:
    def __init__(self):
        self.net, self.old = nn.Linear(3, 3), nn.Linear(3, 3)
        self.opt = torch.optim.Adam(self.net.parameters())
    def loss_of(self, x, y):
        with {}:
            out = {}
        return criterion(out, y)
    def fit(self):
        for x, y in data:
            loss = self.loss_of(x, y)
            self.opt.zero_grad()
            {}.backward()
            self.opt.step()
"""


def test_source_loss_that_a_method_computes():
    (finding,) = lint(HalfWithoutScaler, COMPUTED.format("torch.cuda.amp.autocast()", "self.net(x)", "loss"))
    assert finding.where.line == 8


@pytest.mark.parametrize(
    ("context", "out", "loss"),
    [
        ("torch.autocast('cuda', dtype=torch.bfloat16)", "self.net(x)", "loss"),
        ("torch.cuda.amp.autocast(), torch.no_grad()", "self.net(x)", "loss"),
        ("torch.cuda.amp.autocast()", "self.old(x)", "loss"),  # no optimizer was given this one
        ("torch.cuda.amp.autocast()", "self.net(x)", "self.scaler.scale(loss)"),
        ("torch.cuda.amp.autocast()", "self.net(x)", "(1024 * loss)"),
        ("torch.cuda.amp.autocast()", "head(self.net(x).detach())", "loss"),
    ],
)
def test_near_miss_source_loss_that_a_method_computes(context, out, loss):
    assert lint(HalfWithoutScaler, COMPUTED.format(context, out, loss)) == []


def test_source_second_backward_of_a_loop():
    code = """
import torch
from torch import nn
net = nn.Linear(8, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def plain(x, y):
    return criterion(net(x), y)
def mixed(x, y):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(net(x), y)
    return loss
def fit(loader):
    for x, y in loader:
        opt.zero_grad()
        first = plain(x, y)
        first.backward()
        second = mixed(x, y)
        second.backward()
        opt.step()
"""
    (finding,) = lint(HalfWithoutScaler, code)
    assert finding.where.line == 8


@pytest.mark.parametrize("loss", ["(loss * scale)", "(loss * 1024.0)", "(loss * (1024.0 if cuda else 1.0))"])
def test_near_miss_source_scaled_by_hand(loss):
    assert lint(HalfWithoutScaler, AUTOCAST.format("torch.cuda.amp.autocast()", loss)) == []


@pytest.mark.parametrize("loss", ["(loss * 0.5)", "(loss / 4)", "(0.1 * loss)"])
def test_source_weighted_loss(loss):
    assert len(lint(HalfWithoutScaler, AUTOCAST.format("torch.cuda.amp.autocast()", loss))) == 1


TEACHER = """
import torch
from torch import nn
net, teacher = nn.Linear(4, 2), nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in data:
    {block}
        soft = {soft}
    opt.zero_grad()
    loss = nn.functional.kl_div({scores}.log_softmax(1), soft.float(), reduction="batchmean")
    loss.backward()
    opt.step()
"""
FLOAT16 = "torch.autocast('cuda', dtype=torch.float16)"


@pytest.mark.parametrize(
    ("block", "soft"),
    [
        (f"with torch.no_grad(), {FLOAT16}:", "teacher(x).softmax(1)"),
        (f"with {FLOAT16}:", "teacher(x).softmax(1)"),
        (f"with {FLOAT16}:", "net(x).softmax(1).detach()"),
        (f"with {FLOAT16}:", "teachers[0](x)"),
    ],
)
def test_near_miss_source_a_teacher_in_float16(block, soft):
    assert lint(HalfWithoutScaler, TEACHER.format(block=block, soft=soft, scores="net(x)")) == []


def test_source_a_model_in_float16_whose_loss_is_computed_outside():
    assert len(lint(HalfWithoutScaler, TEACHER.format(block=f"with {FLOAT16}:", soft="net(x)", scores="soft"))) == 1
    given = TEACHER.replace("net, teacher = nn.Linear(4, 2), nn.Linear(4, 2)", "").replace("net.par", "built.par")
    assert len(lint(HalfWithoutScaler, given.format(block=f"with {FLOAT16}:", soft="model(x)", scores="soft"))) == 1
    assert lint(HalfWithoutScaler, given.format(block=f"with {FLOAT16}:", soft="one(x)", scores="other(x)")) == []


SWITCHED = """
import argparse, torch
from torch import nn
p = argparse.ArgumentParser()
p.add_argument("--fp16", action="store_true")
args = p.parse_args()
SCALE = 1024.0
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
{refused}
for x, y in data:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16, enabled=args.fp16):
        loss = nn.functional.cross_entropy(net(x), y)
    {back}
    opt.step()
"""


@pytest.mark.parametrize(
    ("refused", "back", "found"),
    [
        ("pass", "loss.backward()", 1),
        ("if args.fp16: print('float16')", "loss.backward()", 1),
        ("if args.fp16: raise SystemExit('use bf16')", "loss.backward()", 0),
        ("if args.fp16: p.error('use bf16')", "loss.backward()", 0),
        ("pass", "loss *= SCALE; loss.backward()", 0),
        ("pass", "loss.mul(SCALE).backward()", 0),
        ("pass", "loss.backward(gradient=SCALE)", 0),
    ],
)
def test_source_switches_that_are_refused_and_losses_scaled_by_hand(refused, back, found):
    assert len(lint(HalfWithoutScaler, SWITCHED.format(refused=refused, back=back))) == found


@pytest.mark.parametrize(("scale", "found"), [("1024", 0), ("0.5", 1)])
def test_source_a_criterion_that_scales(scale, found):
    code = SWITCHED.replace("nn.functional.cross_entropy(net", "criterion(net").replace(
        "SCALE = 1024.0", f"criterion = lambda out, y: {scale} * nn.functional.cross_entropy(out, y)"
    )
    assert len(lint(HalfWithoutScaler, code.format(refused="pass", back="loss.backward()"))) == found
