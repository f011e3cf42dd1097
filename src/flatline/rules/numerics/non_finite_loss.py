"""N1."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from flatline.events import GradientNotFinite, LossNotFinite, NonFiniteReplayed, NumbersSampled, Origin
from flatline.findings import Finding
from flatline.rules import Rule

ADAPTIVE = ("Adam", "RMSprop", "Adagrad", "Lion", "Adafactor", "LAMB", "Lamb", "Adan", "Muon", "Rprop")
RATE = "the learning rate of"  # begins a cause that another rate takes away
EXPONENTIALS = ("exp", "expm1", "pow", "sinh", "cosh", "softplus", "logsumexp")


class NonFiniteLoss(Rule):
    """The loss is nan or inf.

    Symptom
    -------
    The loss prints ``nan`` or ``inf``. One or two steps later all weights are nan, and only an earlier checkpoint
    brings the run back.

    Root cause
    ----------
    One tensor was the first, and the numbers after it are its consequence: a batch that holds nan; a logarithm of
    0; a division by 0; an ``exp`` that overflows (above 88 in float32, 11 in float16); a square root or a norm
    whose derivative at 0 is infinite; or a learning rate that throws the weights farther out at every step.

    Fix
    ---
    The finding names the first non-finite tensor and the fix for it.

    Example
    -------
    ::

        loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()
        distance = ((a - b) ** 2).sum(1).sqrt()

    Use instead
    -----------
    ::

        loss = F.binary_cross_entropy_with_logits(scores, y)
        distance = (((a - b) ** 2).sum(1) + 1e-8).sqrt()

    Healthy look-alikes
    -------------------
    A GradScaler skips the step of a loss or of gradients that overflow: one of them now and then is how it finds
    its scale. A mask of -inf, and sums in log-space with -inf in them, while the loss stays finite. A script that
    tests the loss and leaves the batch out never calls backward on it.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection
    - https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html
    """

    code = "N1"
    severity = "error"
    consequences = ("G2", "G3", "C1", "C3", "C6", "C11", "O7", "O22", "O25")

    grew: float = 100.0  # largest finite loss over the first: the run was diverging before it broke
    hot_adaptive: float = 0.1  # learning rates of Adam and its kin from here on are out of any band; default 1e-3
    hot_plain: float = 10.0  # the same for SGD; recipes end at about 1
    usual_adaptive: float = 1e-3  # rates that recipes start from
    usual_plain: float = 0.1  # the same for SGD
    raised: float = 1.5  # times the rate that the optimizer was built with: a schedule that is still rising
    lived_through: int = 5  # losses in a row that a GradScaler skips; one in 2000 is how it finds its scale
    often: int = 8  # the same in all, so early that they are a quarter of the losses: no scale mends a forward pass

    def __init__(self) -> None:
        self._finite_gradients = 0  # the last step that was sampled and had them
        self._gradient = ""  # what made gradients that were not finite, at an earlier step
        self._replayed = NonFiniteReplayed()

    def hangs_on_settings(self, finding: Finding) -> bool:
        """A rate that throws the weights out is one of those that a search tries."""
        return finding.cause.startswith(RATE)

    def on_numbers_sampled(self, event: NumbersSampled) -> None:
        """Whether the gradients of this step were numbers."""
        if event.layers and all(math.isfinite(layer.gradient_rms) for layer in event.layers):
            self._finite_gradients = event.step

    def on_gradient_not_finite(self, event: GradientNotFinite) -> None:
        """The gradient was first."""
        self._gradient = (
            f"{event.detail or event.operation or event.kind}{f' in {event.module}' if event.module else ''}"
        )

    def on_non_finite_replayed(self, event: NonFiniteReplayed) -> None:
        """The step was done again on a copy; its loss is told next."""
        self._replayed = event

    def on_loss_not_finite(self, event: LossNotFinite) -> Iterator[Finding]:
        """The first loss that is not a number, or several in a row where a GradScaler skips their steps."""
        own = event.origin.kind in ("operation", "unknown")
        often = event.in_all >= self.often and 3 * event.in_all >= event.step  # a skipped one is no step
        if event.scaled and own and event.in_a_row < self.lived_through and not often:
            return
        again = self._replayed if self._replayed.step == event.step else NonFiniteReplayed()
        why = self._why(event, again)
        told = f"; {again.told}" if again.told else ""
        yield self.finding(
            event,
            f"loss is {event.value} at step {event.step}{_last(event)}; {_first_tensor(event)}{told}",
            cause=why.cause,
            fix=why.fix,
            value=event.value,
            last_finite=event.last_finite,
            last_finite_step=event.last_finite_step or None,
            first_loss=event.first_finite,
            largest_loss=event.largest,
            origin=event.origin.kind,
            module=event.origin.module or None,
            operation=event.origin.operation or None,
            lr=event.lr,
            optimizer=event.optimizer or None,
            **again.facts,
        )

    def _why(self, event: LossNotFinite, again: NonFiniteReplayed) -> _Why:
        origin = event.origin
        if origin.kind == "inputs":
            return _inputs("batch", origin.detail)
        if origin.kind == "targets":
            return _inputs("targets", origin.detail)
        certain = _operation(event) if origin.kind == "operation" else None
        if certain is not None:
            return certain
        if self._too_hot(event):
            return self._hot(event)
        if origin.kind == "weights":
            return _update(event) if event.last_finite_step == self._finite_gradients > 0 else self._gradients(event)
        if (known := _operation(dataclasses.replace(event, origin=_origin(again)))) is not None:
            return known
        return _overflow(event) if origin.kind == "operation" else _unknown()

    def _gradients(self, event: LossNotFinite) -> _Why:
        why = _weights(event)
        return _Why(f"{why.cause}: {self._gradient} was first", why.fix) if self._gradient else why

    def _too_hot(self, event: LossNotFinite) -> bool:
        limit = self.hot_adaptive if event.optimizer.startswith(ADAPTIVE) else self.hot_plain
        return self._growth(event) >= self.grew or (event.lr is not None and event.lr >= limit)

    def _growth(self, event: LossNotFinite) -> float:
        if not event.first_finite or event.largest is None:
            return 0.0
        return event.largest / abs(event.first_finite)

    def _hot(self, event: LossNotFinite) -> _Why:
        raised = bool(event.built_with and event.lr and event.lr >= self.raised * event.built_with)
        origin = f", raised from {event.built_with:g} and never as high before" if raised else ""
        rate = f" ({event.lr:g}{origin})" if event.lr is not None else ""
        grown = self._growth(event)
        history = (
            f": the loss had grown {grown:.2g} × from {event.first_finite:.3g} before it broke" if grown > 1 else ""
        )
        usual = self.usual_adaptive if event.optimizer.startswith(ADAPTIVE) else self.usual_plain
        lower = f"lower it to {min(event.lr / 10, usual):g} or less" if event.lr else "divide it by 10"
        if raised:
            lower = f"bound what the schedule multiplies with, min(1.0, step / warm-up steps), at {event.built_with:g} or less"
        return _Why(
            f"{RATE} {event.optimizer or 'the optimizer'}{rate} is too high, each step throws the "
            f"weights farther out until they overflow{history}",
            f"{lower}, with a warm-up and torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        )


@dataclass(frozen=True, slots=True)
class _Why:
    cause: str
    fix: str


def _origin(again: NonFiniteReplayed) -> Origin:
    """The operation of a replay in the words of an origin, where its fault is plain."""
    name, zero = again.operation, again.low <= 0 <= again.high
    if again.phase == "backward":
        return Origin()
    if name.startswith("log") and again.low <= 0:
        detail = f"log of {again.low:g}"
    elif name == "div" and zero:
        detail = "division by 0"
    elif name in ("exp", "expm1", "sqrt", "mean"):
        detail = {"mean": "mean of 0 elements"}.get(name, f"{again.kind} in the result of {name}")
    else:
        return Origin()
    return Origin(kind="operation", operation=name, module=again.module, detail=detail)


def _last(event: LossNotFinite) -> str:
    if event.last_finite is None:
        return ", the first one"
    return f" (last finite {event.last_finite:.3g} at step {event.last_finite_step})"


def _first_tensor(event: LossNotFinite) -> str:
    origin = event.origin
    if origin.kind == "inputs":
        where = f"the input of {origin.module}" if origin.module else "the batch"
        return f"first non-finite tensor: {where}{f', {origin.detail}' if origin.detail else ''}"
    if origin.kind == "targets":
        return f"first non-finite tensor: the targets{f', {origin.detail}' if origin.detail else ''}"
    if origin.kind == "weights":
        share = f" ({origin.count} of {origin.total} parameters are not finite)" if origin.count else ""
        return f"first non-finite tensor: the weight {origin.detail}, before this forward pass{share}"
    if origin.kind == "operation":
        place = f", in {origin.module}" if origin.module else ""
        return f"first non-finite tensor: {origin.detail or f'the result of {origin.operation}'}{place}"
    return "weights and inputs are finite"


def _inputs(what: str, detail: str) -> _Why:
    share = f" ({detail})" if detail else ""
    return _Why(
        f"nan or inf in the {what} already{share}: the fault is in the data, not in the model",
        "find the rows with torch.isfinite(x).all(dim=1) and drop or fill them where the data is loaded "
        "(torch.nan_to_num, or the mean of the column); the usual source is an empty cell, or a deviation of 0",
    )


def _operation(event: LossNotFinite) -> _Why | None:
    """Operations whose fault is plain, whatever the learning rate."""
    name, detail = event.origin.operation.lower(), event.origin.detail
    if name.startswith("log") and detail.startswith("log of"):
        return _logarithm(detail)
    if detail.startswith("division by 0"):
        return _division(detail)
    plain = next((why for start, why in PLAIN.items() if detail.startswith(start)), None)
    if plain is not None:
        return plain
    if "(float16" in detail or _ends_like_float16(detail):
        return _Why(
            f"float16 ends at 65504, and a number in the forward pass went past it: {detail}",
            "use bfloat16: torch.autocast(device, dtype=torch.bfloat16); or keep this layer in float32 with "
            "torch.autocast(device, enabled=False)",
        )
    if name == "sqrt" and "nan" in detail:
        return _Why(
            "the square root of a negative number is nan; rounding makes a variance or a distance slightly negative",
            "clamp before the root: torch.sqrt(x.clamp(min=1e-8))",
        )
    if name in EXPONENTIALS and "inf in the result" in detail:
        return _Why(
            f"{name} overflows: in float32 exp(x) is inf for x above 88",
            "subtract the maximum first, use torch.logsumexp or F.softmax, or clamp: torch.exp(x.clamp(max=20))",
        )
    return None


def _division(detail: str) -> _Why:
    what = detail.partition(", ")[2] or "a denominator"
    examples = {"deviation": "a constant feature", "variance": "a constant feature", "norm": "a row of zeros"}
    example = next((text for word, text in examples.items() if word in what), "an empty mask")
    fix = (
        "x / x.norm(dim=1, keepdim=True).clamp(min=1e-8), or F.normalize(x)"
        if "norm" in what
        else ("x / (std + 1e-8), or total / count.clamp(min=1)")
    )
    return _Why(
        f"{what} is exactly 0 where something is divided by it, as with {example}", f"keep it away from 0: {fix}"
    )


PLAIN = {
    "softmax over rows of -inf": _Why(
        "a row of the scores is masked completely: softmax of only -inf is 0 / 0",
        "leave at least one position open in every row (padded sequences need a token of their own), mask with "
        "torch.finfo(scores.dtype).min in place of -inf, or F.scaled_dot_product_attention, which gives 0 there",
    ),
    "mean of 0 labels": _Why(
        "every label of this batch is ignore_index, and the mean over no label is 0 / 0",
        "leave such batches out, or reduction='sum' divided by (labels != -100).sum().clamp(min=1)",
    ),
    "mean of 0 elements": _Why(
        "the mean of an empty tensor is nan: a mask or an index left nothing over in this batch",
        "leave such batches out: loss = (x * mask).sum() / mask.sum().clamp(min=1)",
    ),
    "std of a single value": _Why(
        "the standard deviation of one value is 0 / 0: the batch has one row, as the last one of an epoch may",
        "DataLoader(drop_last=True), or x.std(dim=0, correction=0)",
    ),
}


def _ends_like_float16(detail: str) -> bool:
    """An inf whose finite neighbours end shortly before 65504: float32 would have gone on."""
    span = re.search(r"finite values (\S+) to ([^),\s]+)", detail)
    return detail.startswith("inf") and span is not None and 2**14 < max(abs(float(n)) for n in span.groups()) <= 65504


def _logarithm(detail: str) -> _Why:
    if detail.startswith("log of -"):
        return _Why(
            f"the logarithm of a negative number is nan ({detail})",
            "log takes probabilities or variances: pass the input through softplus or exp first, or check its sign",
        )
    return _Why(
        "a probability reached exactly 0 by rounding, and log(0) is -inf",
        "compute the loss from the raw scores: F.cross_entropy, F.log_softmax or F.binary_cross_entropy_with_logits; "
        "or keep the input away from 0: torch.log(p.clamp(min=1e-8))",
    )


def _weights(event: LossNotFinite) -> _Why:
    if event.last_finite is None:
        return _Why(
            "the weights were not finite before the first step: uninitialised (torch.empty), or a broken checkpoint",
            f"initialise {event.origin.detail} (nn.init.…), or check the checkpoint with torch.isfinite",
        )
    if event.data_note:
        return _Why(
            f"{event.data_note}: a batch with that row makes gradients that are not finite, whatever hides it from the loss",
            "drop or repair such rows before training: keep = torch.isfinite(x).flatten(1).all(1); x, y = x[keep], y[keep]",
        )
    note = f"; its graph has {event.gradient_note}" if event.gradient_note else ""
    return _Why(
        f"the loss of step {event.last_finite_step} was finite, but its backward made non-finite gradients: the "
        f"derivative of sqrt, norm, pow or a division is infinite at 0, and 0 × inf is nan{note}",
        "keep their input away from 0: torch.sqrt(x + 1e-8), x.norm(dim=1).clamp(min=1e-8), F.pairwise_distance; "
        "torch.autograd.set_detect_anomaly(True) on that batch names the line",
    )


def _update(event: LossNotFinite) -> _Why:
    name = event.optimizer or "the optimizer"
    return _Why(
        f"loss and gradients of step {event.last_finite_step} were finite, the update of {name} was not: "
        "in float16 its eps of 1e-8 rounds to 0 and it divides by 0, or its state overflows",
        "keep weights and optimizer state in float32 and use torch.autocast for speed, or raise eps to 1e-4",
    )


def _overflow(event: LossNotFinite) -> _Why:
    place = event.origin.module or event.origin.operation or "this operation"
    if "in the input" in event.origin.detail:
        return _Why(
            f"what reaches {place} is not finite though batch and weights are: a division by 0 before it (a deviation, "
            "a norm or a count of 0), a log, a root or an overflow",
            f"guard what stands before {place}: x / (std + 1e-8), total / count.clamp(min=1), torch.sqrt(x + 1e-8)",
        )
    return _Why(
        f"the forward pass leaves the range of its dtype at {place}: inf - inf, 0 × inf and 0 / 0 are nan",
        f"look at what {place} is given: guard divisions, logarithms and "
        "roots with an epsilon, and lower the learning rate if the weights have grown",
    )


def _unknown() -> _Why:
    return _Why(
        "an operation between the model's output and the loss leaves the numbers: log, sqrt, division, empty mean",
        "check the targets with torch.isfinite, guard divisions, logarithms and roots with an epsilon; "
        "torch.autograd.set_detect_anomaly(True) on this batch names the line",
    )
