import torch
from data import blobs
from torch import nn

torch.manual_seed(1)
layers = [nn.Linear(16, 32), nn.Sigmoid()]
for _ in range(9):
    layers += [nn.Linear(32, 32), nn.Sigmoid()]
model = nn.Sequential(*layers, nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = blobs()
for step in range(200):
    rows = torch.randint(len(x), (64,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
print(loss.item())
