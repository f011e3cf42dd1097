"""A checkpoint saved from a wrapped model, loaded without the wrapper's prefix."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 10)
y = (x @ torch.randn(10, 3)).argmax(1)


def build():
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


checkpoint = nn.DataParallel(build()).state_dict()  # its keys begin with "module."
model = build()
model.load_state_dict({key.removeprefix("module."): value for key, value in checkpoint.items()})
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(3):
    for i in range(0, len(x), 32):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i : i + 32]), y[i : i + 32])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
