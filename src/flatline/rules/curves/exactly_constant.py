"""C10."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import Curve, CurvesUpdated
from flatline.findings import Finding
from flatline.rules import Rule
from flatline.trends import curves, lacking, main, shown


class ExactlyConstant(Rule):
    """The training loss is the same number at every step, to the last digit.

    Symptom
    -------
    A perfectly straight line. Not even the noise of different batches shows.

    Root cause
    ----------
    No gradient reaches the weights (a ``detach``, ``no_grad`` or an optimizer over other parameters) and the data never
    changes, or what is logged is not the loss of this step: a tensor that was read once, or a constant.

    Fix
    ---
    Print ``loss.grad_fn`` and one weight before and after a step, and log ``loss.item()`` of the present step.

    Example
    -------
    ::

        loss = criterion(model(x).detach(), y).requires_grad_()

    Use instead
    -----------
    ::

        loss = criterion(model(x), y)

    Healthy look-alikes
    -------------------
    A loss that was rounded before it was written, 0.69 at every step; a loss of exactly 0 where nothing is left to learn;
    one value repeated in every row until the next epoch.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation
    """

    code = "C10"
    severity = "error"
    consequences = ("C2", "C3", "C5", "O7")
    cause = "no gradient reaches the weights and the data never changes, or what is logged is not the loss of this step"
    fix = "check loss.requires_grad and loss.grad_fn, compare a weight before and after a step, and log loss.item()"

    points_needed: int = 20  # equal ones: fewer may be one epoch's value, repeated
    validations: int = 8  # equal ones, beside a training loss that is not
    rarer: float = 3.0  # times as many rows as validations: else a row may repeat the last one
    equal: float = 1e-12  # relative distance; an average of equal numbers is rounded
    digits: int = 5  # significant ones that agree; rounding to four hides the noise of a batch

    def lacks(self, event: CurvesUpdated) -> str:
        """Whether the curves are there, and long enough."""
        return lacking(event, falling=False, train_loss=self.points_needed)

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """Every point of a training curve, or of a validation that is far rarer than the steps."""
        for curve in curves(event, "train_loss"):
            if self._constant(curve, self.points_needed):
                yield self.finding(
                    event,
                    f"{curve.name} is {curve.values[0]:.7g} at all {curve.count:,} points, from step {shown(curve.steps[0])} "
                    f"to step {shown(curve.steps[-1])}: not even the noise of different batches shows",
                    key=curve.name,
                    value=curve.values[0],
                    points=curve.count,
                )

        validation = main(event, "val_loss")
        if validation is not None and self._same_weights(event, validation):
            yield self.finding(
                event,
                f"{validation.name} is {validation.values[0]:.7g} at all {validation.count:,} validations, from step "
                f"{shown(validation.steps[0])} to step {shown(validation.steps[-1])}: the weights that it sees never change",
                severity="warning",
                cause="no step changes the weights, or another model than the trained one is validated",
                fix="compare a weight of the validated model before and after a step; look at lr and requires_grad",
                key=validation.name,
                value=validation.values[0],
                points=validation.count,
            )

    def _same_weights(self, event: CurvesUpdated, validation: Curve) -> bool:
        """Not so where a row repeats what was validated last, and not for a rate that is 0 at last."""
        train = [curve for curve in curves(event, "train_loss") if not self._constant(curve, self.validations)]
        rows = max(curve.count for curve in event.curves)
        return bool(train) and rows >= self.rarer * validation.count and self._constant(validation, self.validations)

    def _constant(self, curve: Curve, least: int) -> bool:
        values = {*curve.values, *curve.lows, *curve.highs}
        if len(curve.values) < least or curve.not_finite:
            return False
        value = curve.values[0]
        same = max(values) - min(values) <= self.equal * abs(value)
        return same and value != 0 and _digits(value) >= self.digits


def _digits(value: float) -> int:
    """Significant digits of a number as it was written."""
    mantissa = (
        f"{abs(value):.15e}".partition("e")[0]
        if value != float(f"{value:.7g}")
        else f"{abs(value):.6e}".partition("e")[0]
    )
    return len(mantissa.replace(".", "").rstrip("0"))
