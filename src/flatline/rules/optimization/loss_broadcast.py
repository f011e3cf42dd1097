"""O27."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import LossComputed
from flatline.findings import Finding
from flatline.rules import Rule


class LossBroadcast(Rule):
    """Predictions and targets are broadcast against each other.

    Symptom
    -------
    A regression stops at the variance of the targets: the model predicts their mean for every input. torch prints a
    UserWarning about the target's size, once.

    Root cause
    ----------
    Predictions of shape [B, 1] and targets of shape [B] broadcast to [B, B]: each prediction is compared with
    every target.

    Fix
    ---
    Give both the same shape: ``pred.squeeze(-1)``, or ``target.unsqueeze(-1)``.

    Example
    -------
    ::

        loss = F.mse_loss(model(x), y)          # [B, 1] and [B]

    Use instead
    -----------
    ::

        loss = F.mse_loss(model(x).squeeze(-1), y)

    Healthy look-alikes
    -------------------
    Pairwise differences on purpose, made with ``unsqueeze``; ensembles against one target.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/notes/broadcasting.html
    """

    code = "O27"
    severity = "error"
    fix = "give both the same shape: pred.squeeze(-1), or target.unsqueeze(-1)"
    consequences = ("O7", "C3")

    def on_loss_computed(self, event: LossComputed) -> Iterator[Finding]:
        """The batch axis against itself."""
        if not event.broadcast:
            return
        before, after = list(event.feed_shape), list(event.shape)
        yield self.finding(
            event,
            f"{event.kind} compares predictions {before} with targets as {after}: every prediction with every target",
            cause=f"{before} and the targets' shape broadcast to {after}; the best answer to that is the targets' mean",
            predictions=str(before),
            compared=str(after),
        )
