"""O14."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import CrashTensor, LossComputed, ScriptCrashed, SignsMissing
from flatline.findings import Finding
from flatline.rules import Rule


class TargetForm(Rule):
    """The targets have a form that the loss does not mean.

    Symptom
    -------
    "Target 10 is out of bounds", "multi-target not supported", "expected scalar type Long but found Float", a
    device-side assert on a GPU; or a loss that runs and converges to nothing.

    Root cause
    ----------
    ``cross_entropy`` takes class indices (integers in [0, C), one dimension fewer than the scores) or class
    probabilities (floats in the shape of the scores, which sum to 1 over the classes). One-hot integers, labels that
    start at 1, and float scores that do not sum to 1 are neither. Binary cross entropy takes targets in [0, 1].

    Fix
    ---
    ``target.long()`` of shape [N] with classes renumbered from 0; or a float distribution; ``ignore_index`` for
    what shall not count; ``binary_cross_entropy_with_logits`` for several labels a sample.

    Example
    -------
    ::

        y = torch.randint(1, 11, (32,))      # 1 … 10
        F.cross_entropy(scores, y)           # 10 classes

    Use instead
    -----------
    ::

        F.cross_entropy(scores, y - 1)

    Healthy look-alikes
    -------------------
    Soft targets that sum to 1 (mixup, distillation, float one-hot); ``ignore_index``.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    code = "O14"
    severity = "error"
    cause = "cross_entropy takes class indices in [0, C), or class probabilities that sum to 1"
    fix = "give class indices: y.long(), of shape [N], counted from 0"
    tolerance: float = 0.05  # of a row's sum around 1
    certain_after: int = 2  # losses that agree
    left_out: float = 0.1  # share of the pairs; a few ties may be left out on purpose

    def __init__(self) -> None:
        self._odd = {"sum": 0, "range": 0, "sign": 0}

    def on_loss_computed(self, event: LossComputed) -> Iterator[Finding]:
        """Targets that run and mean something else."""
        target = event.target
        if event.kind == "cross_entropy" and target.row_sum_low is not None and target.row_sum_high is not None:
            off = max(abs(target.row_sum_low - 1), abs(target.row_sum_high - 1)) > self.tolerance
            if self._certain("sum", off):
                yield self.finding(
                    event,
                    f"float targets of cross_entropy sum to {target.row_sum_low:.3g} … {target.row_sum_high:.3g} over the "
                    f"{event.classes} classes, not to 1",
                    cause="float targets are read as class probabilities; these are none",
                    fix="normalise them, pass class indices, or use binary_cross_entropy_with_logits for several labels",
                    key="sum",
                    low=target.row_sum_low,
                    high=target.row_sum_high,
                )
        elif event.kind.startswith("binary_cross_entropy") and target.low is not None and target.high is not None:
            if self._certain("range", target.low < 0 or target.high > 1):
                yield self.finding(
                    event,
                    f"targets of {event.kind} reach from {target.low:g} to {target.high:g}",
                    cause="binary cross entropy takes targets in [0, 1]; outside of it the loss has no lower bound",
                    fix="map the labels to 0 and 1",
                    key="range",
                    low=target.low,
                    high=target.high,
                )

    def on_signs_missing(self, event: SignsMissing) -> Iterator[Finding]:
        """0 where -1 is meant: the loss leaves these pairs out."""
        together = "Cosine" in event.loss or "Hinge" in event.loss
        if self._certain("sign", event.zeros >= self.left_out * event.targets > 0):
            yield self.finding(
                event,
                f"{event.zeros} of {event.targets} targets of {event.loss} are 0, and the others are 1",
                cause="it takes 1 and -1: a 0 belongs to neither part of it, so these pairs teach nothing"
                + (", and the others are drawn together until all is one point" if together else ""),
                fix="map the labels to -1 and 1: target = 2 * label - 1",
                key="sign",
                zeros=event.zeros,
                targets=event.targets,
            )

    def _certain(self, what: str, off: bool) -> bool:
        self._odd[what] = self._odd[what] + 1 if off else 0
        return self._odd[what] >= self.certain_after

    def on_script_crashed(self, event: ScriptCrashed) -> Iterator[Finding]:
        """The crash, with the offending values."""
        scores, target = event.tensors.get("input"), event.tensors.get("target")
        if (
            scores is None
            or target is None
            or ("cross_entropy" not in event.functions and "nll_loss" not in event.functions)
        ):
            return
        classes = scores.shape[1] if len(scores.shape) > 1 else scores.shape[0] if scores.shape else 0
        if _well_formed(scores, target):
            return  # the crash is about something else: memory, a device, a weight
        message, cause, fix = self._judge(event, scores, target, classes)
        yield self.finding(
            event,
            message,
            cause=cause,
            fix=fix,
            key="crash",
            classes=classes,
            target_shape=str(list(target.shape)),
            target_dtype=target.dtype,
            low=target.low,
            high=target.high,
        )

    def _judge(
        self, event: ScriptCrashed, scores: CrashTensor, target: CrashTensor, classes: int
    ) -> tuple[str, str, str]:
        form = f"target {list(target.shape)} {target.dtype} for scores {list(scores.shape)}"
        if target.bad:
            first = " (labels seem to count from 1)" if target.high == classes and (target.low or 0) >= 1 else ""
            fix = "subtract 1 from the labels" if first else f"the last layer needs {int(target.high or 0) + 1} outputs"
            if (target.low or 0) < 0 and target.low != event.ignore_index:
                fix = f"pass ignore_index={int(target.low or 0)} if it marks what shall not count, or renumber the classes from 0"
            return f"labels outside [0, {classes}): {target.bad}{first}", self.cause, fix
        if target.shape == scores.shape and "float" not in target.dtype:
            return f"one-hot integers: {form}", self.cause, "pass y.argmax(1) of shape [N], or y.float()"
        if target.shape == (*scores.shape[:1], 1, *scores.shape[2:]):
            return f"one dimension too many: {form}", self.cause, "pass y.squeeze(1)"
        if "float" in target.dtype:
            return f"float labels where indices are meant: {form}", self.cause, "pass y.long()"
        return f"targets do not fit the scores: {form}", self.cause, self.fix


def _well_formed(scores: CrashTensor, target: CrashTensor) -> bool:
    indices = target.dtype in ("int64", "uint8") and target.shape == (*scores.shape[:1], *scores.shape[2:])
    return not target.bad and (indices or (target.shape == scores.shape and "float" in target.dtype))
