"""What one learning rate for a pretrained body and a fresh head costs, by how far the body moves in its first steps.

    python benchmarks/one_rate.py            # about four minutes on one core

Bodies of three kinds are trained on one task, and fine-tuned on another one that asks for the same features: once with
one rate for all layers, once with a twentieth of it for the body. ``docs/thresholds.md`` quotes what it prints.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor, nn

SOURCE, TARGET, EARLY = 1, 2, 5
RATES = {"Adam": (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3e-2), "SGD": (0.01, 0.03, 0.1, 0.3, 1.0)}
BINS = (0.0, 0.1, 0.2, 0.4, 1.0, float("inf"))


class Convolutions(nn.Sequential):
    """Three convolutions over one channel."""

    width = 128

    def __init__(self) -> None:
        half, quarter = nn.MaxPool1d(2), nn.Conv1d(32, 32, 3, padding=1)
        first, second = nn.Conv1d(1, 16, 7, padding=3), nn.Conv1d(16, 32, 5, padding=2)
        pooled = nn.AdaptiveAvgPool1d(4), nn.Flatten()
        super().__init__(
            nn.Unflatten(1, (1, 64)), first, nn.ReLU(), half, second, nn.ReLU(), half, quarter, nn.ReLU(), *pooled
        )


class Perceptron(nn.Sequential):
    """Three linear layers."""

    width = 64

    def __init__(self) -> None:
        sizes = (64, 128, 128, 64)
        layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sizes)]
        super().__init__(*(each for pair in layers for each in pair))


class Attention(nn.Module):
    """Two encoder layers over eight tokens."""

    width = 48

    def __init__(self) -> None:
        super().__init__()
        self.first, self.places = nn.Linear(8, 48), nn.Parameter(0.02 * torch.randn(8, 48))
        layer = nn.TransformerEncoderLayer(48, 4, 96, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        """Means over the tokens: (batch, 64) to (batch, 48)."""
        mixed: Tensor = self.encoder(self.first(x.view(-1, 8, 8)) + self.places)
        return mixed.mean(1)


def rows(count: int, seed: int, task: int, classes: int) -> tuple[Tensor, Tensor]:
    """Signals in which twelve motifs are there or not; a task asks for a sum of some of them."""
    drawn, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(7)
    motifs, there = torch.randn(12, 16, generator=fixed), torch.rand(count, 12, generator=drawn) < 0.3
    asked = torch.randn(12, classes, generator=torch.Generator().manual_seed(task))
    x = 0.6 * torch.randn(count, 64, generator=drawn)
    for motif in range(12):
        x[:, 4 * motif : 4 * motif + 16] += there[:, motif : motif + 1] * motifs[motif]
    return x, (there.float() @ asked).argmax(1)


def fit(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer, steps: int, body: nn.Module) -> float:
    """Train, and say how far the median matrix of the body moved in the first steps, in sizes of its own."""
    matrices = [p for p in body.parameters() if p.dim() > 1]
    drawn, moved = torch.Generator().manual_seed(3), [0.0] * len(matrices)
    for step in range(steps):
        batch = torch.randint(0, len(x), (64,), generator=drawn)
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        before = [p.detach().clone() for p in matrices] if step < EARLY else []
        optimizer.step()
        for at, old in enumerate(before):
            moved[at] += float((matrices[at].detach() - old).norm() / old.norm())
    return statistics.median(moved)


def tuned(
    kind: type[nn.Module], state: dict[str, Tensor], count: int, made: type, rate: float, share: float
) -> tuple[float, float]:
    """Fine-tune a body with a share of the head's rate: how far it moved, and the accuracy on held-out rows."""
    torch.manual_seed(50)
    body = kind()
    body.load_state_dict(state)
    head = nn.Linear(kind.width, 6)  # type: ignore[attr-defined]
    model = nn.Sequential(body, head)
    groups = [{"params": body.parameters(), "lr": share * rate}, {"params": head.parameters()}]
    optimizer = made(groups, lr=rate, **({"momentum": 0.9} if made is torch.optim.SGD else {}))
    path = fit(model, *rows(count, 200, TARGET, 6), optimizer, 400, body)
    x, y = rows(2000, 300, TARGET, 6)
    return path, float((model(x).argmax(1) == y).float().mean())


def runs() -> Iterator[tuple[float, float]]:
    """How far a body moved under one rate, and what a rate of its own would have won."""
    for kind in (Perceptron, Convolutions, Attention):
        torch.manual_seed(0)
        body = kind()
        model = nn.Sequential(body, nn.Linear(kind.width, 10))
        fit(model, *rows(4096, 100, SOURCE, 10), torch.optim.Adam(model.parameters(), 1e-3), 700, body)
        state = {name: value.clone() for name, value in body.state_dict().items()}
        for count in (200, 2000):
            for name, rates in RATES.items():
                for rate in rates:
                    path, one = tuned(kind, state, count, getattr(torch.optim, name), rate, 1.0)
                    _, groups = tuned(kind, state, count, getattr(torch.optim, name), rate, 0.05)
                    print(
                        f"{kind.__name__:12} {count:5} rows  {name:4} {rate:<6g} moved {path:6.2f}  {groups - one:+.3f}"
                    )
                    yield path, groups - one


def main() -> None:
    """Print every run, and the table."""
    torch.set_num_threads(1)
    won: dict[float, list[float]] = defaultdict(list)
    for path, difference in runs():
        won[max(least for least in BINS if least <= path)].append(difference)
    for least, most in itertools.pairwise(BINS):
        each = sorted(won[least])
        better = sum(difference > 0 for difference in each)
        print(f"| {least:g} to {most:g} | {len(each)} | {better} | {each[0]:+.3f} | {statistics.median(each):+.3f} |")


if __name__ == "__main__":
    main()
