"""O13."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flatline.events import LossComputed, ScriptCrashed, SourceParsed, beside, line_of
from flatline.findings import Finding, Severity
from flatline.rules import Rule

DOUBLE = "the loss applies the sigmoid itself; the second one keeps every prediction between 0.5 and 0.73"
RAW = "BCELoss takes probabilities and applies no sigmoid; it raises for a number outside of [0, 1]"
TWO_STEPS = "sigmoid and binary_cross_entropy are two steps where one is stable"
LOST = "the logarithm of a saturated sigmoid is clamped, and its gradient is lost"
SHOWN: Mapping[tuple[str, str], tuple[Severity, str, str]] = {
    ("binary_cross_entropy_with_logits", "sigmoid"): (
        "error",
        "the input of binary_cross_entropy_with_logits is already a sigmoid",
        DOUBLE,
    ),
    ("binary_cross_entropy", "linear"): ("error", "binary_cross_entropy is given raw scores", RAW),
    ("binary_cross_entropy", "sigmoid"): ("hint", TWO_STEPS, LOST),
}


class SigmoidBeforeBce(Rule):
    """A sigmoid stands before binary cross entropy.

    Symptom
    -------
    With ``BCEWithLogitsLoss``: the loss does not go under 0.31, predictions stay between 0.5 and 0.73. With ``BCELoss``:
    the loss sticks at a large number or turns nan once outputs saturate.

    Root cause
    ----------
    ``BCEWithLogitsLoss`` applies the sigmoid itself; a second one squeezes the scores into [0, 1]. ``BCELoss`` takes
    probabilities, and the logarithm of a saturated one is -inf, which torch clamps to -100, where the gradient is 0.

    Fix
    ---
    Give raw scores to ``BCEWithLogitsLoss`` (with ``pos_weight`` for imbalance); apply sigmoid only where
    probabilities are read.

    Example
    -------
    ::

        loss = F.binary_cross_entropy_with_logits(torch.sigmoid(model(x)), y)

    Use instead
    -----------
    ::

        loss = F.binary_cross_entropy_with_logits(model(x), y)

    Healthy look-alikes
    -------------------
    A sigmoid before ``BCELoss`` that is not saturated works, as in many GANs: a hint only.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
    """

    code = "O13"
    severity = "error"
    fix = "give the raw scores to binary_cross_entropy_with_logits, and apply sigmoid only where probabilities are read"
    consequences = ("O7", "C2")
    saturated: float = 0.01  # share of probabilities at exactly 0 or 1 against their target
    certain_after: int = 3  # losses with so many

    def __init__(self) -> None:
        self._stuck = 0

    def on_loss_computed(self, event: LossComputed) -> Iterator[Finding]:
        """A double sigmoid; a single one that has saturated; a single one."""
        if event.kind == "binary_cross_entropy_with_logits" and event.fed_by == "sigmoid":
            place = f" ({event.feed_where})" if event.feed_where else ""
            yield self.finding(
                event,
                f"the input of binary_cross_entropy_with_logits is already a sigmoid{place}",
                cause=DOUBLE,
                key="double",
                module=event.feed_where or None,
            )
        elif event.kind == "binary_cross_entropy" and event.fed_by == "sigmoid":
            yield from self._plain(event)

    def on_script_crashed(self, event: ScriptCrashed) -> Iterator[Finding]:
        """BCELoss refuses numbers outside [0, 1]."""
        if "all elements of input should be between 0 and 1" not in event.message:
            return
        scores = event.tensors.get("input")
        span = f" ({scores.low:.3g} to {scores.high:.3g})" if scores and scores.low is not None else ""
        yield self.finding(
            event,
            f"binary_cross_entropy was given raw scores{span}; it takes probabilities",
            cause="BCELoss does not apply a sigmoid; the model returns scores",
            key="crash",
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """A double sigmoid, raw scores where probabilities are taken, and a single one, as the source shows them."""
        for loss in event.losses:
            feed = f"{loss.feed}{beside(loss.feed_where, loss.where)}"
            if (shown := SHOWN.get((loss.kind, loss.fed_by))) is not None:
                severity, message, cause = shown
                key = line_of(loss.feed_where if severity == "hint" else loss.where)
                yield self.finding(
                    event, f"{message}: {feed}", severity=severity, cause=cause, where=loss.where, key=key
                )

    def _plain(self, event: LossComputed) -> Iterator[Finding]:
        self._stuck = self._stuck + 1 if event.wrong_and_saturated >= self.saturated else 0
        if self._stuck >= self.certain_after:
            yield self.finding(
                event,
                f"{event.wrong_and_saturated:.0%} of the probabilities given to binary_cross_entropy are exactly 0 or 1 "
                "and wrong",
                severity="warning",
                cause="log(0) is clamped to -100 there and the sigmoid's gradient is exactly 0: these samples cannot be learned",
                key="saturated",
                share=event.wrong_and_saturated,
            )
        else:
            yield self.finding(
                event,
                TWO_STEPS,
                severity="hint",
                cause=LOST,
                key="plain",
            )
