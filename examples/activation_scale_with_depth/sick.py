"""Ten layers with weights of std 0.01: nothing of the input is left at the output."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(1024, 32)
y = (x @ torch.randn(32, 6)).argmax(1)

layers = [nn.Linear(32, 128), nn.ReLU()]
for _ in range(8):
    layers += [nn.Linear(128, 128), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(128, 6))
for module in model:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
        nn.init.zeros_(module.bias)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

for epoch in range(5):
    order = torch.randperm(len(x))
    for i in range(0, len(x), 64):
        batch = order[i : i + 64]
        loss = F.cross_entropy(model(x[batch]), y[batch])  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
