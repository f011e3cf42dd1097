import torch
from data import blobs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 64), nn.Linear(64, 4)])

    def forward(self, x):
        hidden = torch.tanh(self.layers[0](x))
        return torch.softmax(self.layers[1](hidden), dim=-1)


model = Classifier()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(5):
    for x, y in DataLoader(TensorDataset(*blobs()), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
