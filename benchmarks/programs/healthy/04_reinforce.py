import torch
from torch import nn

torch.manual_seed(1)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
baseline = 0.0
for episode in range(200):
    state, terms, rewards = torch.randn(4), [], []
    for _ in range(10):
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        terms.append(choice.log_prob(action))
        rewards.append(float((state[0] > 0) == bool(action)))
        state = torch.randn(4)
    value = sum(rewards)
    loss = -(value - baseline) * torch.stack(terms).sum()
    baseline += 0.1 * (value - baseline)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(baseline)
