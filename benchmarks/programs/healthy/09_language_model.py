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
decayed = [p for p in model.parameters() if p.dim() > 1]
plain = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], lr=1e-3)
tokens = text()
for step in range(150):
    batch = tokens[torch.randint(len(tokens), (16,))]
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print(loss.item())
