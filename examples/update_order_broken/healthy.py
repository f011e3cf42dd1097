"""zero_grad, backward, step: in this order."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 10)
y = x @ torch.randn(10, 1) + 0.1 * torch.randn(512, 1)

model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loss_fn = nn.MSELoss()


def train_step(xb, yb):
    optimizer.zero_grad()
    loss = loss_fn(model(xb), yb)
    loss.backward()
    optimizer.step()
    return loss.item()


for epoch in range(5):
    losses = [train_step(x[i : i + 32], y[i : i + 32]) for i in range(0, len(x), 32)]
    print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")
