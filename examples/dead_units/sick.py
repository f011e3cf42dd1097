"""The bias that a detector gives its last layer, given to every layer: the ReLUs after it never open."""

import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
windows = torch.randn(4096, 16)
objects = (windows @ torch.randn(16, 1) > 8).float()

model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
for layer in model:
    if isinstance(layer, nn.Linear):
        nn.init.constant_(layer.bias, -math.log(99))  # one in a hundred is an object
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(3):
    order = torch.randperm(len(windows))
    for i in range(0, len(windows), 64):
        batch = order[i : i + 64]
        loss = F.binary_cross_entropy_with_logits(model(windows[batch]), objects[batch])
        optimizer.zero_grad()
        loss.backward()  # <- here
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
