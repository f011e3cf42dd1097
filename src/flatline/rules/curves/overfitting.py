"""C4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flatline.events import CurvesUpdated
from flatline.findings import Finding
from flatline.rules import Rule
from flatline.trends import Trend, drift, falling_is_due, kendall, lacking, main, shown, steps_of, trend


class Overfitting(Rule):
    """The validation loss turned and rises, while the training loss goes on falling.

    Symptom
    -------
    The two curves part: from some step on everything that training gains on its own data is lost on new data.

    Root cause
    ----------
    What generalises has been learned, and the model now memorises single examples: too many epochs, too little data, or too
    large a model without regularisation.

    Fix
    ---
    Keep the checkpoint of the turn: stop early. To get lower, add data or augmentation, dropout or weight decay, or take a
    smaller model.

    Example
    -------
    ::

        for epoch in range(100):
            train(model)
        torch.save(model.state_dict(), "last.pt")

    Use instead
    -----------
    ::

        for epoch in range(100):
            train(model)
            if (loss := validate(model)) < best:
                best = loss
                torch.save(model.state_dict(), "best.pt")

    Healthy look-alikes
    -------------------
    A small and noisy validation set; a validation loss that stands still, or that lies above or below the training loss at a
    constant distance; both rising together, as under a growing KL weight; a rise that is over, as in double descent; an accuracy
    that still improves while the loss grows with the model's confidence, which is a hint only.

    References
    ----------
    - Prechelt, Early Stopping, But When?, 1998, https://doi.org/10.1007/978-3-642-35289-8_5
    - Guo et al., On Calibration of Modern Neural Networks, 2017, https://arxiv.org/abs/1706.04599
    """

    code = "C4"
    severity = "warning"
    cause = "what generalises has been learned; since the turn the model memorises its training data"

    points_needed: int = 8  # validations; fewer show no turn
    after_needed: int = 5  # of them after the turn
    share: float = 0.2  # of all validations, after the turn
    sure: float = 8.0  # standard errors of a level that it rose
    rising: float = 2.2  # Mann and Kendall's z after the turn; 5 points that all rise have 2.2
    worse: float = 0.1  # rise over the best validation loss that is worth a warning
    small: float = 0.05  # of all that was learned; under it a rise is worth a hint
    stays: float = 0.7  # share of the rise under which it never falls again, if the rise is over
    steps: int = 2  # points of that rise; less is one validation that was lucky
    fine: int = 64  # levels, so that the rise may be short
    mild: float = 0.25  # rise over what validation had gained that is worth a hint
    trained: float = 0.05  # fall of the training loss since the turn, of its level

    def lacks(self, event: CurvesUpdated) -> str:
        """Whether the curves are there, and long enough."""
        return lacking(event, train_loss=self.points_needed, val_loss=self.points_needed)

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """Validation after its lowest point, and training over the same steps."""
        validation, train = trend(main(event, "val_loss")), trend(main(event, "train_loss"))
        if validation is None or train is None or validation.points < self.points_needed or not falling_is_due(event):
            return
        turn = self._turn(validation)
        fine = trend(main(event, "val_loss"), self.fine)
        if turn is None and fine is not None and self._settled(fine):
            turn, validation = fine.best, fine
        if turn is None or not (parted := self._parted(validation, train, turn)):
            return
        best = validation.around(turn)
        least = max(self.worse * best, self.small * (max(train.start, validation.start) - best))
        severe = best > 0 and parted.rise >= least
        if severe or parted.rise >= self.mild * (validation.start - validation.levels[turn]) > 0:
            severe = severe and not _improves(event, validation.steps[turn])
            yield self._tell(event, validation, parted, "warning" if severe else "hint")

    def _turn(self, t: Trend) -> int | None:
        """Where validation was best, if it rose for long and for sure since then."""
        best = t.best
        after = t.levels[best + 1 :]
        if len(after) < max(self.after_needed, self.share * len(t.levels)):
            return None
        rise = t.last - t.around(best)
        sure = rise >= self.sure * t.noise and kendall(after) >= self.rising and drift(after) > 2 * t.noise
        still = t.last >= t.around(best) + 0.5 * (max(after) - t.around(best))
        return best if sure and still else None

    def _settled(self, t: Trend) -> bool:
        """It rose by steps, and stays there: nothing is left in the training data to learn."""
        low, after = t.levels[t.best], t.levels[t.best + 1 :]
        rise = t.last - low
        high = next((i for i, level in enumerate(after) if level >= low + self.stays * rise), 0)
        stands = all(level >= low + self.stays * rise for level in after[high:])
        long = len(after) - high >= max(self.after_needed, self.share * len(t.levels))
        still = rise >= 0.5 * (max(after, default=low) - low)
        return rise >= self.sure * t.noise and self.steps <= high + 1 and stands and long and still

    def _parted(self, validation: Trend, train: Trend, turn: int) -> _Parted | None:
        begin = train.at(steps_of(train, validation.steps, validation.steps[turn]))
        end = train.at(steps_of(train, validation.steps, validation.steps[-1]))
        then, now = train.around(begin), train.around(end)
        if end - begin < 3 or then - now < max(self.trained * abs(then), 3 * train.noise):
            return None
        if not train.falls(begin, end + 1, z=2.0):
            return None
        best = validation.around(turn)
        return _Parted(validation.steps[turn], best, validation.last, validation.last - best, then, now)

    def _tell(self, event: CurvesUpdated, t: Trend, p: _Parted, severity: str) -> Finding:
        return self.finding(
            event,
            f"validation loss turned at step {shown(p.step)} ({p.best:.4g}) and rose to {p.last:.4g} by step "
            f"{shown(t.steps[-1])}, while training loss fell from {p.then:.4g} to {p.now:.4g}",
            severity="warning" if severity == "warning" else "hint",
            fix=f"keep the checkpoint of step {shown(p.step)} (stop early); to get lower: more data or augmentation, dropout, "
            "weight decay, or a smaller model",
            turn=p.step,
            best=p.best,
            last=p.last,
            train_then=p.then,
            train_now=p.now,
        )


@dataclass(frozen=True, slots=True)
class _Parted:
    step: float
    best: float
    last: float
    rise: float
    then: float
    now: float


def _improves(event: CurvesUpdated, step: float) -> bool:
    """The validation accuracy still rises after the turn."""
    accuracy = trend(main(event, "val_accuracy"))
    if accuracy is None:
        return False
    after = accuracy.levels[accuracy.at(step) :]
    return kendall(after) > 2.0 and drift(after) > 2 * accuracy.noise
