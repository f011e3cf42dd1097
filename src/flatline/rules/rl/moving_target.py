"""R5."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import CurvesUpdated
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule
from flatline.trends import main, named, short, trend


class MovingTarget(Rule):
    """The loss of the critic does not fall although the return rises: that is expected, and no defect.

    Symptom
    -------
    The value loss oscillates or grows, while the agent gets better and better.

    Root cause
    ----------
    The policy changes what the critic is trained on, and bootstrapped targets move with the critic. As returns grow, so do
    their errors.

    Fix
    ---
    Nothing: judge by the return. Do not shrink the rate until the critic's loss is 0. If the return stops rising, try a
    slower target network or GAE.

    Example
    -------
    ::

        optimizer = torch.optim.Adam(critic.parameters(), lr=1e-7)  # "so that its loss converges"

    Use instead
    -----------
    ::

        optimizer = torch.optim.Adam(critic.parameters(), lr=3e-4)

    Healthy look-alikes
    -------------------
    All of them: it is an explanation. It is silent where the critic's loss falls, or where the return does not rise.

    References
    ----------
    - Sutton and Barto, Reinforcement Learning, chapter 11, http://incompleteideas.net/book/the-book-2nd.html
    """

    code = "R5"
    severity = "hint"
    cause = "the policy changes the critic's data, and bootstrapped targets move with the critic"
    fix = "nothing; judge by the return, and do not shrink the rate until the critic's loss is 0"

    points_needed: int = 24  # fewer show no trend
    sure: float = 8.0  # standard errors of a level that the return gained
    falls: float = 0.8  # of its early level, under which the critic's loss did fall

    def lacks(self, event: CurvesUpdated) -> str:
        """A critic's loss and a return."""
        curves = {"critic's loss": named(event, "critic"), "reward": main(event, "reward")}
        return next(filter(None, (short(name, curve, self.points_needed) for name, curve in curves.items())), "")

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """Both curves from their start to their end."""
        curve = named(event, "critic")
        critic, reward = trend(curve), trend(main(event, "reward"))
        if curve is None or critic is None or reward is None or min(critic.points, reward.points) < self.points_needed:
            return
        gained = reward.last - reward.start
        early = median(critic.levels[: max(3, len(critic.levels) // 4)])
        if reward.rises() and gained > self.sure * reward.noise and critic.last > self.falls * early > 0:
            yield self.finding(
                event,
                f"{curve.name} went from {early:.4g} to {critic.last:.4g} while the reward rose from {reward.start:.4g} to "
                f"{reward.last:.4g}: with targets that move this is expected",
                early=early,
                last=critic.last,
                reward=reward.last,
            )
