import torch
from data import blobs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
loader = DataLoader(TensorDataset(*blobs(2048)), batch_size=8, shuffle=True)
ACCUMULATE = 8
for epoch in range(3):
    for index, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        (loss / ACCUMULATE).backward()
        if (index + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(epoch, loss.item())
