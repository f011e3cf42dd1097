"""V1."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import RunEnded, ScaledApart, ValidationTold
from flatline.findings import Finding
from flatline.rules import Rule


class NormalisationMismatch(Rule):
    """Training and validation inputs are scaled in two ways.

    Symptom
    -------
    Training learns well, and validation is bad from its first pass, maybe worse than guessing. It looks like overfitting,
    and no regularisation helps.

    Root cause
    ----------
    The scaler was fitted anew to the validation data, so that one and the same measurement is another number there than it
    was in training.

    Fix
    ---
    Fit on the training rows alone, and apply what was fitted to all others: validation, test, and what is served later.

    Example
    -------
    ::

        x_train = scaler.fit_transform(x_train)
        x_val = scaler.fit_transform(x_val)

    Use instead
    -----------
    ::

        x_train = scaler.fit_transform(x_train)
        x_val = scaler.transform(x_val)

    Healthy look-alikes
    -------------------
    Validation data under the scale of the training data, whose own mean is near 0 and never exactly there. Domains, persons
    and sessions that are each scaled by themselves on purpose: unless validation is worse than guessing this is a hint.

    References
    ----------
    - https://scikit-learn.org/stable/common_pitfalls.html#inconsistent-preprocessing
    """

    code = "V1"
    severity = "warning"
    cause = "the scaler was fitted anew to the validation data: the same measurement is another number there than in training"
    fix = "fit on the training rows alone, and scale the others by the same numbers: x_val = scaler.transform(x_val)"
    consequences = ("C4",)

    learned: float = 0.7  # of the first loss, under which training must have come
    useless: float = 1.1  # of the first loss, above which every validation loss is; labels of pure noise leave it at 1

    def __init__(self) -> None:
        self._seen: ScaledApart | None = None
        self._validation: tuple[float, ...] = ()

    def on_scaled_apart(self, event: ScaledApart) -> None:
        """Both have a mean of 0 and a deviation of 1."""
        self._seen = event

    def on_validation_told(self, event: ValidationTold) -> None:
        """Whether what was learned is of use on these data."""
        self._validation = event.losses

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """A warning where training learned, and validation never left chance."""
        seen, first, last = self._seen, event.first_loss, event.loss
        if seen is None:
            return
        best = min(self._validation, default=None)
        known = best is not None and first is not None and last is not None and first > 0
        harmed = known and best >= self.useless * first and last <= self.learned * first  # type: ignore[operator]
        told = (
            f"; the best validation loss was {best:.3g}, where training went from {first:.3g} to {last:.3g}"
            if harmed
            else ""
        )
        yield self.finding(
            seen,
            f"{seen.train} ({seen.rows:,} rows) and {seen.validation} ({seen.validation_rows:,} rows) each have a mean of exactly "
            f"0 and a deviation of exactly 1 in {seen.groups} columns, which one scale does not make of two sets{told}",
            severity="warning" if harmed else "hint",
            groups=seen.groups,
            rows=seen.validation_rows,
        )
