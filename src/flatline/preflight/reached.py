"""Which weights a gradient comes to, while the script trains."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter


class Weights:
    """Which weights of the optimizers a gradient comes to."""

    def __init__(self) -> None:
        self.optimizers: dict[int, Any] = {}
        self.steps: Counter[int] = Counter()  # with a backward, of each optimizer
        self.reached: set[int] = set()
        self._began: dict[int, tuple[torch.Tensor, tuple[float, float]]] = {}
        self._backwards = 0

    def attach(self) -> None:
        """Count the backward passes."""
        for name in ("backward", "grad"):
            setattr(torch.autograd, name, self._counting(getattr(torch.autograd, name)))

    def _counting(self, original: Any) -> Any:
        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._backwards += 1
            return original(*args, **kwargs)

        return counted

    def follow(self, module: torch.nn.Module) -> None:
        """From the first call on."""
        for weight in module.parameters():
            if (
                id(weight) not in self._began
                and weight.requires_grad
                and not isinstance(weight, UninitializedParameter)
            ):
                self._began[id(weight)] = weight, _print(weight)
                weight.register_hook(functools.partial(self._came, id(weight)))  # type: ignore[no-untyped-call]

    def _came(self, key: int, gradient: torch.Tensor) -> None:
        self.reached.add(key)

    def stepped(self, optimizer: Any) -> bool:
        """Whether a backward ran since the last step. Gradients by hand are gradients, too."""
        ran, self._backwards = self._backwards > 0, 0
        self.optimizers[id(optimizer)] = optimizer
        self.steps[id(optimizer)] += ran
        self.reached |= {id(w) for group in optimizer.param_groups for w in group["params"] if w.grad is not None}
        return ran

    def waiting(self) -> set[int]:
        """Those whose rate is 0 now."""
        groups = [group for each in self.optimizers.values() for group in each.param_groups]
        return {id(weight) for group in groups if float(group["lr"]) == 0 for weight in group["params"]}

    def severed(self) -> dict[int, int]:
        """Those that no gradient came to, and that nothing else moved; with the steps of their optimizer."""
        held = {
            id(weight): self.steps[key]
            for key, each in self.optimizers.items()
            for group in each.param_groups
            if float(group["lr"]) > 0
            for weight in group["params"]
        }
        still = {
            key for key, (weight, before) in self._began.items() if weight.requires_grad and _print(weight) == before
        }
        return {key: steps for key, steps in held.items() if key in still - self.reached and steps}


def _print(weight: torch.Tensor) -> tuple[float, float]:
    """What is another one as soon as a weight moves."""
    values = weight.detach().double()
    return float(values.sum()), float(values.square().sum())
