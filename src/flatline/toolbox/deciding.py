"""When to stop, and which of two is better."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

SHRINKS = 0.99  # weights lost a hundredth of their norm within the patience
LONG = 20  # times the patience: Power et al. saw validation begin to move orders of magnitude after memorising


def parameter_norm(parameters: Iterable[Tensor]) -> float:
    """Return the L2 norm of all parameters together. Waits for the device.

    Args:
        parameters: of the model.
    """
    norms = [parameter.detach().norm() for parameter in parameters]
    return float(torch.stack([norm.float() for norm in norms]).norm()) if norms else 0.0


class EarlyStopping:
    """Stop when a metric no longer improves, unless the run looks as if it were about to grok.

    A model that has memorised its training data may begin to generalise long after validation seemed to have
    settled, while weight decay goes on shrinking the weights. So when the patience is over, the training loss is below
    ``memorised`` and the weights have shrunk by 1 % since, the end is put off, at most to ``grokking`` checks without
    improvement. Without ``train`` and ``norm`` it is ordinary early stopping.

    Args:
        patience: checks without improvement, at least 1.
        min_delta: what counts as an improvement, in the metric's unit.
        mode: "min" for losses, "max" for accuracies.
        memorised: training loss below which the data is known by heart.
        grokking: checks without improvement at which it ends all the same; 20 times the patience if None.

    Raises:
        ValueError: a setting is out of range.

    Source: A. Power et al., Grokking: Generalization Beyond Overfitting (2022), arXiv:2201.02177.
    """

    def __init__(
        self,
        patience: int,
        *,
        min_delta: float = 0.0,
        mode: Literal["min", "max"] = "min",
        memorised: float = 0.01,
        grokking: int | None = None,
    ) -> None:
        if patience < 1 or min_delta < 0 or mode not in ("min", "max"):
            raise ValueError("need patience >= 1, min_delta >= 0 and mode 'min' or 'max'")
        self.patience, self.min_delta, self.mode, self.memorised = patience, min_delta, mode, memorised
        self.grokking = LONG * patience if grokking is None else grokking
        self.best, self.waited, self.improved, self.reason = math.nan, 0, False, ""
        self._norms: deque[float] = deque(maxlen=patience + 1)

    def step(self, metric: float, *, train: float | None = None, norm: float | None = None) -> bool:
        """Tell one validation's result; afterwards ``improved`` says whether to save, and ``reason`` why.

        Args:
            metric: of the validation; nan is never an improvement.
            train: training loss, mean over the time since the last check.
            norm: of all weights, see :func:`parameter_norm`.

        Returns:
            True if the training should end.
        """
        sign = 1 if self.mode == "min" else -1
        self.improved = bool(math.isnan(self.best) or sign * (self.best - metric) > self.min_delta)
        self.improved &= not math.isnan(metric)
        self.best = metric if self.improved else self.best
        self.waited = 0 if self.improved else self.waited + 1
        self._norms.append(math.nan if norm is None else norm)
        over = self.waited >= self.patience
        put_off = over and self.waited < self.grokking and self._may_grok(train)
        self.reason = "improved" if self.improved else f"no improvement on {self.best:.4g} in {self.waited} checks"
        if put_off:
            self.reason += f"; put off, as the data is memorised and the weights shrink ({self._norms[-1]:.4g})"
        return over and not put_off

    def _may_grok(self, train: float | None) -> bool:
        """The data is known by heart, and the weights lost 1 % of their norm within the patience."""
        memorised = train is not None and train < self.memorised
        return memorised and len(self._norms) > self.patience and self._norms[-1] < SHRINKS * self._norms[0]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to keep."""
        return {"best": self.best, "waited": self.waited, "norms": list(self._norms)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken.

        Args:
            state_dict: of an object with the same settings.
        """
        self.best, self.waited = state_dict["best"], state_dict["waited"]
        self._norms = deque(state_dict["norms"], maxlen=self.patience + 1)


@dataclass(frozen=True)
class IQMResult:
    """An interquartile mean and its interval.

    Attributes:
        mean: in the unit of the scores.
        low: lower end of the bootstrap interval.
        high: upper end.
        confidence: of the interval, 0 to 1.
    """

    mean: float
    low: float
    high: float
    confidence: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}] at {self.confidence:.0%}"


def interquartile_mean(
    scores: Tensor | Iterable[Any], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> IQMResult:
    """Take the mean of the middle half of the scores, with a bootstrap interval, to compare runs of several seeds.

    A quarter of the scores is dropped at both ends, rounded down, as in ``scipy.stats.trim_mean(scores, 0.25)``. Runs
    are drawn anew for each task on its own. No global random generator is touched.

    Args:
        scores: one for each run, shape (runs,), or (runs, tasks) with scores that can be compared between tasks.
        confidence: of the interval.
        resamples: draws of the bootstrap.
        seed: of the draws.

    Raises:
        ValueError: fewer than two runs, scores that are not finite, or settings out of range.

    Source: R. Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice (2021),
    arXiv:2108.13264.
    """
    table = torch.as_tensor(scores if isinstance(scores, Tensor) else list(scores), dtype=torch.float64)
    table = table.detach().cpu().flatten(1) if table.dim() > 1 else table.detach().cpu().reshape(-1, 1)
    if len(table) < 2 or not bool(torch.isfinite(table).all()):
        raise ValueError(
            "need finite scores of at least two runs, shape (runs,) or (runs, tasks); mend failed runs first"
        )
    if not 0 < confidence < 1 or resamples < 1:
        raise ValueError("need 0 < confidence < 1 and at least one resample")
    drawn = torch.randint(len(table), (resamples, *table.shape), generator=torch.Generator().manual_seed(seed))
    means = _middle(table.expand(resamples, -1, -1).gather(1, drawn).flatten(1))
    tail = (1 - confidence) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return IQMResult(float(_middle(table.flatten())), low, high, confidence)


def _middle(scores: Tensor) -> Tensor:
    """The mean of the middle half along the last dimension."""
    cut = scores.shape[-1] // 4
    return scores.sort(-1).values[..., cut : scores.shape[-1] - cut].mean(-1)
