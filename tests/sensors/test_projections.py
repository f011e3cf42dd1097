"""Random features that a forward draws anew."""

import linecache

import pytest
import torch
from torch import nn
from watching import seen

from flatline.events import ProjectionDrawn

MODULE = """
class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.m, self.sigma = 6, 8, 1.5
        self.register_buffer("fixed", torch.randn(6, 8))

    def forward(self, x):
        {draw}
        {use}
"""
WAVES = "return torch.cat([torch.cos(x @ b), torch.sin(x @ b)], -1)"
NAMED = "p = 6.28 * torch.matmul(x, b); return torch.cat([p.sin(), p.cos()], -1)"


def told(tmp_path, draw, use=WAVES):
    file = tmp_path / "features.py"
    file.write_text(MODULE.format(draw=draw, use=use))
    linecache.checkcache()
    names = {"nn": nn, "torch": torch, "__name__": "features"}
    exec(compile(file.read_text(), str(file), "exec"), names)

    def run():
        model = nn.Sequential(names["Features"](), nn.Linear(16 if "cat" in use else 8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(32, 6)).square().mean().backward()
            optimizer.step()

    return seen(run, ProjectionDrawn)


@pytest.mark.parametrize(
    ("draw", "use"),
    [
        ("b = torch.randn(self.n, self.m) * self.sigma", WAVES),
        ("b = self.sigma * torch.randn((6, 8)).to(x.device)", NAMED),
        ("b = torch.normal(0.0, 1.0, (6, 8)); b = b", "b = torch.randn(6, 8, device=x.device); " + WAVES),
    ],
)
def test_drawn_at_each_call(tmp_path, draw, use):
    (event,) = told(tmp_path, draw, use)
    assert event.module == "Features"
    assert event.statement.startswith("b = ")
    assert event.where.function == "forward"


@pytest.mark.parametrize(
    ("draw", "use"),
    [
        ("b = self.fixed", WAVES),
        ("b = torch.randn(x.shape[1], self.m)", WAVES),
        ("n = x.shape[1]; b = torch.randn(n, 8)", WAVES),
        ("b = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))", WAVES),
        ("torch.manual_seed(0); b = torch.randn(6, 8)", WAVES),
        ("b = torch.randn(self.n, self.m)", "return x @ self.fixed + (x @ b).argmax(-1, keepdim=True)"),  # buckets
        ("b = self.fixed\n        if self.training:\n            b = torch.randn(6, 8)", WAVES),
        ("b = 0.1 * torch.randn_like(x)", "return torch.sin((x + b) @ self.fixed)"),
    ],
)
def test_near_miss(tmp_path, draw, use):
    assert told(tmp_path, draw, use) == []
