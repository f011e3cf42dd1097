"""C5."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flatline.events import CurvesUpdated
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule
from flatline.trends import (
    Trend,
    classes_of,
    drift,
    falling_is_due,
    kendall,
    lacking,
    main,
    shares,
    shown,
    trend,
    warming,
)


class Underfitting(Rule):
    """Training and validation loss of a classifier are both high, flat, and close together.

    Symptom
    -------
    Two flat curves side by side, at more than 0.6 of ln C. There is no gap to regularise away.

    Root cause
    ----------
    The model does not fit even its own training data: the rate is too low, the regularisation too strong, the training
    too short or the model too small.

    Fix
    ---
    Try the learning rate first, ten times higher: a rate that is too low looks the same as a model that is too small, and is
    mended in seconds. Then take away dropout, augmentation and weight decay, then enlarge the model.

    Example
    -------
    ::

        model = nn.Sequential(nn.Dropout(0.9), nn.Linear(784, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)

    Use instead
    -----------
    ::

        model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-1, momentum=0.9)

    Healthy look-alikes
    -------------------
    Two curves that still fall; a run that was stopped early; fine-tuning, which begins low and hardly falls; a low floor; a
    validation loss that stands still while the training loss goes on falling.

    References
    ----------
    - https://cs231n.github.io/neural-networks-3/#loss
    """

    code = "C5"
    severity = "hint"
    consequences = ("C3",)
    cause = "the model does not fit its own training data: rate too low, regularisation too strong, or model too small"
    fix = "raise lr ten times first; then take away dropout, augmentation and weight decay; then enlarge the model"

    points_needed: int = 16  # of the training loss; fewer are the beginning of a run
    began: float = 0.15  # relative distance under ln C of the first training loss: it began by guessing
    high: float = 0.6  # of ln C; a plain network on CIFAR-10 ends at 0.5
    gap: float = 0.15  # between the two, of the training loss; more is overfitting
    unsure: float = 1.75  # times the noise of a level: two standard errors of a drift over 16 of them
    learned: float = 0.03  # of ln C; less is stuck at chance
    flat: float = 0.03  # of what was learned that the last half may still bring
    small: float = 0.01  # of ln C, that the last half may bring to validation where little was learned
    right: float = 0.5  # accuracy on the training data: more may be the best that its labels allow
    still: float = 0.01  # of accuracy, that the last half may still bring

    def lacks(self, event: CurvesUpdated) -> str:
        """Whether the curves are there, and long enough, and the classes known."""
        seen = classes_of(event) or (main(event, "train_accuracy") and main(event, "val_accuracy"))
        unknown = "" if seen else "the number of classes is not known"
        return lacking(event, train_loss=self.points_needed, val_loss=8) or unknown

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """The last halves of both curves."""
        train, validation = trend(main(event, "train_loss")), trend(main(event, "val_loss"), 16)
        if train is None or validation is None or warming(event) or not falling_is_due(event):
            return
        classes, gap = classes_of(event), abs(validation.last - train.last)
        if train.points < self.points_needed or gap > self.gap * abs(train.last):
            return
        since = shown(train.steps[len(train.steps) // 2])
        if classes and classes > 1:
            yield from self._beside_chance(event, train, validation, math.log(classes), since)
        else:
            yield from self._by_accuracy(event, since)

    def _beside_chance(
        self, event: CurvesUpdated, train: Trend, validation: Trend, chance: float, since: str
    ) -> Iterator[Finding]:
        least = max(train.start - train.last, self.small * chance / self.flat)
        if self._high_and_flat(train, chance) and self._flat(validation, least):
            yield self.finding(
                event,
                f"training and validation loss both stand still, at {train.last:.4g} and {validation.last:.4g}, since step "
                f"{since}: {train.last / chance:.0%} of the {chance:.4g} that guessing costs",
                train=train.last,
                validation=validation.last,
                chance=chance,
            )

    def _by_accuracy(self, event: CurvesUpdated, since: str) -> Iterator[Finding]:
        """Where nobody knows the classes: most answers are wrong, on the data that it was trained on too."""
        found = [c and trend(shares(c), 16) for c in (main(event, "train_accuracy"), main(event, "val_accuracy"))]
        levels = [t.last for t in found if t and t.points >= self.points_needed and self._stands(t)]
        if len(levels) == 2 and max(levels) <= self.right and abs(levels[0] - levels[1]) <= self.gap * max(levels):
            yield self.finding(
                event,
                f"training and validation accuracy both stand still, at {levels[0]:.0%} and {levels[1]:.0%}, since step "
                f"{since}",
                train_accuracy=levels[0],
                validation_accuracy=levels[1],
            )

    def _stands(self, t: Trend) -> bool:
        late = t.levels[len(t.levels) // 2 :]
        return drift(late) <= max(1.5 * t.noise, self.still) and kendall(late) < 2

    def _high_and_flat(self, t: Trend, chance: float) -> bool:
        late = t.levels[len(t.levels) // 2 :]
        learned = chance - median(late)
        if max(t.start, t.levels[0]) < (1 - self.began) * chance or not self.high * chance < t.last < chance:
            return False
        return learned > max(self.learned * chance, 6 * t.noise / math.sqrt(len(late) / 2)) and self._flat(t, learned)

    def _flat(self, t: Trend, learned: float) -> bool:
        late = t.levels[len(t.levels) // 2 :]
        moved = abs(drift(late))
        return moved <= self.flat * learned or (moved <= self.unsure * t.noise and kendall(late) > -2)
