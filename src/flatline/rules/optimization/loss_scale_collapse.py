"""O24."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import LossNotFinite, Origin, ScalerObserved
from flatline.findings import Finding
from flatline.rules import Rule


class LossScaleCollapse(Rule):
    """A GradScaler's scale keeps falling: it skips step after step.

    Symptom
    -------
    The loss prints, nothing crashes, and the model hardly learns: the optimizer takes far fewer steps than there
    are iterations, and ``scaler.get_scale()`` goes from 65536 down to 1 and below.

    Root cause
    ----------
    At every overflow GradScaler halves its scale and leaves the step out. A handful of halvings at the start is how
    it finds its scale. When they go on, no scale helps: the forward pass itself leaves float16 (65504), or the
    backward makes nan whatever the scale is. Or the scaler is made anew in every step or epoch: it starts at 65536
    each time, and what it has found out is lost.

    Fix
    ---
    Make the GradScaler once, before the loop.
    Use bfloat16, which has the range of float32 and needs no scaler:
    ``torch.autocast(device, dtype=torch.bfloat16)``. Or keep the layer that overflows in float32 with
    ``torch.autocast(device, enabled=False)``.

    Example
    -------
    ::

        with torch.autocast("cuda", dtype=torch.float16):
            loss = ((model(x) - y * 1000) ** 2).mean()
        scaler.scale(loss).backward()

    Use instead
    -----------
    ::

        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = ((model(x) - y) ** 2).mean()
        loss.backward()

    Healthy look-alikes
    -------------------
    Early calibration: some skips in the first steps, then none. One skip after each growth of the scale, also with
    a short ``growth_interval``. A ``GradScaler(enabled=False)``. A scaler for each epoch or fold that soon finds its scale.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    - https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """

    code = "O24"
    severity = "warning"
    fix = (
        "use torch.autocast(device, dtype=torch.bfloat16) without a scaler, or keep the layer that overflows in "
        "float32 with torch.autocast(device, enabled=False)"
    )
    consequences = ("N1", "N2", "FP1", "O8", "G1", "G2", "G3")

    floor: float = 1.0  # a scale below it makes gradients smaller than none does; healthy plateaus are 2**8 to 2**16
    enough: int = 8  # skipped steps in all: a scale that starts low may fall below the floor once or twice
    share: float = 0.25  # of the last 40 updates skipped, after calibration; one in growth_interval (2000) is usual
    grew: float = 100.0  # largest finite loss over the first, as in N1: the run was diverging before, at any precision
    per_interval: float = 3.0  # and so many times as often as the scale's own growth explains
    renewed: int = 5  # scalers in 40 updates of one optimizer: two or three serve as many losses
    lost: int = 20  # of these 40 updates: half of the training is left out

    def __init__(self) -> None:
        self._bad_losses = 0
        self._origin = Origin()
        self._elsewhere = False  # weights, data or a plain operation like log(0) are at fault: the scaler shows it

    def on_loss_not_finite(self, event: LossNotFinite) -> None:
        """Where the loss itself was not finite."""
        self._bad_losses = max(self._bad_losses, event.in_a_row)
        self._origin = event.origin
        range_left = event.origin.kind == "unknown" or event.origin.detail.startswith("inf in")
        grew = bool(event.first_finite and event.largest and event.largest >= self.grew * abs(event.first_finite))
        self._elsewhere = self._elsewhere or not event.scaled or not range_left or grew

    def on_scaler_observed(self, event: ScalerObserved) -> Iterator[Finding]:
        """A scale that fell through the floor, or steps that are skipped long after the start."""
        if self._elsewhere:
            return
        if event.begun >= self.renewed and event.lately >= self.lost:
            yield self._made_anew(event)
        if event.skipped < self.enough or not (self._fell(event) or self._keeps_falling(event)):
            return
        yield self.finding(
            event,
            f"the loss scale fell from {event.first_scale:g} to {event.scale:g}: {event.skipped} of {event.updates} "
            f"steps were skipped",
            cause=self._cause(),
            scale=event.scale,
            first_scale=event.first_scale,
            skipped=event.skipped,
            updates=event.updates,
            in_a_row=event.in_a_row,
        )

    def _made_anew(self, event: ScalerObserved) -> Finding:
        """Every scaler starts where the one before it had started."""
        return self.finding(
            event,
            f"{event.lately} of the optimizer's last steps were skipped: {event.begun} GradScalers were made for them, and "
            f"each begins at a scale of {event.first_scale:g}",
            severity="error",
            cause="a scaler finds its scale by halving it after each step that it skips; one that is made anew forgets "
            f"that, so that the gradients overflow at {event.first_scale:g} again and again, and the model is not trained",
            fix="make the GradScaler once, before the training loop, and use that one in every step",
            first_scale=event.first_scale,
            scalers=event.begun,
            skipped=event.lately,
        )

    def _fell(self, event: ScalerObserved) -> bool:
        return event.scale < self.floor <= event.first_scale and event.in_a_row > 0

    def _keeps_falling(self, event: ScalerObserved) -> bool:
        """Skips in both halves of the last 40 updates, and more than a growing scale explains."""
        least = max(self.share, self.per_interval / max(1, event.growth_interval)) * 20
        lower = event.scale < event.first_scale
        return lower and event.older >= least and event.newer >= least

    def _cause(self) -> str:
        if self._bad_losses:
            what = self._origin.detail or self._origin.operation or "the forward pass"
            place = f" in {self._origin.module}" if self._origin.module else ""
            return (
                f"the loss itself is not finite before it is scaled ({what}{place}): float16 ends at 65504, and no "
                "scale can mend a forward pass that overflows"
            )
        return (
            "the gradients are not finite at any scale though the loss is: the backward makes inf or nan itself, by "
            "overflow in float16 or by a derivative that is infinite at 0 (sqrt, norm, a division)"
        )
