import torch
from data import blobs
from torch import nn

torch.manual_seed(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU())
        self.decoder = nn.Linear(64, 4)

    def forward(self, x):
        features = self.encoder(x)
        return self.decoder(features.detach())


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x, y = blobs()
for step in range(100):
    rows = torch.randint(len(x), (32,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
print(loss.item())
