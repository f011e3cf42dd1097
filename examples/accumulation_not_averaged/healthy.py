"""Eight micro-batches are accumulated, each with an eighth of its loss."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1024, 10)
y = (x @ torch.randn(10, 3)).argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
accumulate = 8

for epoch in range(3):
    for i, (xb, yb) in enumerate(loader):
        loss = F.cross_entropy(model(xb), yb)
        (loss / accumulate).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
