import torch
from data import text
from torch import nn

torch.manual_seed(1)


class Writer(nn.Module):
    def __init__(self, words=32, width=48):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.place = nn.Embedding(64, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, tokens):
        length = tokens.shape[1]
        hidden = self.embed(tokens) + self.place(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.out(self.block(hidden, src_mask=mask, is_causal=True))


model = Writer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = text()
for step in range(120):
    batch = tokens[torch.randint(len(tokens), (16,))]
    loss = nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
