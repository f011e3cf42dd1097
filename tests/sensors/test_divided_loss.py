"""A loss divided by the backwards of a step: who takes its number for the loss?"""

from __future__ import annotations

import linecache

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import ScaledLossRead, Where
from flatline.sensors.divided_loss import divided_loss_read

TRAIN = """def train(loader, model, opt, steps, log, losses, np):
    total = seen = count = 0.0
    for i, (x, y) in enumerate(loader):
        loss = model(x, y)
        {before}
        {divide}
        loss.backward()
        {inside}
        {more}
        if (i + 1) % steps == 0:
            opt.step()
            {step}
    {after}
def main():
    {main}
"""
DIVIDE = "loss = loss / steps"
SUM = "total += loss.item()"


@pytest.fixture
def line(tmp_path):
    def find(**parts):
        names = ("before", "divide", "inside", "more", "step", "after", "main")
        text = TRAIN.format(**{name: parts.get(name, DIVIDE if name == "divide" else "pass") for name in names})
        file = tmp_path / "train.py"
        file.write_text(text, encoding="utf-8")
        linecache.checkcache()
        _, where = divided_loss_read(Where(str(file), 7, "train"))
        return where.line if where else None

    return find


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"inside": SUM, "after": "return total / len(loader)"}, 13),
        ({"inside": "total += float(loss.detach())", "after": "print('loss', total / len(loader))"}, 13),
        ({"divide": "loss /= steps", "inside": SUM, "more": "count += 1", "after": "return total / max(1, count)"}, 13),
        ({"inside": SUM, "step": "log(total / (i + 1))"}, 12),
        ({"inside": SUM, "after": "total /= len(loader)"}, 13),
        ({"before": "batches = len(loader)", "inside": SUM, "after": "return total / batches"}, 13),
        (
            {"inside": "total += loss.item() * x.size(0)", "more": "seen += x.size(0)", "after": "mean = total / seen"},
            13,
        ),
        ({"inside": "total += loss.item() * len(x)", "after": "return total / len(loader.dataset)"}, 13),
        ({"inside": "losses.append(loss.item())", "after": "return np.mean(losses)"}, 13),
        ({"inside": "losses.append(loss.item())", "after": "return sum(losses) / len(losses)"}, 13),
        ({"divide": "loss = model(x, y) / 4", "inside": "print(f'{loss.item():.3f}')"}, 8),
        ({"step": "log.add_scalar('loss', loss.item(), i)"}, 12),
    ],
)
def test_shares_that_are_averaged_once_more(line, parts, told):
    assert line(**parts) == told


@pytest.mark.parametrize(
    "parts",
    [
        {"before": SUM, "after": "return total / len(loader)"},
        {"divide": "part = loss / steps", "inside": SUM, "after": "return total / len(loader)"},
        {"inside": "total += loss.item() * steps", "after": "return total / len(loader)"},
        {"inside": SUM, "after": "return total * steps / len(loader)"},
        {"inside": SUM, "after": "return total / len(loader) * steps"},
        {"inside": SUM, "after": "return total / (len(loader) // steps)"},
        {"inside": SUM, "step": "count += 1", "after": "return total / count"},
        {"inside": SUM, "step": "print(total); total = 0.0", "after": "return total / len(loader)"},
        {"inside": SUM, "after": "mean = total / len(loader); mean *= steps"},
        {"inside": SUM, "after": "total /= len(loader); print(total * steps)"},
        {"inside": SUM, "after": "total /= len(loader) / steps"},
        {"inside": SUM, "after": "total /= updates"},
        {"before": "updates = len(loader) // steps", "inside": SUM, "after": "return total / updates"},
        {"inside": SUM, "after": "total *= len(loader)"},
        {"inside": SUM, "after": "return total / len(loader)", "main": "print(steps * train())"},
        {"inside": SUM, "after": "return total / len(loader)", "main": "mean = train(); log(mean * cfg.steps)"},
        {"inside": "losses.append(loss.item())", "after": "return sum(losses)"},
        {"inside": "losses.append(loss.item())", "after": "losses = regrouped(losses)\n    return np.mean(losses)"},
        {"before": "out = heads[i](x)", "divide": "loss = model(out, y) / len(heads)", "inside": "print(loss.item())"},
        {"inside": "losses.append(loss.item() * steps)", "after": "return np.mean(losses)"},
        {"inside": "print(f'{loss.item() * steps:.3f}')"},
        {"inside": "loss = loss * steps", "more": SUM, "after": "return total / len(loader)"},
        {"inside": "if loss.item() > 9: print('large')"},
    ],
)
def test_near_miss_sums_of_shares_and_the_loss_itself(line, parts):
    assert line(**parts) is None


def train(share, backwards, tmp_path):
    file = tmp_path / "run.py"
    file.write_text(
        f"total = 0.0\nfor i, x in enumerate(data):\n    loss = net(x).square().mean()\n    loss = loss / {share}\n"
        f"    loss.backward()\n    total += loss.item()\n    if (i + 1) % {backwards} == 0:\n        opt.step()\n"
        "        opt.zero_grad()\nmean = total / len(data)\n"
    )
    linecache.checkcache()
    net = nn.Linear(3, 1)
    names = {"net": net, "opt": torch.optim.SGD(net.parameters(), lr=0.01), "data": torch.randn(12, 5, 3)}
    return seen(lambda: exec(compile(file.read_text(), str(file), "exec"), names), ScaledLossRead)


def test_the_division_is_that_by_the_backwards_of_a_step(tmp_path):
    (read,) = train(4, 4, tmp_path)
    assert (read.statement, read.scale, read.backwards, read.where.line) == ("mean = total / len(data)", 0.25, 4, 10)


@pytest.mark.parametrize(("share", "backwards"), [(4, 1), (10, 4)])
def test_near_miss_another_weight_of_the_loss(tmp_path, share, backwards):
    assert train(share, backwards, tmp_path) == []
