"""Samples stored class by class, read in that order."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
CLASSES, EACH = 6, 160
prototypes = torch.randn(CLASSES, 1, 12, 12)
labels = torch.arange(CLASSES).repeat_interleave(EACH)  # as a folder for each class is read
images = prototypes[labels] + 0.8 * torch.randn(len(labels), 1, 12, 12)
loader = DataLoader(TensorDataset(images, labels), batch_size=32)

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 36, CLASSES)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for epoch in range(3):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()  # <- here
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
