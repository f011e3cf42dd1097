"""The entries of a checkpoint are picked by names that it does not have, so the model is given its own weights."""

import io

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(640, 16)
y = (x @ torch.randn(16, 4)).argmax(1)


def build():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


file = io.BytesIO()
torch.save(nn.DataParallel(build()).state_dict(), file)  # saved by an earlier run, from a wrapped model
file.seek(0)

model = build()
checkpoint = torch.load(file)
own = model.state_dict()
fitting = {name: value for name, value in checkpoint.items() if name in own}
own.update(fitting)
model.load_state_dict(own)  # <- here
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(3):
    for i in range(0, len(x), 32):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i : i + 32]), y[i : i + 32])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
