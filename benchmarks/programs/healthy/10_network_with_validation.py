import torch
from data import images
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
x, y = images(384)
parts = [TensorDataset(x[:320], y[:320]), TensorDataset(x[320:], y[320:])]
loader, others = DataLoader(parts[0], 32, shuffle=True), DataLoader(parts[1], 32)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 4)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(6):
    model.train()
    for pictures, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(pictures).argmax(1) == labels).sum().item() for pictures, labels in others)
    print(epoch, loss.item(), right / len(parts[1]))
