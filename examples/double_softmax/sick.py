"""A classifier that ends in a softmax, trained with a loss that applies softmax itself."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(1024, 20)
y = (x @ torch.randn(20, 5)).argmax(1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, x):
        return self.body(x).softmax(dim=1)


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()

for epoch in range(5):
    for i in range(0, len(x), 32):
        optimizer.zero_grad()
        loss = criterion(model(x[i : i + 32]), y[i : i + 32])
        loss.backward()  # <- here
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
