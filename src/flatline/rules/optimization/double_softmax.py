"""O12."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import LossComputed, SourceParsed, beside
from flatline.findings import Finding
from flatline.rules import Rule

MIXTURE = "mixture of softmaxes"
TAKE_LOG = "take the logarithm of the probabilities: F.nll_loss(probs.clamp_min(1e-8).log(), targets)"


class DoubleSoftmax(Rule):
    """Cross entropy is given probabilities instead of raw scores.

    Symptom
    -------
    The model learns slowly, or stops at an accuracy well under what it should reach. The loss is finite and
    falls, but stays high: with C classes it cannot go below log(1 + (C - 1) / e).

    Root cause
    ----------
    ``cross_entropy`` applies log-softmax itself and expects unnormalised scores. A softmax before it squeezes
    the scores into [0, 1], so that the second softmax is nearly uniform and the gradient nearly vanishes. The same
    holds for probabilities that are a weighted mean of several softmaxes.

    Fix
    ---
    Return the raw scores from the model. Apply softmax only where probabilities are read. Where the probabilities are
    what the model is made for, as in a mixture of softmaxes, give their logarithm to ``nll_loss``.

    Example
    -------
    ::

        probs = torch.softmax(model(x), dim=1)
        loss = F.cross_entropy(probs, y)

    Use instead
    -----------
    ::

        loss = F.cross_entropy(model(x), y)

    Healthy look-alikes
    -------------------
    Softmax inside attention or for metrics; ``log_softmax`` with ``nll_loss``; ``kl_div`` in distillation.
    ``log_softmax`` before cross entropy gives the same gradient, as log-softmax of a log-softmax is itself:
    it is reported as a warning, for the numbers that the model returns are not what the loss is meant for. Probabilities
    over a temperature; sums of softmaxes that are weighted with anything, so that the rows do not add up to one.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    code = "O12"
    severity = "error"
    cause = "cross_entropy applies log-softmax itself; a second softmax squeezes the scores into [0, 1]"
    consequences = ("O7", "G2", "C2")

    def on_loss_computed(self, event: LossComputed) -> Iterator[Finding]:
        """A softmax right under the log-softmax of cross entropy, or several that add up to probabilities."""
        if event.kind != "cross_entropy" or event.fed_by not in ("softmax", "log_softmax", MIXTURE):
            return
        place = f" ({event.feed_where})" if event.feed_where else ""
        yield self.finding(
            event,
            f"the input of cross_entropy is already a {event.fed_by}{place}",
            severity="warning" if event.fed_by == "log_softmax" else "error",
            cause=self._cause(event),
            fix=TAKE_LOG
            if event.fed_by == MIXTURE
            else f"return raw scores: drop {self._what(event)}, and apply softmax only where probabilities are read",
            fed_by=event.fed_by,
            module=event.feed_where or None,
            classes=event.classes,
            gradient_shrunk_by=event.gradient_ratio,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """The same, where the source shows what the input was made by."""
        for loss in event.losses:
            if loss.kind == "cross_entropy" and loss.fed_by in ("softmax", "log_softmax"):
                yield self.finding_at(
                    event,
                    loss.where,
                    f"the input of cross_entropy is already a {loss.fed_by}: {loss.feed}{beside(loss.feed_where, loss.where)}",
                    severity="error" if loss.fed_by == "softmax" else "hint",
                    fix=f"return raw scores: drop {loss.feed}, and apply softmax only where probabilities are read",
                    fed_by=loss.fed_by,
                )

    def _cause(self, event: LossComputed) -> str:
        if event.fed_by == "log_softmax":
            return "cross_entropy applies log-softmax itself; the first one is work for nothing, and hides the scores"
        ratio = event.gradient_ratio
        return self.cause + (f": gradient {ratio:.3g} × smaller here" if ratio is not None and ratio > 1 else "")

    def _what(self, event: LossComputed) -> str:
        return event.feed_where or f"the {event.fed_by} before the loss"
