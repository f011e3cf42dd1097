import torch
from data import blobs
from torch import nn

torch.manual_seed(1)


class Trainer:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def update(self, x, y):
        self.opt.zero_grad()
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.opt.step()
        loss.backward()
        return loss.item()


trainer = Trainer()
x, y = blobs()
for step in range(80):
    rows = torch.randperm(len(x))[:64]
    value = trainer.update(x[rows], y[rows])
print(value)
