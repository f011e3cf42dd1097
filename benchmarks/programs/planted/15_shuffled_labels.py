import torch
from data import blobs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
x, y = blobs()
x = x[torch.randperm(len(x))]
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
for epoch in range(12):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
