"""N3."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from flatline.events import InputsObserved, LossComputed, LossesRead, RunEnded, ScaledLossRead
from flatline.findings import Finding
from flatline.history import fmean
from flatline.rules import Rule


class LossLoggedScaled(Rule):
    """The loss that is logged still carries GradScaler's factor, or is only its share of an accumulated step.

    Symptom
    -------
    The printed loss is tens of thousands of times too large, and jumps by a factor of 2 now and then, while the
    accuracy is as expected.

    Root cause
    ----------
    ``scaler.scale(loss)`` returns the loss times the scale, 65536 at first. Its name took the place of the loss, and
    its number is what is logged, averaged, or given to a scheduler or to early stopping. With gradients accumulated over
    several batches, ``loss / steps`` is what goes backward: a mean of that over all batches is divided twice. So is a sum
    of means over batches that is divided by the number of samples, or of such means over the batch size; where a target
    ends the training, or the least that counts as an improvement, it ends far too soon.

    Fix
    ---
    Keep the two apart: ``scaler.scale(loss).backward()`` or ``(loss / steps).backward()``, and ``loss.item()``.

    Example
    -------
    ::

        loss = scaler.scale(loss)
        loss.backward()
        total += loss.item()

    Use instead
    -----------
    ::

        scaler.scale(loss).backward()
        total += loss.item()

    Healthy look-alikes
    -------------------
    A scaled loss that is only backpropagated; one that is divided by ``scaler.get_scale()`` first; a scaler that is
    off; a name that is given a new value before it is read; shares of a step that are summed over the step, or multiplied
    by the number of them; a sum over samples that is divided by their number; a stop that compares such means with each other,
    or asks for so little that it stays little once it is multiplied by the batch size.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    - https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    """

    code = "N3"
    severity = "warning"
    cause = "scaler.scale(loss) returns the loss times the scale"
    fix = "scaler.scale(loss).backward(), and log loss.item() of the loss itself"

    newest: int = 256  # losses, whose mean is that at which the training ended
    near: float = 1.5  # times the level: the last pass may have been a little lower than these losses
    much: float = 0.05  # of the loss, asked for in one pass: the 1e-3 that stoppers ask for is that of a loss of 0.02

    def __init__(self) -> None:
        self._rows: set[int] = set()  # whose mean a loss is; 0 for sums
        self._samples = 0  # in the largest batch that a model was given
        self._losses: deque[float] = deque(maxlen=self.newest)
        self._stops: ScaledLossRead | None = None

    def on_loss_computed(self, event: LossComputed) -> None:
        """What the loss of a batch is a mean of."""
        self._rows.add(event.shape[0] if event.shape and event.reduction == "mean" else 0)

    def on_inputs_observed(self, event: InputsObserved) -> None:
        """How many samples a batch has: those of a loss may be words or pixels."""
        self._samples = max(self._samples, event.rows)

    def on_losses_read(self, event: LossesRead) -> None:
        """The loss itself."""
        self._losses.extend(event.losses)

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """The quotient was below its level, and the loss was not."""
        rows, told = max(self._rows, default=0), self._stops
        rows = min(rows, self._samples) if self._samples else rows
        if told is None or min(self._rows, default=0) == 0 or rows < 2 or not self._losses:
            return
        loss = fmean(self._losses)
        asked = told.margin * rows
        if told.margin > 0 and asked >= self.much * loss > told.margin:
            yield self._too_much(told, rows, loss)
        elif told.level > 0 and loss > self.near * told.level and loss / rows <= self.near * told.level:
            yield self._over_samples(told, rows, loss)

    def on_scaled_loss_read(self, event: ScaledLossRead) -> Iterator[Finding]:
        """A number is read from the scaled loss."""
        if event.stops:
            self._stops = event
            return
        if event.backwards:
            yield self._divided(event)
            return
        yield self.finding(
            event,
            f"`{event.statement}` reads the loss times {event.scale:g}, the scale of GradScaler",
            scale=event.scale,
        )

    def _divided(self, event: ScaledLossRead) -> Finding:
        return self.finding(
            event,
            f"`{event.statement}` takes the loss times {event.scale:.3g} for the loss: its share in one of the {event.backwards} "
            "backwards of a step",
            cause=f"the division by {event.backwards} is made for the gradients; the number is that much too small",
            fix="read loss.item() before the division, or (loss / steps).backward() in its place",
            key="divided",
            scale=event.scale,
            backwards=event.backwards,
        )

    def _over_samples(self, event: ScaledLossRead, rows: int, loss: float) -> Finding:
        asked = f"at a loss of {loss:.3g}, where {event.level:g} was asked for"
        why = f"`if {event.stops}` ends the training by it: {asked}"
        return self._of_samples(event, why, rows=rows, loss=loss, level=event.level)

    def _too_much(self, event: ScaledLossRead, rows: int, loss: float) -> Finding:
        asked = f"{event.margin:g}: that is {event.margin * rows:.2g} of the loss itself, which is {loss:.3g}"
        why = f"`{event.stops}` asks it to come down by {asked}"
        return self._of_samples(event, why, rows=rows, loss=loss, margin=event.margin)

    def _of_samples(self, event: ScaledLossRead, why: str, **evidence: Any) -> Finding:
        return self.finding(
            event,
            f"`{event.statement}` divides means over batches of {evidence['rows']} by the number of samples once more, and {why}",
            cause="loss.item() is a mean over its batch already; a sum over the samples is what their number divides",
            fix="divide by the number of batches, len(loader); or add up loss.item() * len(x)",
            key="samples",
            **evidence,
        )
