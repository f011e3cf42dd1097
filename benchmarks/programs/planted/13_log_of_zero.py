import torch
from data import blobs
from torch import nn

torch.manual_seed(1)
x, y = blobs(classes=2)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
for step in range(400):
    rows = torch.randint(len(x), (64,))
    p = torch.sigmoid(20 * model(x[rows]).squeeze(1))
    target = y[rows].float()
    loss = -(target * torch.log(p) + (1 - target) * torch.log(1 - p)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
