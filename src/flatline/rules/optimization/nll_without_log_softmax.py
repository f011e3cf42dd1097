"""O16."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import LossComputed, SourceParsed, beside
from flatline.findings import Finding
from flatline.rules import Rule

SCORES = ("linear", "convolution", "relu", "tanh", "softmax", "sigmoid")
GIVEN = {"softmax": "probabilities (a softmax)", "sigmoid": "probabilities of single classes (a sigmoid)"}


class NllWithoutLogSoftmax(Rule):
    """nll_loss is given raw scores or probabilities instead of log-probabilities.

    Symptom
    -------
    The loss is negative and falls without bound, or lies between -1 and 0 and hardly moves; accuracy stays near
    chance.

    Root cause
    ----------
    ``nll_loss`` only picks the entry of the target class and negates it. It is cross entropy for
    log-probabilities alone; scores can grow for ever, probabilities give a tiny, wrongly shaped gradient.

    Fix
    ---
    ``cross_entropy`` on the raw scores, or ``log_softmax`` right before ``nll_loss``.

    Example
    -------
    ::

        loss = F.nll_loss(model(x), y)

    Use instead
    -----------
    ::

        loss = F.cross_entropy(model(x), y)

    Healthy look-alikes
    -------------------
    Log-probabilities made in another way (flows, CRFs, the log of a softmax): their exponentials sum to 1.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html
    """

    code = "O16"
    severity = "error"
    cause = "nll_loss only negates the target's entry; without log_softmax before it that is not cross entropy"
    consequences = ("C1", "N1", "O7", "C2")
    certain_after: int = 2  # losses whose rows do not sum to 1

    def __init__(self) -> None:
        self._seen = 0

    def on_loss_computed(self, event: LossComputed) -> Iterator[Finding]:
        """No log-softmax in the graph, and the rows are no log-probabilities."""
        if event.kind != "nll" or event.normalised is not False or event.fed_by not in SCORES:
            return
        self._seen += 1
        if self._seen < self.certain_after:
            return
        given = GIVEN.get(event.fed_by, f"raw scores (from a {event.fed_by} operation)")
        place = f" of {event.feed_where}" if event.feed_where else ""
        yield self.finding(
            event,
            f"nll_loss is given {given}{place}: exp of a row does not sum to 1",
            fix="use cross_entropy on the raw scores" + (", without the softmax" if event.fed_by == "softmax" else ""),
            fed_by=event.fed_by,
            classes=event.classes,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """Raw scores or probabilities, as the source shows them."""
        for loss in event.losses:
            if loss.kind == "nll" and loss.fed_by in ("softmax", "linear"):
                given = "probabilities" if loss.fed_by == "softmax" else "raw scores"
                yield self.finding_at(
                    event,
                    loss.where,
                    f"nll_loss is given {given}: {loss.feed}{beside(loss.feed_where, loss.where)}",
                    fix="use cross_entropy on the raw scores"
                    + (", without the softmax" if loss.fed_by == "softmax" else ""),
                    fed_by=loss.fed_by,
                )
