"""Validation in eval mode, training in train mode."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(768, 20)
y = (x @ torch.randn(20, 4)).argmax(1)
train_loader = DataLoader(TensorDataset(x[:512], y[:512]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(x[512:], y[512:]), batch_size=64)

model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(4):
    model.train()
    for xb, yb in train_loader:
        optimizer.zero_grad()
        F.cross_entropy(model(xb), yb).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(xb).argmax(1) == yb).sum().item() for xb, yb in val_loader)
    print(f"epoch {epoch}: accuracy {right / 256:.2f}")
