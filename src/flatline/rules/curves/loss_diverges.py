"""C1."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from flatline.events import Curve, CurvesUpdated
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule
from flatline.trends import (
    MAD_TO_SIGMA,
    Trend,
    curves,
    falling_is_due,
    kendall,
    lacking,
    main,
    range_test,
    shares,
    shown,
    trend,
    until,
)


class LossDiverges(Rule):
    """The training loss ends far above where it began, or comes back there and nothing of what was learned is left.

    Symptom
    -------
    The loss falls for a while or not at all, then climbs past its first value and does not come back. It may end in nan.

    Root cause
    ----------
    A learning rate that is too high for what the model has become, no warm-up, one batch with an enormous gradient that
    nothing clipped, or an overflow in half precision. The weights left the region where the gradient points the way.

    Fix
    ---
    Go back to a checkpoint from before the turn, divide the learning rate by ten, and clip the gradient norm at 1. Warm the
    rate up over the first 1 to 5 % of the steps. If it still happens at the same step, look at that step's batch.

    Example
    -------
    ::

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    Use instead
    -----------
    ::

        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # between backward and step

    Healthy look-alikes
    -------------------
    Losses of adversaries and of critics, which may rise while all is well; restarts of a schedule, harder data and a
    growing KL weight, after which the loss stays under its first value; a GRPO loss that leaves 0; a range test of the rate.

    References
    ----------
    - https://karpathy.github.io/2019/04/25/recipe/
    - Goyal et al., Accurate, Large Minibatch SGD, 2017, https://arxiv.org/abs/1706.02677
    """

    code = "C1"
    severity = "warning"
    consequences = ("C3", "C5", "C6", "C9")
    cause = "the steps are larger than the loss can follow: rate too high, no warm-up, or one huge gradient without clipping"
    fix = "restart from a checkpoint before the turn with lr divided by ten, warm-up, and clip_grad_norm_(parameters, 1.0)"

    points_needed: int = 20  # fewer are no trend
    tail: int = 5  # last points, or a 32nd of all; nearly all of them are far above: one bad batch is not
    fallen: float = 8.0  # standard errors that it had fallen by, if it is to have learned
    share: float = 0.1  # of the later rise that the fall had: an adversary's loss dips, and climbs much farther
    beyond: float = 0.5  # of what it had learned, above its start
    explosion: float = 10.0  # times its first value, what it learned, and ten standard errors
    relearned: float = 0.3  # share of the rise that was won back
    enormous: float = 1e3  # times the first value, which no healthy loss reaches, however early it leaps
    first: int = 8  # points that say how noisy the beginning is
    calm: float = 4.0  # spreads of a point above the start
    undone: float = 0.8  # share of what was learned that is gone, where rate or accuracy show it too
    gradual: int = 3  # levels of the climb; fewer are a jump, as between two tasks
    raised: float = 2.0  # times the highest rate until the best loss
    forgotten: float = 0.25  # share of what the accuracy had gained that may be left

    def lacks(self, event: CurvesUpdated) -> str:
        """Whether the curves are there, and long enough."""
        return lacking(event, train_loss=self.points_needed)

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """The last points beside the first ones and the best level."""
        if not falling_is_due(event) or range_test(event):
            return
        for curve in curves(event, "train_loss"):
            found = trend(curve)
            if found is None or found.points < self.points_needed:
                continue
            if self._diverges(curve, found):
                yield self._tell(event, curve, found)
            elif climb := self._undone(found):
                slowly, best = climb >= self.gradual, found.steps[found.best]
                if sign := self._raised(event, best, curve.steps) or (self._forgotten(event) if slowly else ""):
                    yield self._tell(event, curve, found, sign)

    def _diverges(self, curve: Curve, t: Trend) -> bool:
        lowest = self._floor(curve)
        if self._blew_up(curve.values[: self.first], t.start, lowest) or self._left(curve, t, lowest):
            return True
        best, learned = t.levels[t.best], t.start - t.levels[t.best]
        early = trend(until(curve, max(t.steps[t.best], t.steps[len(t.steps) // 4]))) or t
        if 2 * abs(t.start) <= self.calm * early.spread and learned < self.fallen * early.noise:
            return False  # it begins at nothing
        scale = max(abs(t.start), learned, 10 * early.noise)
        exploded = lowest - best >= self.explosion * scale
        relapsed = learned >= max(self.fallen * early.noise, self.share * (lowest - best))
        above = lowest - t.start >= max(self.beyond * learned, self.calm * t.spread)
        return exploded or (relapsed and above and not self._learns_again(t))

    def _undone(self, t: Trend) -> int:
        """Back where it began, and still there: the levels that it took, or 0."""
        best = t.around(t.best)
        early = t.levels[: max(t.best + 1, len(t.levels) // 4)]
        learned, after = min(t.start, max(early)) - best, t.levels[t.best + 1 :]
        if learned < self.fallen / 2 * t.noise or t.last - best < self.undone * learned:
            return 0
        low = max((i for i, level in enumerate(after) if level < best + 0.2 * learned), default=-1)
        high = next((i for i, level in enumerate(after) if level >= best + self.undone * learned), len(after))
        stays = min(t.levels[-2:]) >= best + 0.7 * learned and not t.falls(-max(4, len(t.levels) // 4))
        return max(1, high - low) if stays and kendall(after) > 2.5 else 0

    def _raised(self, event: CurvesUpdated, best: float, steps: Sequence[float]) -> str:
        """Since then the rate grew far over all that it was before."""
        rate = main(event, "learning_rate")
        if rate is None or len(rate.values) < self.first or rate.steps[-1] > 1.1 * steps[-1]:
            return ""
        then, now = max(rate.values[: bisect_left(rate.steps, best) + 1]), rate.values[-1]
        return f"the rate grew from {then:.3g} to {now:.3g}" if now >= self.raised * then > 0 else ""

    def _forgotten(self, event: CurvesUpdated) -> str:
        """The accuracy is lost with it: no other term of the loss, and no harder data."""
        for role in ("train_accuracy", "val_accuracy"):
            logged = main(event, role)
            found = trend(shares(logged)) if logged is not None else None
            if found is not None and found.points >= self.first and self._forgot(found):
                return f"{role.replace('_', ' ')} fell from {max(found.levels):.0%} to {found.last:.0%}"
        return ""

    def _forgot(self, t: Trend) -> bool:
        first, top = min(t.levels[0], t.start), max(map(t.around, range(len(t.levels))))
        begins = min(first, t.last)  # validation begins when something was learned already
        gained = top - begins
        return gained > self.fallen * t.noise and t.last - begins <= self.forgotten * gained and t.last < 0.5 * top

    def _blew_up(self, first: Sequence[float], start: float, lowest: float) -> bool:
        """Soon after the start, and for good: what the later points look like says nothing about the first ones."""
        middle = median(first)
        spread = MAD_TO_SIGMA * median(abs(value - middle) for value in first)
        return start > self.calm * spread and lowest >= self.enormous * start

    def _left(self, curve: Curve, t: Trend, lowest: float) -> bool:
        """It had fallen, and then left for good, to where no point before was near."""
        before = until(curve, t.steps[t.best]).values
        fell = t.best > 0 and t.start - t.levels[t.best] >= self.relearned * t.start > 0
        return fell and lowest >= self.enormous * max(before)

    def _learns_again(self, t: Trend) -> bool:
        """It falls, or fell by much since it jumped over its start: harder data looks like that."""
        over = [level for level in t.levels[t.best :] if level > t.start] or [t.last]
        jumped = median(over[: max(1, len(over) // 4)])
        fades = jumped - t.last > self.relearned * (jumped - t.levels[t.best])
        return fades or t.falls(-max(4, len(t.levels) // 4))

    def _floor(self, curve: Curve) -> float:
        """What four of five of the last points exceed."""
        last = sorted(curve.values[-max(self.tail, len(curve.values) // 32) :])
        return last[len(last) // 5]

    def _tell(self, event: CurvesUpdated, curve: Curve, t: Trend, sign: str = "") -> Finding:
        best, end = t.levels[t.best], curve.values[-1]
        fell = (
            f"fell from {t.start:.4g} to {best:.4g} by step {shown(t.steps[t.best])}, then " if best < t.start else ""
        )
        rose = (
            f"came back to {t.last:.4g} by step {shown(curve.steps[-1])}: what it had learned is lost; {sign}"
            if sign
            else f"rose to {end:.4g} at step {shown(curve.steps[-1])}, far above its first value {t.start:.4g}"
        )
        return self.finding(
            event,
            f"{curve.name} {fell}{rose}",
            key=curve.name,
            first=t.start,
            best=best,
            best_step=t.steps[t.best],
            last=end,
        )
