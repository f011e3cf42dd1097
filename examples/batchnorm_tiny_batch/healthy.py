"""Batches of two with a normalisation that looks at one sample only."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
scans = torch.randn(256, 30)
volume = (scans @ torch.randn(30, 1)) / 5
loader = DataLoader(TensorDataset(scans, volume), batch_size=2, shuffle=True)  # more does not fit into memory

model = nn.Sequential(
    nn.Linear(30, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 1)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(3):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(xb), yb)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
