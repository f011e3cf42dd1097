"""N3."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import ScaledLossRead
from flatline.findings import Finding
from flatline.rules import Rule


class LossLoggedScaled(Rule):
    """The loss that is logged still carries GradScaler's factor.

    Symptom
    -------
    The printed loss is tens of thousands of times too large, and jumps by a factor of 2 now and then, while the
    accuracy is as expected.

    Root cause
    ----------
    ``scaler.scale(loss)`` returns the loss times the scale, 65536 at first. Its name took the place of the loss, and
    its number is what is logged, averaged, or given to a scheduler or to early stopping.

    Fix
    ---
    Keep the two apart: ``scaler.scale(loss).backward()``, and ``loss.item()``.

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
    off; a name that is given a new value before it is read.

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
        yield self.finding(
            event,
            f"`{event.statement}` reads the loss times {event.scale:g}, the scale of GradScaler",
            scale=event.scale,
        )
