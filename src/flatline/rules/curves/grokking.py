"""C8."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import CurvesUpdated
from flatline.findings import Finding
from flatline.rules import Rule
from flatline.trends import Trend, falling_is_due, lacking, main, shown, steps_of, trend


class Grokking(Rule):
    """The training data was learned by heart early, and validation follows only much later, or not yet.

    Symptom
    -------
    The training loss is near 0 after a small part of the run. The validation loss stays where it began, for long, and then
    falls at once, or the run ends before it does.

    Root cause
    ----------
    The model first stores the examples in large weights. Weight decay slowly makes that expensive, until the simpler rule
    that generalises wins. It is seen above all on small algorithmic tasks.

    Fix
    ---
    Be patient, and raise the weight decay (0.1 to 1 with AdamW): it shortens the wait. More training data does, too. If the
    task is not of that kind, check first that validation inputs are prepared like training inputs.

    Example
    -------
    ::

        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    Use instead
    -----------
    ::

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1.0)

    Healthy look-alikes
    -------------------
    A validation loss that fell with training before it stood still; a training loss that is low but not near 0; validation
    that rises after it had fallen, which is overfitting.

    References
    ----------
    - Power et al., Grokking, 2022, https://arxiv.org/abs/2201.02177
    """

    code = "C8"
    severity = "hint"
    cause = "the examples were stored first; weight decay makes that expensive until the rule that generalises wins"
    fix = "be patient and raise weight decay (AdamW, 0.1 to 1); check that validation inputs are prepared like training inputs"

    points_needed: int = 12  # validations
    alike: float = 0.3  # the first two losses, one over the other, if nothing was learned yet and nothing blew up
    learned: float = 0.05  # of the first training loss, that is left when the data is known by heart
    early: float = 0.35  # of the run, by which that was so
    high: float = 0.8  # of the first validation loss: nothing of it was learned
    low: float = 0.4  # of the first validation loss: it was
    later: float = 2.0  # times the step of the first, at which the second happened

    def lacks(self, event: CurvesUpdated) -> str:
        """Whether the curves are there, and long enough."""
        return lacking(event, train_loss=self.points_needed, val_loss=self.points_needed)

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """When training was done, and where validation was then and is now."""
        validation, train = trend(main(event, "val_loss"), 64), trend(main(event, "train_loss"), 64)
        if validation is None or train is None or validation.points < self.points_needed or not falling_is_due(event):
            return
        done = self._done(train)
        first = max(validation.levels[0], validation.start)
        if (
            done is None
            or min(validation.levels) <= 0
            or not self.alike <= max(train.start, train.levels[0]) / first <= 1 / self.alike
        ):
            return
        now = steps_of(validation, train.steps, done)
        at = validation.at(now)
        if min(validation.levels[: at + 1]) < self.high * first:
            return
        if validation.last >= self.high * first:
            yield self._tell(
                event, done, f"and the validation loss is {validation.last:.4g}, after {first:.4g} at its start"
            )
            return
        fell = next((i for i in range(at, len(validation.levels)) if validation.levels[i] < self.low * first), None)
        if fell is not None and validation.steps[fell] >= self.later * now and validation.last < self.low * first:
            yield self._tell(event, done, f"the validation loss followed only at step {shown(validation.steps[fell])}")

    def _done(self, t: Trend) -> float | None:
        """The step from which on the training loss is near 0, if that is early."""
        if min(t.levels) < 0 or t.start <= 0:
            return None
        high = [i for i, level in enumerate(t.levels) if level > self.learned * t.start]
        done = (high[-1] + 1) if high else 0
        return t.steps[done] if done < self.early * len(t.levels) else None

    def _tell(self, event: CurvesUpdated, done: float, what: str) -> Finding:
        return self.finding(
            event,
            f"the training loss is under {self.learned:.0%} of its first value since step {shown(done)}, {what}",
            done=done,
        )
