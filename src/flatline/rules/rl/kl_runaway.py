"""R2."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import CurvesUpdated
from flatline.findings import Finding
from flatline.rules import Rule
from flatline.trends import drift, main, short, trend


class KlRunaway(Rule):
    """The KL divergence from the reference grows faster and faster, and the reward does not follow.

    Symptom
    -------
    ``objective/kl`` passes 10, then 50. The text becomes incoherent although no loss is nan, and the penalty outweighs the
    reward.

    Root cause
    ----------
    The penalty is too weak for the size of the updates, or there is none, so nothing holds the policy near its reference.
    Sometimes the reference is trained along, or was loaded from another model.

    Fix
    ---
    Raise the KL coefficient, or use an adaptive one with a target of about 6 nats; clip the ratio at 0.2; take fewer epochs
    over each batch; check that no parameter of the reference requires a gradient.

    Example
    -------
    ::

        PPOConfig(kl_coef=0.001, learning_rate=5e-5)

    Use instead
    -----------
    ::

        PPOConfig(kl_coef=0.05, learning_rate=1e-6)

    Healthy look-alikes
    -------------------
    A divergence that levels off, however high; one that grows while the reward grows with it; the approximate KL between two
    updates, which is another quantity; a run without a reward.

    References
    ----------
    - Ziegler et al., Fine-Tuning Language Models from Human Preferences, 2019, https://arxiv.org/abs/1909.08593
    - https://huggingface.co/docs/trl/ppo_trainer
    """

    code = "R2"
    severity = "warning"
    cause = "the penalty is too weak for the size of the updates: nothing holds the policy near its reference"
    fix = "raise the KL coefficient or use an adaptive one with a target of 6; lower the rate; is the reference frozen?"

    points_needed: int = 24  # fewer show no acceleration
    large: float = 10.0  # nats; adaptive controllers aim at 6
    faster: float = 1.5  # growth of the last third over that of the middle third; a root or a line has less
    sure: float = 8.0  # standard errors of a level that it grew by

    def lacks(self, event: CurvesUpdated) -> str:
        """A divergence and a reward."""
        curves = {"KL divergence": main(event, "kl"), "reward": main(event, "reward")}
        return next(filter(None, (short(name, curve, self.points_needed) for name, curve in curves.items())), "")

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """The last third of the divergence beside the middle one, and beside the reward."""
        curve = main(event, "kl")
        kl, reward = trend(curve, 18), trend(main(event, "reward"), 18)
        if curve is None or kl is None or reward is None or "approx" in curve.name.lower():
            return
        if min(kl.points, reward.points) < self.points_needed or kl.last < self.large:
            return
        third = len(kl.levels) // 3
        late, middle = drift(kl.levels[-third - 1 :]), drift(kl.levels[third : 2 * third + 1])
        runs_away = kl.rises(-third - 1, z=2.0) and late > max(self.faster * middle, self.sure * kl.noise)
        then = reward.around(reward.at(kl.steps[-third - 1]))
        if runs_away and reward.last - then <= 2 * reward.noise:
            yield self.finding(
                event,
                f"{curve.name} grew to {kl.last:.3g}, by {late:.3g} in the last third of the run after {middle:.3g} in the "
                f"middle third, and the reward did not rise with it ({then:.4g}, then {reward.last:.4g})",
                last=kl.last,
                late=late,
                middle=middle,
            )
