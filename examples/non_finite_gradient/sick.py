"""A distance is a square root, and the derivative of a square root at 0 is infinite."""

import torch
from torch import nn

torch.manual_seed(0)
photos = torch.randn(400, 24)
person = torch.randint(20, (400,))
model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def contrastive(left, right, same):
    distance = (left - right).pow(2).sum(1).sqrt()
    return torch.where(same, distance.pow(2), (1 - distance).clamp(min=0).pow(2)).mean()


for step in range(80):
    a, b = torch.randint(400, (64,)), torch.randint(400, (64,))  # now and then a photo meets itself
    loss = contrastive(model(photos[a]), model(photos[b]), person[a] == person[b])
    optimizer.zero_grad()
    loss.backward()  # <- here
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
