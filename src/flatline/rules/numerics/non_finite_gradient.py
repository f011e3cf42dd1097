"""N2."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from flatline.events import GradientNotFinite, LossNotFinite, NonFiniteReplayed, NumbersSampled
from flatline.findings import Finding
from flatline.rules import Rule

MASKED = ("log", "log2", "log10", "div", "exp", "rsqrt", "reciprocal", "mul", "pow")
ENDLESS = ("sqrt", "acos", "asin", "atanh")  # their derivatives have no end where they are used at an edge


class NonFiniteGradient(Rule):
    """The loss is finite, and its gradients are nan or inf.

    Symptom
    -------
    The loss prints a number at one step and ``nan`` at the next, though nothing about the data changed. Every weight
    that the gradient reached is nan after the step between them.

    Root cause
    ----------
    The value of an operation is fine where its derivative is infinite: sqrt at 0, pow(0, 0.5), acos at 1. Or an
    infinite branch was masked after it was computed: ``torch.where`` and a multiplication with 0 hide a log(0) in
    the forward pass, but in the backward 0 × inf is nan. Or float16 gradients overflow.

    Fix
    ---
    Make the *input* of the operation safe, before it, and not its result after it.

    Example
    -------
    ::

        distance = ((a - b) ** 2).sum(1).sqrt()
        entropy = torch.where(p > 0, p * p.log(), 0.0)

    Use instead
    -----------
    ::

        distance = (((a - b) ** 2).sum(1) + 1e-8).sqrt()
        entropy = p * p.clamp(min=1e-8).log()

    Healthy look-alikes
    -------------------
    A GradScaler, which tests for this and skips the step. A loop that tests the gradients' norm and leaves the step
    out, or fills them with torch.nan_to_num. Infinite values that stay behind a mask on their input.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/notes/autograd.html#gradients-for-non-differentiable-functions
    - https://github.com/tensorflow/probability/blob/main/discussion/where-nan.pdf
    """

    code = "N2"
    severity = "error"
    consequences = ("N1", "G2", "G3", "O7", "O22", "O25")

    hot: float = 0.1  # rate of any optimizer above which the weights may have overflowed by themselves
    grew: float = 100.0  # largest finite loss over the first: the run was diverging before it broke

    def __init__(self) -> None:
        self._replayed = NonFiniteReplayed()
        self._finite = 0  # the last step that was sampled and had finite gradients
        self._told = False

    def on_numbers_sampled(self, event: NumbersSampled) -> None:
        """Whether the gradients of this step were numbers."""
        if event.layers and all(math.isfinite(layer.gradient_rms) for layer in event.layers):
            self._finite = event.step

    def on_non_finite_replayed(self, event: NonFiniteReplayed) -> None:
        """The step was done again on a copy; its gradients are told next."""
        self._replayed = event

    def on_gradient_not_finite(self, event: GradientNotFinite) -> Iterator[Finding]:
        """They went into the optimizer, and the weights are not numbers any more."""
        self._told = True
        loss = f"loss {event.loss:.4g} is finite" if event.loss is not None else "the loss is finite"
        place = f" in {event.module}" if event.module else ""
        source = f"; {event.detail}{place} has an infinite derivative" if event.detail else ""
        again = self._replayed if self._replayed.step == event.step else NonFiniteReplayed()
        cause, fix = _why(event if event.operation else _with(event, again))
        told = f"; {again.told}" if again.told else ""
        yield self.finding(
            event,
            f"{loss} at step {event.step}, and the gradients of {event.bad} of {event.total} parameters are "
            f"{event.kind}, as in {event.parameters[0] if event.parameters else 'a parameter'}{source}{told}",
            cause=cause,
            fix=fix,
            operation=event.operation or None,
            module=event.module or None,
            parameters=", ".join(event.parameters) or None,
            loss=event.loss,
            optimizer=event.optimizer or None,
            **again.facts,
        )

    def on_loss_not_finite(self, event: LossNotFinite) -> Iterator[Finding]:
        """The loss before was finite, and the step after it left weights that are not numbers: between the samples."""
        origin, last = event.origin, event.last_finite_step
        blown = event.largest is not None and event.largest >= self.grew * abs(event.first_finite or math.inf)
        if origin.kind != "weights" or event.last_finite is None or not event.gradient_note or event.scaled:
            return
        if self._told or event.data_note or blown or (event.lr or 0.0) > self.hot or last == self._finite > 0:
            return
        self._told = True
        operations = event.gradient_note.partition(" in ")[0].split(", ")
        endless = next((each for each in operations if each in ENDLESS), "")
        cause, fix = _why(GradientNotFinite(operation=endless, detail=f"the derivative of {endless}"))
        yield self.finding(
            event,
            f"loss {event.last_finite:.4g} is finite at step {last}, and after that step {origin.count} of {origin.total} "
            f"parameters are not, {origin.detail} first; the graph has {event.gradient_note}",
            cause=f"as far as the graph tells, {cause}",
            fix=fix,
            key="after",
            operation=endless or None,
            loss=event.last_finite,
            last_finite_step=last,
            optimizer=event.optimizer or None,
        )


def _with(event: GradientNotFinite, again: NonFiniteReplayed) -> GradientNotFinite:
    """The operation whose backward made them, where only the replay knows it."""
    node, backward, _ = again.operation.partition("Backward")
    if not backward:
        return event
    zero = again.low <= 0 <= again.high
    detail = (
        "pow(0, p)" if node == "Pow" and zero else f"{node.lower()} of {'0' if zero else f'{again.low:.4g} and more'}"
    )
    return dataclasses.replace(event, operation=node.lower(), detail=detail)


def _why(event: GradientNotFinite) -> tuple[str, str]:
    name = event.operation
    if name == "sqrt" or event.detail.startswith("pow(0"):
        return (
            f"{event.detail}: the value is fine, the derivative is infinite, and 0 × inf is nan",
            "add a small number before the root: torch.sqrt(x + 1e-8); for distances use torch.linalg.vector_norm or "
            "F.pairwise_distance, which are defined at 0",
        )
    if name == "logsumexp":
        return (
            "logsumexp of nothing but -inf: its derivative is nan, also where a larger value hides it later",
            "use a large negative number in place of -inf, such as -1e9 or torch.finfo(x.dtype).min",
        )
    if name in MASKED:
        return (
            f"{event.detail}: its result was masked afterwards (torch.where, masked_fill or × 0), which hides it in the "
            "forward pass only; in the backward 0 × inf is nan",
            "mask the input, not the result: safe = torch.where(ok, x, 1.0); out = torch.where(ok, f(safe), 0.0); or "
            "x.clamp(min=1e-8)",
        )
    if name in ("acos", "asin", "atanh"):
        return (
            f"the derivative of {name} is infinite at 1 and -1, where rounding brings a cosine of equal vectors",
            f"keep the input inside: torch.{name}(x.clamp(-1 + 1e-6, 1 - 1e-6)), or torch.atan2",
        )
    if name.startswith("linalg"):
        return (
            f"{event.detail}: their derivative divides by differences of values that are equal",
            "do not backpropagate through the vectors, add a small random diagonal, or use eigvalsh / svdvals",
        )
    return _unseen(event)


def _unseen(event: GradientNotFinite) -> tuple[str, str]:
    if event.dtype == "float16":
        return (
            "float16 gradients end at 65504, and these went past it",
            "use bfloat16, or torch.amp.GradScaler with float32 parameters, which skips such steps",
        )
    return (
        "an operation of the forward pass has no finite derivative where it was used: a root, norm, power or division "
        "at 0, or a nan behind a mask",
        "torch.autograd.set_detect_anomaly(True) on that batch names the line; keep inputs of roots, logarithms and "
        "divisions away from 0",
    )
