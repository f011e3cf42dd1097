"""A loss times the scale of GradScaler: who reads its number?"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import ScaledLossRead, Where
from flatline.sensors.scaled_loss import scaled_loss_read

LOGGING = """def train(scaler, loss):
    {first}
    {second}
    {third}
"""


@pytest.mark.parametrize(
    ("first", "second", "third", "line"),
    [
        ("loss = scaler.scale(loss)", "loss.backward()", "total += loss.item()", 4),
        ("big = scaler.scale(loss)", "print(float(big))", "pass", 3),
        ("big = scaler.scale(loss)", "big.backward()", "print(loss.item())", None),
        ("big = scaler.scale(loss)", "log(big.item() / scaler.get_scale())", "pass", None),
        ("loss = scaler.scale(loss)", "loss = loss.mean()", "log(loss.item())", None),
        ("scaler.scale(loss).backward()", "log(loss.item())", "pass", None),
        ("loss = scaler.scale(loss)", "loss /= 1024", "log(loss.item())", None),
        ("if amp: loss = scaler.scale(loss)", "else: log(loss.item())", "pass", None),
    ],
)
def test_reading_the_scaled_loss(tmp_path, first, second, third, line):
    file = tmp_path / "train.py"
    file.write_text(LOGGING.format(first=first, second=second, third=third), encoding="utf-8")
    _, where = scaled_loss_read(Where(str(file), 2, "train"))
    assert (where.line if where else None) == line


RETURNED = """def step(scaler, loss):
    scaled = scaler.scale(loss)
    {returns}
def unscaled(value):
    return value / 65536.0  # the scale
def train():
    {call}
    {then}
"""


@pytest.mark.parametrize(
    ("returns", "call", "then", "line"),
    [
        ("return scaled.item()", "loss = step(s, x)", "running += loss", 8),
        ("return scaled.item()", "running += step(s, x) * len(x)", "pass", 7),
        ("return scaled", "loss = step(s, x)", "history.append(loss.item())", 8),
        ("return scaled.detach()", "total += step(s, x).item()", "pass", 7),
        ("return scaled.item(), acc", "loss, acc = step(s, x)", "print(f'{loss:.4f}')", 8),
        ("return {'loss': float(scaled)}", "out = step(s, x)", "log.append(out['loss'])", 8),
        ("return Out(loss=scaled.item())", "out = step(s, x)", "table[0] = out.loss", 8),
        ("return scaled.item()", "loss = step(s, x)", "print(loss); print(s.get_scale())", 8),
        ("return scaled.item()", "loss = step(s, x); k = s.get_scale()", "print(loss)", None),
        ("return scaled.item(), acc", "loss, acc = step(s, x)", "print(acc)", None),
        ("return scaled.item()", "step(s, x)", "pass", None),
        ("return scaled.item()", "loss = step(s, x)", "if isfinite(loss): pass", None),
        ("return scaled.item()", "loss = step(s, x) / 65536", "running += loss", None),
        ("return scaled.item()", "loss = step(s, x)", "running += loss / s.get_scale()", None),
        ("return scaled.item()", "loss = step(s, x)", "running += unscaled(loss)", None),
        ("return scaled.item()", "loss = step(s, x)", "unscaled(loss)", None),
        ("return scaled", "loss = step(s, x)", "loss.backward()", None),
        ("return loss.item()", "loss = step(s, x)", "running += loss", None),
        ("return scaled.item() / 65536", "loss = step(s, x)", "running += loss", None),
        ("return unscaled(scaled)", "loss = step(s, x)", "running += loss.item()", None),
    ],
)
def test_reading_the_scaled_loss_that_is_returned(tmp_path, returns, call, then, line):
    file = tmp_path / "train.py"
    file.write_text(RETURNED.format(returns=returns, call=call, then=then), encoding="utf-8")
    _, where = scaled_loss_read(Where(str(file), 2, "step"), [Where(str(file), 7, "train")])
    assert (where.line if where else None) == line


class Stepper:
    """A trainer whose step returns the number of the scaled loss."""

    def __init__(self):
        self.model = nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu")

    def step(self):
        self.optimizer.zero_grad()
        loss = self.scaler.scale(self.model(torch.randn(4, 8)).square().mean())
        loss.backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()

    def fit(self, history):
        for _ in range(3):
            value = self.step()
            history.append(value)


def test_a_step_that_returns_the_scaled_loss():
    (event,) = seen(lambda: Stepper().fit([]), ScaledLossRead)
    assert event.statement == "history.append(value)"
    assert event.where.function == "fit"
