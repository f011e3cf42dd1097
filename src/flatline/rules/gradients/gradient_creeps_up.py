"""G8."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from flatline.events import NumbersSampled
from flatline.findings import Finding
from flatline.history import History
from flatline.rules import Rule


class GradientCreepsUp(Rule):
    """The gradient grows steadily, and the loss does not fall.

    Symptom
    -------
    The gradient norm rises over hundreds of steps while the loss stands still or rises. Sooner or later it diverges.

    Root cause
    ----------
    Something feeds on itself: weights, logits or activations grow, and with them the gradient, until a step is too large to
    come back from. A rate at the edge of stability, missing weight decay or an unbounded loss term are the usual reasons.

    Fix
    ---
    Lower the learning rate, clip the norm, and bound what grows: weight decay, a normalisation layer, z-loss on logits.

    Example
    -------
    ::

        loss = criterion(logits, targets) - 0.1 * logits.pow(2).mean()

    Use instead
    -----------
    ::

        loss = criterion(logits, targets) + 1e-4 * torch.logsumexp(logits, -1).pow(2).mean()

    Healthy look-alikes
    -------------------
    Gradients that grow while the loss falls, as they do from a small initialisation; warm-up; adversarial losses, where one
    side's gradient grows with the other side's skill; a gradient that was near zero when it began.

    References
    ----------
    - Chowdhery et al., PaLM, 2022, section 5, https://arxiv.org/abs/2204.02311
    """

    code = "G8"
    severity = "warning"
    consequences = ("N1", "N2", "C1", "C3", "C6")

    samples_needed: int = 40  # fewer say nothing about a trend
    growth: float = 30.0  # median gradient now over that of the beginning
    rising: float = 0.85  # share of pairs of samples where the later gradient is larger; 0.5 without a trend
    small: float = 1e-7  # gradients that begin under this were vanishing, not healthy
    lately: int = 24  # newest samples whose trend counts
    first_index: int = 100  # step from which on it is judged

    def __init__(self) -> None:
        self._gradients: dict[int, History] = {}
        self._losses: dict[int, History] = {}
        self._rates: dict[int, float] = {}

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """The typical gradient of the weight matrices, beside the loss."""
        layers = [each.gradient_rms for each in event.layers if each.matrix and each.gradient_rms > 0]
        if not layers or event.loss is None:
            return
        key = event.optimizer.key
        gradients = self._gradients.setdefault(key, History())
        losses = self._losses.setdefault(key, History())
        gradients.add(event.index, median(layers))
        losses.add(event.index, event.loss)
        self._rates.setdefault(key, event.lr)
        ripe = gradients.count >= self.samples_needed and event.index >= self.first_index
        usual = min(gradients.first, gradients.location)
        if ripe and event.lr <= self._rates[key] and self._creeps(gradients, losses):
            yield self.finding(
                event,
                f"the gradient grew {gradients.last / usual:.0f}-fold (rms {usual:.2g} to "
                f"{gradients.last:.2g}), steadily, while the loss went from {losses.first:.4g} to {losses.last:.4g}",
                cause="something feeds on itself: weights or activations grow, and the gradient grows with them",
                fix="lower lr, clip with clip_grad_norm_(model.parameters(), 1.0), and bound what grows: weight decay, a "
                "normalisation layer, z-loss on the logits",
                usual=usual,
                last=gradients.last,
                rising=gradients.rising(self.lately),
            )

    def _creeps(self, gradients: History, losses: History) -> bool:
        usual, usual_loss = min(gradients.first, gradients.location), min(losses.first, losses.location)
        if usual < self.small or gradients.last < self.growth * usual:
            return False
        return (
            losses.last >= losses.first > 0
            and losses.last >= usual_loss
            and gradients.rising(self.lately) >= self.rising
        )
