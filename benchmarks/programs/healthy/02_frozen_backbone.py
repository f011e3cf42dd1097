import torch
from data import images
from torch import nn

torch.manual_seed(1)
x, y = images()
body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
body.requires_grad_(False).eval()
head = nn.Linear(32, 4)
optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
for step in range(200):
    rows = torch.randint(len(x), (32,))
    with torch.no_grad():
        features = body(x[rows])
    loss = nn.functional.cross_entropy(head(features), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
