"""FP1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flatline.events import PrecisionObserved, SourceParsed
from flatline.findings import Finding
from flatline.rules import Rule


class HalfWithoutScaler(Rule):
    """Gradients flow through float16 without a loss scale, and underflow.

    Symptom
    -------
    With ``autocast(dtype=torch.float16)`` or ``model.half()`` the loss falls more slowly than in float32, or stops
    falling early; some layers get gradients of exactly 0. Nothing is nan.

    Root cause
    ----------
    Below 6e-8 float16 has only 0, and below 6e-5 it loses digits. Gradients are often that small: they are divided
    by the number of elements that the loss is a mean of. GradScaler multiplies the loss, so that they stay above.

    Fix
    ---
    Use ``torch.amp.GradScaler``, or bfloat16, which has the range of float32 and needs no scaler.

    Example
    -------
    ::

        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    Use instead
    -----------
    ::

        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    Healthy look-alikes
    -------------------
    bfloat16; a GradScaler; a loss multiplied by a constant by hand; float16 in a frozen teacher, which is in no
    graph; float16 gradients that are large enough (a hint only).

    References
    ----------
    - https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    - https://arxiv.org/abs/1710.03740
    """

    code = "FP1"
    severity = "warning"
    fix = (
        "scaler = torch.amp.GradScaler(device); scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update(); or "
        "torch.autocast(device, dtype=torch.bfloat16), which needs no scaler"
    )
    consequences = ("FP2", "FP4", "G2", "O7", "O22")

    certain_after: int = 3  # backwards that agree: the first batches may be odd
    coarse: float = 0.1  # of the gradients that are not 0, below 6e-5; with a fitting scale measured under 0.01
    cut: float = 0.1  # of them among the four lowest numbers above 0: the rest of the bell is below, at 0

    def __init__(self) -> None:
        self._looks = 0
        self._lossy = 0

    def on_precision_observed(self, event: PrecisionObserved) -> Iterator[Finding]:
        """How many float16 gradients stand at the lower end of the range."""
        if event.dtype != "float16" or event.scaled or not event.elements or event.loss == 0:
            self._looks = self._lossy = 0
            return
        self._looks += 1
        nonzero = event.elements - event.zeros
        coarse = event.coarse / nonzero if nonzero else float(bool(event.loss))
        self._lossy = self._lossy + 1 if coarse >= self.coarse else 0
        if self._lossy >= self.certain_after:
            yield self._underflow(event, nonzero, coarse)
        elif self._looks >= self.certain_after and not self._lossy:
            yield self._at_risk(event)

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """float16 autocast, and a bare backward."""
        for fact in event.of("half"):
            yield self.finding_at(
                event,
                fact.where,
                f"the forward pass runs in float16 ({fact.text}), and its loss is not scaled before backward()",
                cause="below 6e-8 float16 has only 0; gradients shrink as the loss falls",
            )

    def _underflow(self, event: PrecisionObserved, nonzero: int, coarse: float) -> Finding:
        gone = not nonzero or event.lowest / nonzero >= self.cut
        return self.finding(
            event,
            f"float16 gradients without a loss scale: {event.zeros / event.elements:.0%} of them are exactly 0, and "
            f"{coarse:.0%} of the others are below 6.1e-5, where float16 loses digits"
            if nonzero
            else "float16 gradients without a loss scale: every one of them is exactly 0",
            severity="error" if gone else "warning",
            cause="below 6e-8 float16 has only 0, and the loss is not scaled up before backward",
            fix="" if event.parameters != "float16" else _MASTER,
            zeros=event.zeros,
            below_normal=event.coarse,
            gradients=event.elements,
            parameters=event.parameters,
        )

    def _at_risk(self, event: PrecisionObserved) -> Finding:
        found = self.finding(
            event,
            "the backward runs in float16 without a loss scale; its gradients are large enough so far",
            severity="hint",
            cause="below 6e-8 float16 has only 0; gradients shrink as the loss falls",
            fix="" if event.parameters != "float16" else _MASTER,
            key="risk",
            gradients=event.elements,
        )
        return replace(found, consequences=())  # advice explains nothing


_MASTER = (
    "keep the parameters in float32 and use torch.autocast with torch.amp.GradScaler (it refuses float16 "
    "parameters), or model.to(torch.bfloat16)"
)
