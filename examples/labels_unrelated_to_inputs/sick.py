"""The inputs are put into a random order, and the labels stay where they were."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
CLASSES = 4
shapes = torch.randn(CLASSES, 40)
kinds = torch.randint(CLASSES, (1200,))
signals = shapes[kinds] + torch.randn(1200, 40)
signals = signals[torch.randperm(len(signals))]  # <- here
loader = DataLoader(TensorDataset(signals, kinds), batch_size=24, shuffle=True)

model = nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, CLASSES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

for epoch in range(3):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
