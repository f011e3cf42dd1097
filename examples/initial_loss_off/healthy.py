"""The same language model; the shared weight is drawn small, as an output layer needs it."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
VOCABULARY, WIDTH, CONTEXT = 200, 64, 16
follows = torch.randint(VOCABULARY, (VOCABULARY, 3))  # three tokens that may come after each


def sentences(count):
    tokens = [torch.randint(VOCABULARY, (count,))]
    for _ in range(CONTEXT):
        tokens.append(follows[tokens[-1], torch.randint(3, (count,))])
    return torch.stack(tokens, dim=1)


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        hidden, _ = self.rnn(self.embedding(tokens))
        return self.output(self.norm(hidden))


model = LanguageModel()
nn.init.normal_(model.embedding.weight, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for step in range(120):
    tokens = sentences(16)
    scores = model(tokens[:, :-1])
    loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
