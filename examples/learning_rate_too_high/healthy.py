"""The same regression with Adam at the rate that it is made for."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
rooms = torch.randn(1024, 12)
price = (rooms @ torch.randn(12, 1)).tanh() + 0.1 * torch.randn(1024, 1)

model = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(5):
    order = torch.randperm(len(rooms))
    for i in range(0, len(rooms), 32):
        batch = order[i : i + 32]
        loss = F.mse_loss(model(rooms[batch]), price[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
