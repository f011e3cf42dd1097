"""N5."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import SourceParsed, beside
from flatline.findings import Finding
from flatline.rules import Rule


class LogOfSoftmax(Rule):
    """The logarithm of a softmax is taken in two steps, and overflows to -inf.

    Symptom
    -------
    Training goes well, and then the loss is inf or nan: as soon as the model is sure of itself.

    Root cause
    ----------
    A softmax in float32 is exactly 0 for a score that lies about 104 below the highest one, in float16 for 17. The
    logarithm of 0 is -inf, and its gradient is nan. ``log_softmax`` computes the same without ever forming the 0.

    Fix
    ---
    ``F.log_softmax(scores, dim=1)``.

    Example
    -------
    ::

        loss = F.nll_loss(torch.log(F.softmax(scores, dim=1)), y)

    Use instead
    -----------
    ::

        loss = F.nll_loss(F.log_softmax(scores, dim=1), y)

    Healthy look-alikes
    -------------------
    A softmax that is clamped, or to which a small number is added, before the logarithm; numbers that are only shown.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.log_softmax.html
    """

    code = "N5"
    severity = "warning"
    cause = "where the softmax rounds to 0 its logarithm is -inf, and the gradient nan"
    fix = "use log_softmax: the same, and never infinite"

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """log() of what a softmax returned, in source that trains."""
        for fact in event.of("logged softmax"):
            yield self.finding_at(
                event,
                fact.where,
                f"`{fact.name}` is the logarithm of a softmax{beside(fact.other, fact.where)}: -inf where the softmax rounds to 0",
            )
