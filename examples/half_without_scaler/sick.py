"""Autocast to float16 without a GradScaler: most of the gradient falls under the smallest number there is."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
clean = torch.rand(96, 1, 24, 24)
noisy = clean + 0.1 * torch.randn_like(clean)

model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(4):
    order = torch.randperm(len(clean))
    for i in range(0, len(clean), 16):
        batch = order[i : i + 16]
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(noisy[batch]), clean[batch])
        optimizer.zero_grad()
        loss.backward()  # <- here
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
