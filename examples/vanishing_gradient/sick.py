"""Eight layers of sigmoids, each of which takes at least three quarters of the gradient away."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(1024, 24)
y = (x @ torch.randn(24, 4)).argmax(1)

layers = [nn.Linear(24, 48)]
for _ in range(8):
    layers += [nn.Linear(48, 48), nn.Sigmoid()]
model = nn.Sequential(*layers, nn.Linear(48, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(4):
    order = torch.randperm(len(x))
    for i in range(0, len(x), 32):
        batch = order[i : i + 32]
        loss = F.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <- here
    print(f"epoch {epoch}: loss {loss.item():.3f}")
