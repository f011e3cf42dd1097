"""R6."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import RunsCompared
from flatline.findings import Finding
from flatline.rules import Rule
from flatline.trends import interval, iqm


class OneSeed(Rule):
    """Runs of few seeds are compared, or the intervals of what is compared overlap.

    Symptom
    -------
    One setting seems better than another, and the next three seeds show the reverse.

    Root cause
    ----------
    The return depends on the seed as much as on the setting: initial weights, exploration and the environment all draw from
    it. With one run each, more than half of such comparisons between equals find a winner.

    Fix
    ---
    At least five seeds for each setting, ten where the returns scatter. Compare interquartile means with bootstrap
    intervals, which are given here, and claim a difference only where the intervals are apart.

    Example
    -------
    ::

        for algorithm in ("ppo", "sac"):
            train(algorithm, seed=0)

    Use instead
    -----------
    ::

        for algorithm in ("ppo", "sac"):
            for seed in range(10):
                train(algorithm, seed=seed)

    Healthy look-alikes
    -------------------
    Five or more seeds with intervals that are apart; a single run, which compares nothing; runs without a reward.

    References
    ----------
    - Agarwal et al., Deep RL at the Edge of the Statistical Precipice, 2021, https://arxiv.org/abs/2108.13264
    - Henderson et al., Deep Reinforcement Learning that Matters, 2017, https://arxiv.org/abs/1709.06560
    """

    code = "R6"
    severity = "hint"
    cause = "the return depends on the seed as much as on the setting"
    fix = "at least 5 seeds for each setting; compare interquartile means, and claim a difference where intervals are apart"

    seeds_needed: int = 5  # Agarwal et al.: an interval of fewer says little
    told: int = 8  # groups that fit into a message

    def on_runs_compared(self, event: RunsCompared) -> Iterator[Finding]:
        """Every group by itself, and the best beside the next."""
        groups = [(group, iqm(group.finals), interval(group.finals)) for group in event.groups if group.finals]
        groups.sort(key=lambda entry: -entry[1])
        fewest = min((len(group.finals) for group, _, _ in groups), default=0)
        if not groups or (len(groups) == 1 and fewest == 1):
            return
        apart = len(groups) == 1 or groups[0][2][0] > groups[1][2][1]
        why = [f"fewer than {self.seeds_needed} seeds"] if fewest < self.seeds_needed else []
        why += [] if apart else ["the intervals of the best two overlap, which shows no difference"]
        told = "; ".join(
            f"{group.name} {middle:.4g} [{low:.4g}, {high:.4g}] of {len(group.finals)}"
            for group, middle, (low, high) in groups[: self.told]
        )
        if why:
            yield self.finding(
                event,
                f"{', and '.join(why)}; interquartile means of the final {groups[0][0].quantity}, with 95 % intervals: {told}",
                groups=len(groups),
                fewest=fewest,
                overlap=not apart,
            )
