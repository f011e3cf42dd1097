"""One matrix of every low-rank adapter starts at random, the other at zero."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(640, 32)
y = (x @ torch.randn(32, 5)).argmax(1)


class LowRank(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + 2.0 * x @ self.down.T @ self.up.T


model = nn.Sequential(LowRank(nn.Linear(32, 64)), nn.ReLU(), LowRank(nn.Linear(64, 64)), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-3)

for epoch in range(4):
    for i in range(0, len(x), 32):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i : i + 32]), y[i : i + 32])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
