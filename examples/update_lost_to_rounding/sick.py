"""Weights in bfloat16 and small steps: most updates are rounded away."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(1024, 32)
y = (x @ torch.randn(32, 4)).argmax(1)


def build():
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))


model = build().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

for epoch in range(5):
    order = torch.randperm(len(x))
    for i in range(0, len(x), 32):
        batch = order[i : i + 32]
        loss = F.cross_entropy(model(x[batch].bfloat16()).float(), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <- here
    print(f"epoch {epoch}: loss {loss.item():.4f}")
