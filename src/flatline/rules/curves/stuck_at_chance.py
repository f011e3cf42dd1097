"""C2."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flatline.events import Curve, CurvesUpdated
from flatline.findings import Finding
from flatline.history import fmean
from flatline.rules import Rule
from flatline.trends import (
    Trend,
    curves,
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


class StuckAtChance(Rule):
    """The loss of a classifier stays at ln C, which is what guessing costs.

    Symptom
    -------
    0.693 with two classes, 2.303 with ten, 6.908 with a thousand, from the first step to the last. The accuracy is 1 / C.

    Root cause
    ----------
    The inputs say nothing about the labels that the model sees: labels in another order, all inputs equal or far out of scale,
    a cut graph, an optimizer without these parameters, or a rate so low or so high that nothing is learned.

    Fix
    ---
    Train on 32 examples until the loss is 0. If it does not get there, the loop is broken: run it under ``flatline run``. If
    it does, look at how inputs and labels are paired.

    Example
    -------
    ::

        images, labels = images[torch.randperm(n)], labels[torch.randperm(n)]

    Use instead
    -----------
    ::

        order = torch.randperm(n)
        images, labels = images[order], labels[order]

    Healthy look-alikes
    -------------------
    The first steps of a large classifier, or its warm-up; contrastive losses, which begin at ln B and fall; an
    adversary at its equilibrium; label smoothing, which has a floor, but far under ln C.

    References
    ----------
    - https://karpathy.github.io/2019/04/25/recipe/
    """

    code = "C2"
    severity = "warning"
    consequences = ("C3", "C5", "C8")
    cause = (
        "the inputs say nothing about the labels, or nothing is learned: no gradient, wrong pairing, or a hopeless rate"
    )
    fix = (
        "train on 32 examples until the loss is 0: if it stays, the loop is broken, else look at how labels are paired"
    )

    tolerance: float = 0.02  # of ln C; a classifier that knows the shares of its classes lies lower
    points_needed: int = 20  # fewer are the beginning of any run
    alone: int = 1000  # points of the training loss that need no second curve
    second: int = 3  # points of validation, which are as many passes over the data
    guess: float = 0.1  # relative distance of an accuracy from 1 / C

    def lacks(self, event: CurvesUpdated) -> str:
        """Whether the curves are there, and long enough, and the classes known."""
        seen = event.classes or any(curves(event, role) for role in ("train_accuracy", "val_accuracy"))
        unknown = "" if seen else "the number of classes is not known"
        return lacking(event, train_loss=self.points_needed) or unknown

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """The level of the training loss, beside the number of classes or an accuracy."""
        loss = main(event, "train_loss")
        found = trend(loss, 12)
        if (
            loss is None
            or found is None
            or len(loss.values) < self.second
            or not falling_is_due(event)
            or warming(event)
        ):
            return
        classes = event.classes or self._guessed(event, found.last)
        if not classes or classes < 2 or not self._stuck(found, math.log(classes)):
            return
        proof = self._proof(event, loss, math.log(classes), classes)
        if proof:
            chance = math.log(classes)
            yield self.finding(
                event,
                f"{loss.name} stayed at {found.last:.4g} from step {shown(loss.steps[0])} to step {shown(loss.steps[-1])}: "
                f"that is ln {classes} = {chance:.4g}, the loss of guessing among {classes} classes; {proof}",
                classes=classes,
                chance=chance,
                level=found.last,
            )

    def _stuck(self, t: Trend, chance: float) -> bool:
        near = self.tolerance * chance + 3 * t.noise
        late = t.levels[len(t.levels) // 3 :]
        if 3 * t.noise > 2 * self.tolerance * chance or any(abs(level - chance) > near for level in late):
            return False
        falls = kendall(late) < -2.5 and drift(late) < -max(0.5 * self.tolerance * chance, 4 * t.noise)
        return not falls and abs(t.last - chance) <= self.tolerance * chance and t.last >= min(t.start, chance) - near

    def _proof(self, event: CurvesUpdated, loss: Curve, chance: float, classes: int) -> str:
        validation = main(event, "val_loss")
        if validation is not None and len(validation.values) >= self.second:
            near = all(
                abs(value - chance) <= 3 * self.tolerance * chance for value in validation.values[-self.second :]
            )
            return f"the validation loss is {validation.values[-1]:.4g}" if near else ""
        accuracy = self._accuracy(event)
        if accuracy is not None and loss.count >= self.points_needed:
            return f"the accuracy is {accuracy[0]:.3g}" if self._guesses(*accuracy, classes) else ""
        return f"at {loss.count:,} points without a trend" if loss.count >= self.alone else ""

    def _accuracy(self, event: CurvesUpdated) -> tuple[float, float] | None:
        """Its level and the error of that, if it does not rise: as a share."""
        logged = [shares(c) for role in ("train_accuracy", "val_accuracy") for c in curves(event, role)]
        pairs = [(c, t) for c in logged if (t := trend(c))]
        if not pairs or any(t.rises(z=3.0) for _, t in pairs):
            return None
        curve, found = pairs[0]
        return fmean(curve.values), found.spread / math.sqrt(len(curve.values))

    def _guesses(self, level: float, error: float, classes: int) -> bool:
        """Whether that is the accuracy of guessing: batches of 32 among 10 classes are right three times, or four."""
        return error * classes <= self.guess and abs(level * classes - 1) <= max(self.guess, 3 * error * classes)

    def _guessed(self, event: CurvesUpdated, level: float) -> int | None:
        """The number of classes of which both the loss and the accuracy are those of a guess."""
        accuracy, classes = self._accuracy(event), round(math.exp(min(level, 12.0)))
        return classes if accuracy is not None and classes > 1 and self._guesses(*accuracy, classes) else None
