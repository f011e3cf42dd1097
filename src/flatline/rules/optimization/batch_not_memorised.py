"""O1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

from flatline.events import OneBatchTrained
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule

Failure: TypeAlias = Literal["not finite", "rising", "swinging", "falling", "stuck", "plateau"]
FALLS = 0.01  # of the first loss, in the second half of the steps
TURNS = 0.3  # of the changes: Adam near the end of a smooth fall turns around in under a tenth of them
SWING = 0.1  # of the loss, from one step to the next
GONE = 0.01  # of the first loss, or that loss itself: the batch is known by heart (seed: below 0.01 after 500 steps)


FINDING = (
    "mend what the other findings name first; without any, print every layer's gradient norm after one backward "
    "and every weight's change after one step: next to the first zero is the fault"
)
THAWING = (
    "look in the table of parameters which of them train: the name or type that they were chosen by misses the layer "
    "that was meant, most often the head"
)


class BatchNotMemorised(Rule):
    """The model cannot learn a single batch by heart, so it will learn nothing.

    Symptom
    -------
    Trained on one batch, again and again, without dropout, weight decay, augmentation and schedule, the loss stays
    where it began, rises, or becomes nan.

    Root cause
    ----------
    Something between the batch and the weights is broken: gradients that reach no weight, a rate of zero or far too
    low or high, activations that are dead or saturated from the start, a loss that does not belong to the targets. It is
    not the data, the size of the model or its regularisation: none of them keeps a model from learning a few samples.

    Fix
    ---
    Look at what the other findings of ``flatline preflight`` name, in their order. Without any: print the gradient norm
    of every layer after one backward, and the change of every weight after one step. The first layer with a zero is next
    to the fault.

    Example
    -------
    ::

        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)

    Use instead
    -----------
    ::

        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    Healthy look-alikes
    -------------------
    Soft or smoothed targets, whose entropy the loss cannot fall below: it is taken away first. Contrastive and
    adversarial losses, several terms: none of them is judged. A model with few weights for so many targets, which may be
    at its end. A low rate whose loss falls at every step.

    References
    ----------
    - Karpathy, A Recipe for Training Neural Networks, 2019, https://karpathy.github.io/2019/04/25/recipe/
    """

    code = "O1"
    severity = "error"

    steps_needed: int = 100  # fewer say nothing: an expert's loss is gone after 50 to 500
    fallen: float = 0.02  # of the first loss: under it the loss stands (measured: 3.7 % with grey targets of a BCE)
    capacity: float = 10.0  # weights for each target; a smaller model may be at its end (measured: logistic regression)
    trained: float = 0.01  # of the weights: where fewer train, it is they that are too few, not the model that is small
    guessed: float = 0.9  # of ln(classes), at the end
    falling: float = 0.005  # of the first loss, in the second half of the steps: it falls, if slowly
    risen: float = 1.5  # times the first loss, at the end

    def on_one_batch_trained(self, event: OneBatchTrained) -> Iterator[Finding]:
        """Judge the curve of the loss."""
        losses = event.losses
        bad = next((step for step, loss in enumerate(losses, 1) if loss - loss != 0.0), None)
        if bad is not None:
            yield self._tell(event, f"the loss is {losses[bad - 1]} after {bad} steps", "the steps are too large")
        elif len(losses) >= self.steps_needed and losses[0] > 0 and not memorised(losses):
            first, middle, last = losses[0], _at(losses, 0.5), _at(losses, 1.0)
            if last > self.risen * first:
                yield self._tell(event, f"the loss rises from {first:.4g} to {last:.4g}", "the steps are too large")
            elif first - last < self.fallen * first and middle - last < self.falling * first:
                said = f"the loss stays at {last:.4g}, from {first:.4g} at the start"
                if event.weights >= self.capacity * event.targets:
                    yield self._tell(event, said, "what the batch says does not reach the weights")
                elif self._nearly_all_frozen(event):
                    whole = event.weights + event.frozen
                    few = (
                        f"only {event.weights:,} of {whole:,} weights train, and they cannot carry what the batch says"
                    )
                    yield self._tell(event, said, few, THAWING)

    def _nearly_all_frozen(self, event: OneBatchTrained) -> bool:
        """The whole model would be large enough, and it knows nothing yet: a last bias or a temperature is tuned where it does."""
        whole = event.weights + event.frozen
        if event.guessing is None or event.losses[-1] < self.guessed * event.guessing:
            return False
        return event.weights < self.trained * whole and whole >= self.capacity * event.targets

    def _tell(self, event: OneBatchTrained, said: str, cause: str, fix: str = FINDING) -> Finding:
        return self.finding(
            event,
            f"one batch cannot be learned by heart: in {len(event.losses)} steps on it, at lr={event.rate:g}, {said}",
            cause=f"{cause}; with one batch there is nothing to generalise from, so data and model size are not at fault",
            fix=fix,
            first_loss=event.losses[0],
            last_loss=event.losses[-1],
            lowest_loss=min(event.losses),
            steps=len(event.losses),
            lr=event.rate,
            failure=failure(event.losses),
        )


def memorised(losses: Sequence[float]) -> bool:
    """Whether the loss is gone: the last few are under a hundredth of the first one, or of 1."""
    return len(losses) > 1 and median(losses[-5:]) < max(GONE * losses[0], GONE)


def failure(losses: Sequence[float]) -> Failure:
    """What became of a loss over one batch that is not gone."""
    if any(not math.isfinite(loss) for loss in losses):
        return "not finite"
    first, middle, last = losses[0], _at(losses, 0.5), _at(losses, 1.0)
    if last >= first:
        return "rising"
    if _swings(losses[len(losses) // 2 :]):
        return "swinging"
    if middle - last > FALLS * abs(first):
        return "falling"
    return "stuck" if first - last < BatchNotMemorised.fallen * abs(first) else "plateau"


def _swings(losses: Sequence[float]) -> bool:
    """It turns around often, and each time by much of what it is."""
    changes = [later - earlier for earlier, later in pairwise(losses)]
    turns = sum(one * other < 0 for one, other in pairwise(changes))
    typical = median(abs(loss) for loss in losses)
    return turns > TURNS * len(changes) and median(map(abs, changes)) > SWING * typical


def _at(losses: Sequence[float], place: float) -> float:
    """The median of a tenth of the losses that ends there."""
    end = max(1, round(place * len(losses)))
    return median(losses[max(0, end - max(1, len(losses) // 10)) : end])
