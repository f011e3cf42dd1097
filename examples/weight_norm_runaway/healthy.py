"""A penalty on the size of the weights."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(1024, 10)
y = (x @ torch.randn(10, 1)).sin()

model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for epoch in range(12):
    order = torch.randperm(len(x))
    for i in range(0, len(x), 32):
        batch = order[i : i + 32]
        size = sum(parameter.pow(2).sum() for parameter in model.parameters())
        loss = F.mse_loss(model(x[batch]), y[batch]) + 1e-4 * size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
