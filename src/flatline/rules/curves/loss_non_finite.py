"""C11."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import Curve, CurvesUpdated
from flatline.findings import Finding
from flatline.rules import Rule
from flatline.trends import curves, lacking, shown


class LossNonFinite(Rule):
    """The logged loss became nan or inf and stayed so, openly or hidden behind an exact 0.

    Symptom
    -------
    ``nan`` in the log from some step on, or a line that ends. With the Hugging Face Trainer: ``loss`` drops to exactly 0.0
    and ``grad_norm`` reads nan, as its filter leaves nan losses out of the average.

    Root cause
    ----------
    An overflow in half precision, a logarithm or a division of 0, a batch that holds nan, or a diverging run. Once the
    weights are nan every later loss is.

    Fix
    ---
    Go back to the last checkpoint before that step. ``flatline run`` names the first tensor that was not finite. In the
    Trainer set ``logging_nan_inf_filter=False``, so that it shows.

    Example
    -------
    ::

        TrainingArguments(fp16=True, learning_rate=1e-2)

    Use instead
    -----------
    ::

        TrainingArguments(bf16=True, learning_rate=2e-5, logging_nan_inf_filter=False)

    Healthy look-alikes
    -------------------
    A placeholder before the first average; a column that is nan in rows where nothing was measured; one loss that a
    GradScaler skipped; a GRPO loss of exactly 0 with a finite gradient norm.

    References
    ----------
    - https://huggingface.co/docs/transformers/main_classes/trainer
    - https://docs.pytorch.org/docs/stable/amp.html
    """

    code = "C11"
    severity = "error"
    consequences = ("C1", "C3", "C5", "C6", "C10", "G3")

    longer: float = 3.0  # times the longest gap of before: columns with holes have holes of equal length
    zeros: int = 3  # losses of exactly 0 in a row; one may be a batch without labels
    all_bad: int = 5  # points of a curve that was never finite
    cap: int = 1000  # steps that a curve remembers of those that were not finite

    def lacks(self, event: CurvesUpdated) -> str:
        """Whether the curves are there, and long enough."""
        return lacking(event, falling=False, train_loss=1) and lacking(event, falling=False, val_loss=2)

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """What stands behind the last finite loss, and zeros beside a gradient that is nan."""
        for curve in (*curves(event, "train_loss"), *curves(event, "val_loss")):
            if curve.role == "train_loss" and (hidden := self._zeros(curve)) and _nan_there(event, hidden):
                yield self._tell_hidden(event, curve, hidden)
            elif self._broke(curve):
                yield self._tell(event, curve)
        yield from self._never(event)

    def _broke(self, curve: Curve) -> bool:
        if not curve.values or not curve.not_finite or len(curve.not_finite) >= self.cap > curve.count:
            return False
        last, first = curve.steps[-1], curve.steps[0]
        after = sum(step > last for step in curve.not_finite)
        between = [step for step in curve.not_finite if first < step <= last]
        holes = _longest(between, curve.steps)
        needed = 2 if curve.role == "val_loss" else 1
        return after >= needed and after > self.longer * holes

    def _tell(self, event: CurvesUpdated, curve: Curve) -> Finding:
        last = curve.steps[-1]
        gone = [step for step in curve.not_finite if step > last]
        many = f"at least {len(gone):,}" if len(curve.not_finite) >= self.cap else f"{len(gone):,}"
        points = "1 point" if len(gone) == 1 else f"{many} points"
        return self.finding(
            event,
            f"{curve.name} is not finite from step {shown(gone[0])} on ({points}); the last finite one was "
            f"{curve.values[-1]:.4g} at step {shown(last)}",
            severity="error" if curve.role == "train_loss" else "warning",
            cause="an overflow, a log or a division of 0, or a batch that holds nan; from then on the weights are nan"
            if curve.role == "train_loss"
            else "an empty or broken validation batch, or an overflow; the training loss tells whether the weights are nan",
            fix=f"go back to a checkpoint before step {shown(gone[0])}, and let flatline run name the first tensor that was nan",
            key=curve.name,
            step_of_first=gone[0],
            last_finite=curve.values[-1],
            last_finite_step=last,
        )

    def _zeros(self, curve: Curve) -> list[float]:
        """The steps of the zeros at the end."""
        count = next((i for i, value in enumerate(reversed(curve.values)) if value != 0), len(curve.values))
        return list(curve.steps[len(curve.steps) - count :]) if count >= self.zeros else []

    def _tell_hidden(self, event: CurvesUpdated, curve: Curve, steps: list[float]) -> Finding:
        before = [value for value in curve.values if value != 0]
        was = f", after {before[-1]:.4g}" if before else ""
        return self.finding(
            event,
            f"{curve.name} is exactly 0 from step {shown(steps[0])} on{was}, and the gradient norm there is nan",
            cause="the loss is nan: the logger leaves nan out of its average, and 0 is what remains",
            fix=f"go back to a checkpoint before step {shown(steps[0])}; in the Hugging Face Trainer set "
            "logging_nan_inf_filter=False, and prefer bf16 to fp16",
            key="hidden",
            step_of_first=steps[0],
            zeros=len(steps),
        )

    def _never(self, event: CurvesUpdated) -> Iterator[Finding]:
        losses = [*curves(event, "train_loss"), *curves(event, "val_loss")]
        silent = [curve for curve in losses if len(curve.not_finite) >= self.all_bad and not curve.values]
        if silent and len(silent) == len(losses) and silent[0].role == "train_loss":
            first = silent[0].not_finite[0]
            yield self.finding(
                event,
                f"{silent[0].name} was never finite: nan or inf at all {silent[0].count:,} points, from step {shown(first)} on",
                cause="the data, the initial weights or the loss itself are not finite",
                fix="look at one batch and the initial weights with torch.isfinite; flatline run names the first tensor",
                key=silent[0].name,
                step_of_first=first,
            )


def _longest(bad: list[float], good: tuple[float, ...]) -> int:
    """Most points in a row that were not finite, between finite ones."""
    longest = run = 0
    marks = sorted([(step, 0) for step in bad] + [(step, 1) for step in good])
    for _, fine in marks:
        run = 0 if fine else run + 1
        longest = max(longest, run)
    return longest


def _nan_there(event: CurvesUpdated, steps: list[float]) -> bool:
    """The gradient norm was not finite at most of these steps, and never finite."""
    bad = {step for curve in curves(event, "gradient_norm") for step in curve.not_finite if step >= steps[0]}
    fine = [step for curve in curves(event, "gradient_norm") for step in curve.steps if step >= steps[0]]
    return len(bad) >= min(len(steps), 3) and not fine
