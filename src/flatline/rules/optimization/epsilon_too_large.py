"""O29."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from flatline.events import (
    FirstCrossEntropy,
    LossesRead,
    NumbersSampled,
    OptimizerStateSampled,
    ParametersAudited,
    RunEnded,
    TrainingBegan,
)
from flatline.findings import Finding
from flatline.history import Course, median
from flatline.rules import Rule

ADAMS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop")  # whose root is about the size of the gradient


class EpsilonTooLarge(Rule):
    """The optimizer's eps is so large that it, and not the gradients, sets the size of the steps.

    Symptom
    -------
    The loss stands, or creeps, at a learning rate that is right for Adam. No error, no nan, healthy gradients.

    Root cause
    ----------
    Adam divides by sqrt(v) + eps, where sqrt(v) is the typical size of a weight's gradient: often 1e-4 to 1e-2. With
    an eps of 1 the division leaves the gradient as it is, so that a step is that of SGD at Adam's small rate.

    Fix
    ---
    ``eps=1e-8``, or leave it out. A large eps needs a rate that is larger by as much.

    Example
    -------
    ::

        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1.0)

    Use instead
    -----------
    ::

        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    Healthy look-alikes
    -------------------
    The eps of 1e-3 to 1e-2 of EfficientNet and of agents that learn by reinforcement, and one of 1 with a rate for it: the
    weights move. A loss that falls, and the slower the longer. Gradients that have come down at the end of a run. A model that
    was trained before, and stands at its best.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
    - https://www.tensorflow.org/api_docs/python/tf/keras/optimizers/Adam
    - https://cs231n.github.io/neural-networks-3/#ratio
    """

    code = "O29"
    severity = "warning"
    each_training = True
    trial_dependent = True
    consequences = ("O7", "O22", "C2", "C3", "C5", "C6")

    swamped: float = 30.0  # times the typical gradient: then 3 % of a step of Adam are left, or less
    slow_ratio: float = 3e-5  # update over weight, as in O7; the lowest of 97 healthy public scripts was 8.8e-4
    lag_ratio: float = 2e-4  # the same for a whole run at the loss of guessing, as in O7
    meant: float = 1e-4  # rate over weight: without eps the steps would not be small, the rate is not to blame
    samples_needed: int = 20  # sampled steps, the typical one of them
    first_index: int = 80  # step from which on it is judged, as in O7
    run: int = 200  # steps of a whole run
    guessed: float = 0.8  # first cross entropy over ln(classes), as in O7
    fallen: float = 0.02  # a loss that fell by more is learning; one that rose may be that of targets which grow
    fallen_little: float = 0.2  # for a whole run from guessing: twice that of O7, where eps is not known to be at fault
    unfinished: float = 0.35  # share of the first loss, the most that a run came down that ended early, as in O7
    undiminished: float = 0.6  # fall of its second half over that of the first, as in O7
    lately: float = 0.1  # of what it came down in the second half, in the last fifth of that: a fifth at an even pace
    rising: float = 1.05  # rate over the first one seen, in warm-up
    near: float = 1.25  # times the last loss of the training before: its weights went on
    decayed: float = 0.01  # rate over its peak at the end of a decay
    gradient: float = 1e-8  # gradients under this are themselves the defect

    def __init__(self) -> None:
        self._seen: dict[int, _Steps] = {}
        self._resumed: set[int] = set()  # optimizers that hold only what was trained before
        self._guesses = False
        self._left_at: float | None = None  # loss at the end of the training before

    def on_parameters_audited(self, event: ParametersAudited) -> None:
        """Whose model may be at its best."""
        self._resumed |= event.resumed()

    def on_training_began(self, event: TrainingBegan) -> None:
        """After another one, whose weights it may go on with, averaged or put in by hand."""
        self._left_at = event.last_loss

    def on_first_cross_entropy(self, event: FirstCrossEntropy) -> None:
        """Whether training began with guesses."""
        self._guesses = event.value >= self.guessed * math.log(max(2, event.classes))

    def on_optimizer_state_sampled(self, event: OptimizerStateSampled) -> None:
        """The eps of an optimizer whose arithmetic is known."""
        if event.stock and event.optimizer.name in ADAMS and event.eps:
            self._seen.setdefault(event.optimizer.key, _Steps()).eps = event.eps

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """Steps that next to nothing is left of, and a loss that stands."""
        steps = self._seen.get(event.optimizer.key)
        if steps is None or not steps.add(event):
            return
        warming = event.lr > self.rising * steps.rates[-self.samples_needed :][0]
        decayed = event.lr < self.decayed * event.peak_lr
        early = event.index < self.first_index or len(steps.updates) < self.samples_needed
        stands = not (early or warming or decayed) and abs(steps.fell()) <= self.fallen
        goes_on = self._left_at is not None and (event.first_loss or 0.0) <= self.near * self._left_at
        if not stands or goes_on or not self._swamped(steps) or event.optimizer.key in self._resumed:
            return
        if median(steps.updates[-self.samples_needed :]) < self.slow_ratio:
            yield self._tell(event, steps)

    def on_losses_read(self, event: LossesRead) -> None:
        """The loss of every step."""
        if event.optimizer.key in self._seen:
            self._seen[event.optimizer.key].course.extend(event.losses, event.rates)

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """A whole run that came nowhere from guessing, or not far, and was as fast at its end as at its start."""
        for key, steps in self._seen.items() if event.how == "finished" else ():
            long = steps.newest.index >= self.run and len(steps.updates) >= self.samples_needed
            if not long or not self._swamped(steps) or median(steps.updates) >= self.lag_ratio:
                continue
            little = self._guesses and steps.fell() <= self.fallen_little
            if little or (key not in self._resumed and self._ends_early(steps)):
                alone = len(self._seen) == 1 and event.loss is not None
                yield self._tell(
                    replace(steps.newest, index=event.step, loss=event.loss) if alone else steps.newest, steps
                )

    def _ends_early(self, steps: _Steps) -> bool:
        early, late = steps.course.falls()
        first = steps.course.level(0.0, 0.1)
        falls = steps.course.level(0.8, 0.9) - steps.course.level(0.9, 1.0) >= self.lately * late
        return (
            falls and self.fallen * first < early + late < self.unfinished * first and late >= self.undiminished * early
        )

    def _swamped(self, steps: _Steps) -> bool:
        """It is far above the gradients, and at this rate the steps would be those of a usual run without it."""
        gradient = median(steps.gradients)
        return steps.eps >= self.swamped * gradient > self.swamped * self.gradient and steps.usual >= self.meant

    def _tell(self, event: NumbersSampled, steps: _Steps) -> Finding:
        gradient, update = median(steps.gradients), median(steps.updates)
        name, loss = event.optimizer.name, f"{event.first_loss:.4g} to {event.loss:.4g}"
        return self.finding(
            event,
            f"{name} divides by sqrt(v) + eps with eps={steps.eps:g}, and the gradients are about {gradient:.1e}: its "
            f"steps are {steps.eps / gradient:,.0f} times too small; one changes the weights by "
            f"{update:.1e} of their size (healthy: about 1e-3), and the loss went from {loss} in "
            f"{event.index} steps",
            cause="eps keeps the division from 0 and nothing else; above the size of the gradients it takes the place of "
            "their root, so that the step is no longer as large as the rate but a small part of it",
            fix=f"eps=1e-8, the default, in place of {steps.eps:g}; a larger rate only makes up for it",
            where=event.optimizer.where or event.where,
            key=str(event.optimizer.key),
            eps=steps.eps,
            gradient_rms=gradient,
            update_ratio=update,
            loss=event.loss,
            first_loss=event.first_loss,
        )


@dataclass(slots=True)
class _Steps:
    """What was seen of the steps of one optimizer."""

    eps: float = 0.0
    gradients: list[float] = field(default_factory=list)  # of the typical weight matrix
    usual: float = 0.0  # highest rate over weight: the step that Adam takes
    updates: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    newest: NumbersSampled = field(default_factory=NumbersSampled)
    course: Course = field(default_factory=Course)

    def add(self, event: NumbersSampled) -> bool:
        """One more step, if it tells anything."""
        layers = [e for e in event.layers if e.matrix and e.gradient_rms > 0 and e.weight_rms > 0 and e.update_ratio]
        if not layers or event.loss is None or event.first_loss is None:
            return False
        self.gradients.append(median(each.gradient_rms for each in layers))
        self.usual = max(self.usual, median(each.learning_rate / each.weight_rms for each in layers))
        self.updates.append(median(each.update_ratio or 0.0 for each in layers))
        self.rates.append(event.lr)
        self.newest = event
        return True

    def fell(self) -> float:
        """Share of the first loss."""
        first, now = self.newest.first_loss or 0.0, self.newest.loss or 0.0
        return (first - now) / abs(first) if first else 0.0
