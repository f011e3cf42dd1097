import torch
from data import curve
from torch import nn

torch.manual_seed(1)
x, y = curve(features=2)
model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(20):
    for rows in torch.randperm(len(x)).split(16):
        optimizer.zero_grad()
        loss = (model(x[rows]).squeeze(1) - y[rows]).square().mean()
        loss.backward()
        optimizer.step()
print(loss.item())
