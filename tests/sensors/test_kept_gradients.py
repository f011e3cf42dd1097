"""Scripts that take gradients for themselves."""

from __future__ import annotations

import pytest

from flatline.events import Where
from flatline.sensors.kept_gradients import keeps_gradients

KEPT = (
    "total += p.grad",
    "fisher[name] += p.grad ** 2 / n",
    "kept.append(p.grad.clone())",
    "g = torch.cat([p.grad.flatten() for p in net.parameters()])",
    "for t, g in zip(total, [p.grad for p in net.parameters()]): t += g",
    "total.add_(p.grad)",
    "def gradients(net):\n    return [p.grad.detach() for p in net.parameters()]",
    "self.memory[i]: Tensor = p.grad",
)
LEFT = (
    "loss.backward()",
    "p.grad = None",
    "p.grad.zero_()",
    "p.grad.clamp_(-1, 1)",
    "p.grad.data.mul_(0.5)",
    "norm = p.grad.norm()",
    "print(p.grad)",
    "total += p.grad.norm().item() ** 2",
    "missing = p.grad is None",
    "if p.grad is not None: p.grad.div_(n)",
    "seen = [p for p in net.parameters() if p.grad is not None]",
    "broken(:",
)


@pytest.mark.parametrize("code", KEPT)
def test_kept(tmp_path, code):
    (tmp_path / "train.py").write_text(code)
    assert keeps_gradients(None, Where(str(tmp_path / "train.py"), 1))


@pytest.mark.parametrize("code", LEFT)
def test_near_miss(tmp_path, code):
    (tmp_path / "train.py").write_text(code)
    assert not keeps_gradients(Where(str(tmp_path / "train.py"), 1))


def test_no_place():
    assert not keeps_gradients(None)
