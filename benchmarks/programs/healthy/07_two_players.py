import torch
from data import blobs
from torch import nn

torch.manual_seed(1)
x, _ = blobs(classes=2)
maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))
judge = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
for_maker = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
for_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
loss = nn.BCEWithLogitsLoss()
for step in range(300):
    real, fake = x[torch.randint(len(x), (32,))], maker(torch.randn(32, 4))
    for_judge.zero_grad()
    seen = loss(judge(real), torch.ones(32, 1)) + loss(judge(fake.detach()), torch.zeros(32, 1))
    seen.backward()
    for_judge.step()
    for_maker.zero_grad()
    fooled = loss(judge(fake), torch.ones(32, 1))
    fooled.backward()
    for_maker.step()
print(seen.item(), fooled.item())
