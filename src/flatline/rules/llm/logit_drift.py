"""L6."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import CurvesUpdated, PenaltySubtracted
from flatline.findings import Finding
from flatline.rules import Rule
from flatline.trends import Trend, all_named, drift, kendall, main, named, short, trend


class LogitDrift(Rule):
    """The logarithm of the softmax normaliser, or the size of the logits, grows without slowing down.

    Symptom
    -------
    ``log_z`` or ``max_logit`` climbs on and on while the loss is quiet; later the loss spikes, or is nan in half precision.

    Root cause
    ----------
    Cross entropy does not see a constant that is added to all logits, so nothing holds their scale. As they grow, bf16 rounds
    them to halves, and gradients become unstable. A z-loss that is subtracted drives them up.

    Fix
    ---
    Add z-loss: ``1e-4 * torch.logsumexp(logits, -1).square().mean()``. Compute the loss in float32, and use QK-norm if the
    attention logits grow, too.

    Example
    -------
    ::

        loss = F.cross_entropy(logits, targets)

    Use instead
    -----------
    ::

        loss = F.cross_entropy(logits, targets) + 1e-4 * torch.logsumexp(logits, -1).square().mean()

    Healthy look-alikes
    -------------------
    A normaliser far from 0 that stays there; growth that levels off; small numbers, which every format holds. While the loss
    does not rise it is a hint.

    References
    ----------
    - Chowdhery et al., PaLM, 2022, section 5, https://arxiv.org/abs/2204.02311
    - Wortsman et al., Small-scale proxies for large-scale Transformer training instabilities, 2023, https://arxiv.org/abs/2309.14322
    """

    code = "L6"
    severity = "warning"
    consequences = ("W1", "C1", "C6")
    cause = "cross entropy does not see a constant added to all logits, so nothing holds their scale"
    fix = "add z-loss, 1e-4 * torch.logsumexp(logits, -1).square().mean(), and compute the loss in float32"

    points_needed: int = 24  # fewer show no trend
    large: float = 64.0  # from here on bf16 holds halves only
    steady: float = 0.8  # growth of the last third over that of the middle third; what levels off has less
    sure: float = 8.0  # standard errors of a level that it grew by in the last third
    times: float = 2.0  # times its level at a third of the run
    worse: float = 6.0  # standard errors that the training loss rose over its best: else it is advice

    def lacks(self, event: CurvesUpdated) -> str:
        """One of the two quantities."""
        curve = named(event, "normaliser") or named(event, "logits")
        return short("normaliser or size of the logits", curve, self.points_needed)

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """The last third beside the middle one."""
        for curve in (*all_named(event, "normaliser"), *all_named(event, "logits")):
            found = trend(curve, 18)
            if found is not None and found.points >= self.points_needed and self._drifts(found):
                loss = trend(main(event, "train_loss"))
                rose = loss is not None and loss.last - loss.around(loss.best) > self.worse * loss.noise
                yield self.finding(
                    event,
                    f"{curve.name} went from {found.start:.4g} to {found.last:.4g}, and grows as fast as in the middle of the run"
                    + (", and the training loss rises" if rose else ""),
                    severity="warning" if rose else "hint",
                    key=curve.name,
                    first=found.start,
                    last=found.last,
                )

    def on_penalty_subtracted(self, event: PenaltySubtracted) -> Iterator[Finding]:
        """A z-loss of the wrong sign."""
        if event.kind == "normaliser":
            yield self.finding(
                event,
                "the loss subtracts the square of the softmax normaliser (logsumexp of the logits): the larger it is, the lower "
                "the loss, without end",
                cause="the z-loss has the wrong sign, so it drives the logits away from where it should hold them",
                fix="add it: loss = cross_entropy + 1e-4 * torch.logsumexp(logits, -1).square().mean()",
                key="sign",
            )

    def _drifts(self, t: Trend) -> bool:
        levels = [abs(level) for level in t.levels]
        third = len(levels) // 3
        late, middle = drift(levels[-third - 1 :]), drift(levels[third : 2 * third + 1])
        grows = kendall(levels[-third - 1 :]) > 2.0 and late > max(self.steady * middle, self.sure * t.noise)
        return grows and levels[-1] > max(self.large, self.times * levels[third])
