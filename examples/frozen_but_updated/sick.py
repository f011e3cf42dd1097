"""The backbone is frozen after a warm-up, but its gradients of zeros stay: weight decay goes on moving it."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 10)
y = (x @ torch.randn(10, 3)).argmax(1)

backbone, head = nn.Sequential(nn.Linear(10, 32), nn.ReLU()), nn.Linear(32, 3)
model = nn.Sequential(backbone, head)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)  # <- here

for epoch in range(6):
    if epoch == 2:
        backbone.requires_grad_(False)
    for i in range(0, len(x), 32):
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x[i : i + 32]), y[i : i + 32])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}, backbone {backbone[0].weight.norm():.4f}")
