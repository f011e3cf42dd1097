"""The weight decay of AdamW given to SGD, where the rate is a hundred times higher: it takes the weights away."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(1024, 20)
y = (x @ torch.randn(20, 5)).argmax(1)

model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)  # <- here

for epoch in range(5):
    order = torch.randperm(len(x))
    for i in range(0, len(x), 32):
        batch = order[i : i + 32]
        loss = F.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
