import math

import torch
from data import blobs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
EPOCHS, WARM = 10, 32
loader = DataLoader(TensorDataset(*blobs()), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
total = EPOCHS * len(loader)


def factor(step):
    return step / WARM if step < WARM else 0.5 * (1 + math.cos(math.pi * (step - WARM) / (total - WARM)))


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
for epoch in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
    print(epoch, loss.item())
