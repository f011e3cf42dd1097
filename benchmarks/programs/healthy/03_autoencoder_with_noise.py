import torch
from data import blobs
from torch import nn

torch.manual_seed(1)


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        drawn = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()  # in eval mode, too
        return self.decoder(drawn), mean, log_variance


def objective(model, x):
    rebuilt, mean, log_variance = model(x)
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
    return ((rebuilt - x) ** 2).sum(1).mean() + divergence


x, _ = blobs()
model = Vae()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(15):
    model.train()
    for rows in torch.randperm(448).split(32):
        optimizer.zero_grad()
        loss = objective(model, x[rows])
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(epoch, loss.item(), objective(model, x[448:]).item())
