"""An optimizer that looks for flat minima."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class SAM(Optimizer):
    """Sharpness-aware minimisation: step by the gradient at the worst point nearby.

    Wraps another optimizer, whose groups and state it shares, so that schedulers, ``state_dict`` and clipping of
    learning rates work as ever. A step costs two forward and backward passes. The closure is run twice, so norm
    statistics move twice and dropout draws twice. Not for GradScaler, whose scale does not reach the closure.

    Args:
        params: as for any optimizer.
        base_optimizer: its class, such as ``torch.optim.SGD``.
        rho: radius of the neighbourhood, L2 norm over all parameters, 0.05 in the source.
        adaptive: scale the neighbourhood by each weight's size (ASAM, where ``rho`` is about 10 times larger).
        kwargs: settings of the base optimizer, ``lr`` among them.

    Raises:
        ValueError: ``rho`` is negative.

    Source: P. Foret et al., Sharpness-Aware Minimization (2021), arXiv:2010.01412; J. Kwon et al., ASAM (2021),
    arXiv:2102.11600.
    """

    def __init__(
        self,
        params: Iterable[Any],
        base_optimizer: Callable[..., Optimizer],
        *,
        rho: float = 0.05,
        adaptive: bool = False,
        **kwargs: Any,
    ) -> None:
        if rho < 0:
            raise ValueError(f"rho must be 0 or more, not {rho}; the source uses 0.05")
        super().__init__(params, {"rho": rho, "adaptive": adaptive})
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state = self.base_optimizer.param_groups, self.base_optimizer.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: ``zero_grad``, forward, backward, and the loss returned, as for ``torch.optim.LBFGS``.

        Returns:
            The loss at the point where the step began.

        Raises:
            RuntimeError: no closure was given.
        """
        if closure is None:
            raise RuntimeError("SAM needs both passes: optimizer.step(closure), with zero_grad and backward in closure")
        with torch.enable_grad():
            loss = closure()
        climbed = self._climb()
        try:
            self.zero_grad()
            with torch.enable_grad():
                closure()
        finally:
            for parameter, value in climbed:
                parameter.data.copy_(value)
        self.base_optimizer.step()
        return loss

    @torch.no_grad()
    def _climb(self) -> list[tuple[Tensor, Tensor]]:
        """Go to the worst point nearby; what was moved, and where it was."""
        moved = [(p, p.grad, g) for g in self.param_groups for p in g["params"] if p.grad is not None]
        if not moved:
            raise RuntimeError("no gradient reached these parameters; the closure must call backward on the loss")
        kept = [(parameter, parameter.detach().clone()) for parameter, _, _ in moved]
        sizes = [p.abs() if group["adaptive"] else torch.ones_like(p) for p, _, group in moved]
        norms = [(size * gradient).norm() for size, (_, gradient, _) in zip(sizes, moved, strict=True)]
        norm = torch.stack([each.to(norms[0].device) for each in norms]).norm() + 1e-12
        for size, (parameter, gradient, group) in zip(sizes, moved, strict=True):
            parameter.add_(size.square() * gradient * (group["rho"] / norm).to(parameter.device, parameter.dtype))
        return kept

    def state_dict(self) -> dict[str, Any]:
        """That of the base optimizer."""
        return self.base_optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` gave.

        Args:
            state_dict: of SAM around the same kind of optimizer.
        """
        self.base_optimizer.load_state_dict(state_dict)
        self._share()
