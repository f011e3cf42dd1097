import torch
from data import blobs
from torch import nn

torch.manual_seed(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.body(x))


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
net.head = nn.Linear(64, 4)  # four classes here, not ten
x, y = blobs()
for step in range(100):
    rows = torch.randint(len(x), (32,))
    loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
