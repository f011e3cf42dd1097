"""A tagger for sentences of different lengths: the loss is averaged over the padding, too."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(0)
PAD, WORDS, TAGS = 0, 50, 6
sentences = [torch.randint(1, WORDS, (int(n),)) for n in torch.randint(4, 20, (256,))]
tags = [1 + words % (TAGS - 1) for words in sentences]


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32, padding_idx=PAD)
        self.rnn = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, TAGS)

    def forward(self, words):
        return self.head(self.rnn(self.embed(words))[0])


model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss()

for epoch in range(3):
    for i in range(0, 256, 16):
        words, gold = (pad_sequence(part[i : i + 16], batch_first=True) for part in (sentences, tags))
        optimizer.zero_grad()
        loss = criterion(model(words).flatten(0, 1), gold.flatten())
        loss.backward()  # <- here
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
