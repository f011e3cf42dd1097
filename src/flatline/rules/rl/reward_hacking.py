"""R1."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import CurvesUpdated
from flatline.findings import Finding
from flatline.rules import Rule
from flatline.trends import Trend, main, named, short, shown, trend


class RewardHacking(Rule):
    """The reward rose, then most of its gain was lost for good, while the policy ran away or its answers shrank.

    Symptom
    -------
    The mean reward falls in the middle of the run and does not come back. Answers become short, or the same one again and
    again. The KL divergence is many times what it was at the best reward.

    Root cause
    ----------
    The policy was pushed into a corner that the reward model scores well, or that one large update led to, and from which it
    no longer explores. The ratios are clipped, the KL spikes, and what had been learned is gone.

    Fix
    ---
    Go back to the checkpoint of the best reward. Raise the KL coefficient, lower the rate (1e-6 for language models), take
    fewer epochs over each batch, and penalise length if length was gamed. Watch reward and KL side by side.

    Example
    -------
    ::

        PPOConfig(learning_rate=1e-4, kl_coef=0.0, num_ppo_epochs=16)

    Use instead
    -----------
    ::

        PPOConfig(learning_rate=1e-6, kl_coef=0.05, num_ppo_epochs=4)

    Healthy look-alikes
    -------------------
    A reward that dips and recovers; noise of few episodes; a task that gets harder, where the KL stays as it was; a KL that
    grows while the reward grows.

    References
    ----------
    - Gao et al., Scaling Laws for Reward Model Overoptimization, 2022, https://arxiv.org/abs/2210.10760
    - https://huggingface.co/blog/the_n_implementation_details_of_rlhf_with_ppo
    """

    code = "R1"
    severity = "warning"
    consequences = ("R2",)
    cause = "the policy left the region that reward and reference describe, and what it had learned is gone"
    fix = "go back to the best checkpoint; raise the KL coefficient, lower the rate, take fewer epochs over each batch"

    points_needed: int = 24  # of the reward; fewer show no peak
    sure: float = 8.0  # standard errors of a level that it gained, and lost
    lost: float = 0.5  # share of the gain
    after: float = 0.15  # of the run, for which it stayed away
    spike: float = 3.0  # times the divergence at the best reward; a healthy one levels off
    shrunk: float = 0.4  # of the length at the best reward

    def lacks(self, event: CurvesUpdated) -> str:
        """A reward, and what tells a collapse from a harder task."""
        if main(event, "kl") is None and named(event, "length") is None:
            return "neither a KL divergence nor a length was logged"
        return short("reward", main(event, "reward"), self.points_needed)

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """The reward after its best level, beside divergence and length."""
        reward = trend(main(event, "reward"))
        if reward is None or reward.points < self.points_needed:
            return
        best = max(range(len(reward.levels)), key=reward.around)
        sign = self._sign(event, reward.steps[best]) if self._collapsed(reward, best) else ""
        if sign:
            yield self.finding(
                event,
                f"the reward rose from {reward.start:.4g} to {reward.around(best):.4g} by step {shown(reward.steps[best])} and "
                f"fell to {reward.last:.4g}, while {sign}",
                best=reward.around(best),
                best_step=reward.steps[best],
                last=reward.last,
            )

    def _collapsed(self, t: Trend, best: int) -> bool:
        top = t.around(best)
        gained, lost = top - t.start, top - t.last
        late = len(t.levels) - 1 - best >= self.after * len(t.levels)
        away = max(t.levels[-3:]) <= top - self.lost * gained
        return late and away and min(gained, lost) >= self.sure * t.noise and lost >= self.lost * gained

    def _sign(self, event: CurvesUpdated, step: float) -> str:
        """What else happened since then."""
        kl, length = trend(main(event, "kl")), trend(named(event, "length"))
        if kl is not None and (then := kl.around(kl.at(step))) > 0:
            if kl.last > self.spike * then and kl.last - then > self.sure * kl.noise:
                return f"the KL divergence went from {then:.3g} to {kl.last:.3g}"
        if length is not None and (then := length.around(length.at(step))) > 0 and length.last < self.shrunk * then:
            return f"the length of the answers went from {then:.4g} to {length.last:.4g}"
        return ""
