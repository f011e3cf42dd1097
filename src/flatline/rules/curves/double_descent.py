"""C7."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import CurvesUpdated
from flatline.findings import Finding
from flatline.rules import Rule
from flatline.trends import Trend, falling_is_due, kendall, lacking, main, shown, steps_of, trend


class DoubleDescent(Rule):
    """The validation loss fell, rose, and fell again, while the training loss only fell.

    Symptom
    -------
    A hump in the validation loss. Early stopping at the first minimum would have missed what came after it.

    Root cause
    ----------
    Around the point where a model just fits all of its training data, noise and wrong labels included, it generalises worst.
    Trained on, or larger, it finds smoother solutions among the many that fit.

    Fix
    ---
    Do not trust an early stop with little patience here: keep the best checkpoint and train on. Weight decay, more data and
    cleaner labels flatten the hump.

    Example
    -------
    ::

        EarlyStopping(patience=3)

    Use instead
    -----------
    ::

        EarlyStopping(patience=30)
        AdamW(model.parameters(), weight_decay=0.1)

    Healthy look-alikes
    -------------------
    The noise of a small validation set; a hump in both curves, as a restart of the schedule or a high rate makes it; a
    validation loss that turned and went on rising, which is overfitting.

    References
    ----------
    - Nakkiran et al., Deep Double Descent, 2019, https://arxiv.org/abs/1912.02292
    """

    code = "C7"
    severity = "hint"
    cause = "around the point where it just fits all of its data a model generalises worst; trained on, it gets better again"
    fix = "keep the best checkpoint, give early stopping more patience, and use weight decay; cleaner labels flatten the hump"

    points_needed: int = 14  # validations; a hump has three sides
    side: int = 4  # levels on each side of the top
    sure: float = 8.0  # standard errors of a level that the hump is high
    height: float = 0.2  # of what validation gained in all
    rising: float = 1.6  # Mann and Kendall's z on each side; 4 levels that all rise have 1.7

    def lacks(self, event: CurvesUpdated) -> str:
        """Whether the curves are there, and long enough."""
        return lacking(event, train_loss=self.points_needed, val_loss=self.points_needed)

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """The highest level between two low ones, and training over the same steps."""
        validation, train = trend(main(event, "val_loss")), trend(main(event, "train_loss"))
        if validation is None or train is None or validation.points < self.points_needed or not falling_is_due(event):
            return
        hump = self._hump(validation)
        if hump is None or not _only_falls(
            train, *(steps_of(train, validation.steps, validation.steps[i]) for i in hump)
        ):
            return
        low, top = hump
        yield self.finding(
            event,
            f"validation loss fell to {validation.around(low):.4g} (step {shown(validation.steps[low])}), rose to "
            f"{validation.around(top):.4g} (step {shown(validation.steps[top])}) and fell again to {validation.last:.4g}, while "
            "training loss only fell",
            low_step=validation.steps[low],
            top_step=validation.steps[top],
            low=validation.around(low),
            top=validation.around(top),
            last=validation.last,
        )

    def _hump(self, t: Trend) -> tuple[int, int] | None:
        """Where the first minimum and the top are."""
        calm = [t.around(i) for i in range(len(t.levels))]
        best: tuple[float, int, int] = (0.0, 0, 0)
        for top in range(2 * self.side, len(calm) - self.side):
            low = min(range(2, top), key=calm.__getitem__)
            height = min(calm[top] - calm[low], calm[top] - t.last)
            best = max(best, (height, low, top))
        height, low, top = best
        gained = t.start - min(calm)
        if height < max(self.sure * t.noise, self.height * gained) or t.start - calm[low] < self.sure / 2 * t.noise:
            return None
        up, down = t.levels[low : top + 1], t.levels[top:]
        sides = len(up) >= self.side and len(down) >= self.side
        return (low, top) if sides and kendall(up) > self.rising and kendall(down) < -self.rising else None


def _only_falls(train: Trend, low: float, top: float) -> bool:
    """Training shows no hump there."""
    begin, end = train.at(low), train.at(top)
    return (
        train.around(end) <= train.around(begin) - 2 * train.noise and train.last <= train.around(end) + 2 * train.noise
    )
