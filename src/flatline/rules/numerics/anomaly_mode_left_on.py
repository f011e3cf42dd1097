"""N4."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import GradientNotFinite, LossNotFinite, PrecisionObserved, SourceParsed
from flatline.findings import Finding
from flatline.rules import Rule


class AnomalyModeLeftOn(Rule):
    """Autograd's anomaly mode stays on through a run in which nothing is wrong.

    Symptom
    -------
    Training is about half as fast as it could be, and the processor is busy while the GPU waits.

    Root cause
    ----------
    ``torch.autograd.set_detect_anomaly(True)`` keeps a Python traceback for every operation of the forward pass and
    tests every gradient for nan. It is made to find one bug in a few batches.

    Fix
    ---
    Take it out, or put it around the batches in question only.

    Example
    -------
    ::

        torch.autograd.set_detect_anomaly(True)
        train(model)

    Use instead
    -----------
    ::

        with torch.autograd.set_detect_anomaly(step in suspicious):
            loss(model, batch).backward()

    Healthy look-alikes
    -------------------
    A short run; a run in which nan was found; the mode around single batches.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection
    - https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "N4"
    severity = "warning"
    cause = (
        "every operation records a traceback and every gradient is tested for nan: 1.3 to 2.7 times the time of a step"
    )
    fix = "remove torch.autograd.set_detect_anomaly(True) (or Trainer(detect_anomaly=True)) now that the bug is found"

    patience: int = 100  # steps: a debugging session is over before

    def __init__(self) -> None:
        self._wanted = False  # nan was found, or the mode was off at some time

    def on_loss_not_finite(self, event: LossNotFinite) -> None:
        """There is a bug to be found."""
        self._wanted = True

    def on_gradient_not_finite(self, event: GradientNotFinite) -> None:
        """There is a bug to be found."""
        self._wanted = True

    def on_precision_observed(self, event: PrecisionObserved) -> Iterator[Finding]:
        """The mode is on at every backward that is looked at, long after the start."""
        self._wanted = self._wanted or not event.anomaly_mode
        if not self._wanted and event.step > self.patience:
            yield self.finding(
                event, f"anomaly mode is on since the start, {event.step} steps, and found nothing", steps=event.step
            )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """Switched on under no condition."""
        for fact in event.of("anomaly"):
            message = f"{fact.text} is on for the whole run"
            yield self.finding_at(event, fact.where, message)
        for fact in event.of("anomaly by settings"):
            message = f"{fact.text} is on for the whole run: {fact.name} is True unless something says otherwise"
            yield self.finding_at(event, fact.where, message, severity="hint")
