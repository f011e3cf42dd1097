import torch
from data import blobs
from torch import nn

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
with torch.no_grad():
    model[2].bias.fill_(-8.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x, y = blobs()
for step in range(200):
    rows = torch.randint(len(x), (64,))
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
