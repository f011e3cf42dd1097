"""The encoder has a lower rate than the head, by a factor of ten."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(1024, 20)
y = (x @ torch.randn(20, 5)).argmax(1)

encoder = nn.Sequential(nn.Linear(20, 64), nn.ReLU())
head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
model = nn.Sequential(encoder, head)
groups = [{"params": encoder.parameters(), "lr": 1e-4}, {"params": head.parameters(), "lr": 1e-3}]
optimizer = torch.optim.AdamW(groups)

for epoch in range(4):
    order = torch.randperm(len(x))
    for i in range(0, len(x), 32):
        batch = order[i : i + 32]
        loss = F.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
