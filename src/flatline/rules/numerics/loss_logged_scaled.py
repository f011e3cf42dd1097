"""N3."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import ScaledLossRead
from flatline.findings import Finding
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
    several batches, ``loss / steps`` is what goes backward: a mean of that over all batches is divided twice.

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
    by the number of them.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    - https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    """

    code = "N3"
    severity = "warning"
    cause = "scaler.scale(loss) returns the loss times the scale"
    fix = "scaler.scale(loss).backward(), and log loss.item() of the loss itself"

    def on_scaled_loss_read(self, event: ScaledLossRead) -> Iterator[Finding]:
        """A number is read from the scaled loss."""
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
