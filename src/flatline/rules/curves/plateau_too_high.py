"""C3."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flatline.events import CurvesUpdated
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule
from flatline.trends import Trend, classes_of, drift, falling_is_due, kendall, lacking, main, shown, trend, warming


class PlateauTooHigh(Rule):
    """The loss of a classifier fell a little from ln C, and stands still since, closer to guessing than to knowing.

    Symptom
    -------
    The curve bends early and runs flat for the rest of the run, at more than 0.6 of ln C.

    Root cause
    ----------
    The model learned how often each class comes and little else: too small a model, a rate that is too low or decayed
    too early, gradients that vanish before the first layers, or inputs that lost what tells the classes apart.

    Fix
    ---
    Train on 32 examples until the loss is 0. If that works, raise the rate (range test), lengthen the schedule, enlarge the
    model, and look at what augmentation and normalisation leave of the inputs.

    Example
    -------
    ::

        scheduler = StepLR(optimizer, step_size=1, gamma=0.1)

    Use instead
    -----------
    ::

        scheduler = CosineAnnealingLR(optimizer, T_max=epochs)

    Healthy look-alikes
    -------------------
    A label-smoothing floor, which lies far lower; fine-tuning, which begins low; a slow power law; the plateau before a late
    fall; a task that is noisy by nature. As nobody can know the best loss of a task, it is a hint.

    References
    ----------
    - https://karpathy.github.io/2019/04/25/recipe/
    """

    code = "C3"
    severity = "hint"
    cause = "the model learned how often each class comes and little else: rate too low or decayed, model too small, poor inputs"
    fix = "train on 32 examples until the loss is 0; if that works, raise or lengthen the rate and look at the inputs"

    points_needed: int = 64  # fewer are the beginning of a run
    began: float = 0.15  # relative distance under ln C of the first loss: it began by guessing
    high: float = 0.6  # of ln C; a plain network on CIFAR-10 ends at 0.5
    flat: float = 0.03  # of what it learned that the last half may still bring
    unsure: float = 1.75  # times the noise of a level: two standard errors of a drift over 16 of them
    learned: float = 0.03  # of ln C; less is stuck at chance

    def lacks(self, event: CurvesUpdated) -> str:
        """Whether the curves are there, and long enough, and the classes known."""
        unknown = "" if classes_of(event) else "the number of classes is not known"
        return lacking(event, train_loss=self.points_needed) or unknown

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """The last half of the training loss."""
        loss = main(event, "train_loss")
        found, classes = trend(loss), classes_of(event)
        if loss is None or found is None or not classes or classes < 2 or loss.count < self.points_needed:
            return
        if falling_is_due(event) and not warming(event) and self._high_and_flat(found, math.log(classes)):
            chance, half = math.log(classes), found.steps[len(found.steps) // 2]
            about = "" if event.classes else "about "
            yield self.finding(
                event,
                f"{loss.name} stands at {found.last:.4g} since step {shown(half)}, {found.last / chance:.0%} of the {chance:.4g} "
                f"that guessing among {about}{classes} classes costs",
                level=found.last,
                chance=chance,
                since=half,
            )

    def _high_and_flat(self, t: Trend, chance: float) -> bool:
        late = t.levels[len(t.levels) // 2 :]
        learned = chance - median(late)
        if max(t.start, t.levels[0]) < (1 - self.began) * chance or not self.high * chance < t.last < chance:
            return False
        moved = abs(drift(late))
        still = moved <= self.flat * learned or (moved <= self.unsure * t.noise and kendall(late) > -2)
        return still and learned > max(self.learned * chance, 6 * t.noise / math.sqrt(len(late) / 2))
