"""L9."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import CurvesUpdated
from flatline.findings import Finding
from flatline.rules import Rule
from flatline.trends import Trend, named, short, trend


class PreferenceCollapse(Rule):
    """Both log-probabilities of a preference run fall, and the margin between them does not grow.

    Symptom
    -------
    ``logps/chosen`` and ``logps/rejected`` plunge side by side, ``rewards/margins`` stays at 0, ``rewards/accuracies`` at 0.5.

    Root cause
    ----------
    The policy makes both answers unlikely instead of telling them apart: the rate is too high, ``beta`` so small that nothing
    holds it near the reference, or the two columns hold the same text. Sometimes the reference is trained along.

    Fix
    ---
    A rate of 1e-6 (1e-5 for LoRA) and ``beta=0.1``; 0.3 to 0.5 if the text degrades. Check that chosen and rejected differ,
    and that the reference gives the same log-probabilities for one batch early and late.

    Example
    -------
    ::

        DPOConfig(beta=0.001, learning_rate=1e-4)

    Use instead
    -----------
    ::

        DPOConfig(beta=0.1, learning_rate=1e-6)

    Healthy look-alikes
    -------------------
    Both falling while the margin grows, which is how DPO works; both standing still in the warm-up; a margin that is small
    because ``beta`` is, and grows.

    References
    ----------
    - Rafailov et al., Direct Preference Optimization, 2023, https://arxiv.org/abs/2305.18290
    - https://huggingface.co/docs/trl/dpo_trainer
    """

    code = "L9"
    severity = "warning"
    cause = "both answers are made unlikely instead of told apart: rate too high, beta too small, or equal columns"
    fix = "learning_rate=1e-6 (1e-5 with LoRA), beta=0.1; do chosen and rejected differ, and is the reference frozen?"

    points_needed: int = 16  # fewer are the warm-up
    nats: float = 5.0  # that the log-probability of an answer fell by; a token or two
    share: float = 0.05  # of its first value
    sure: float = 6.0  # standard errors of a level
    grown: float = 3.0  # standard errors that a margin which grows has gained
    apart: float = 1.2  # times the fall of chosen, that rejected falls by when they are told apart

    def lacks(self, event: CurvesUpdated) -> str:
        """The margin and both log-probabilities."""
        curves = {what: named(event, what) for what in ("margin", "chosen", "rejected")}
        least = self.points_needed
        why = (short(f"{what} of a preference", curve, least) for what, curve in curves.items())
        return next(filter(None, why), "")

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """Where the three began and ended."""
        margin, chosen, rejected = (trend(named(event, what)) for what in ("margin", "chosen", "rejected"))
        if margin is None or chosen is None or rejected is None or margin.points < self.points_needed:
            return
        grows = margin.last - margin.start > self.grown * margin.noise or margin.rises(z=2.0)
        parted = rejected.start - rejected.last > self.apart * (chosen.start - chosen.last)
        if not grows and not parted and self._fell(chosen) and self._fell(rejected):
            yield self.finding(
                event,
                f"log-probabilities fell from {chosen.start:.4g} to {chosen.last:.4g} (chosen) and from {rejected.start:.4g} "
                f"to {rejected.last:.4g} (rejected), and the margin did not grow: {margin.start:.3g}, then {margin.last:.3g}",
                chosen=chosen.last,
                rejected=rejected.last,
                margin=margin.last,
            )

    def _fell(self, t: Trend) -> bool:
        fall = t.start - t.last
        return t.falls(z=2.0) and fall > max(self.nats, self.share * abs(t.start), self.sure * t.noise)
