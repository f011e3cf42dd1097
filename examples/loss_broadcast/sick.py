"""Predictions [B, 1] against targets [B]: the difference is [B, B], and the model learns the mean."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x @ torch.randn(8)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(5):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = (model(xb) - yb).pow(2).mean()
        loss.backward()  # <- here
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
