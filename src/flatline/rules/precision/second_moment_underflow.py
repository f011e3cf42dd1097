"""FP2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flatline.events import NumbersSampled, OptimizerStateSampled
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule


class SecondMomentUnderflow(Rule):
    """The optimizer's mean of squared gradients underflows to 0.

    Symptom
    -------
    Adam in float16 behaves like SGD with a huge step, or hardly moves with a larger eps: its step does not adapt to
    the size of the gradients.

    Root cause
    ----------
    Adam keeps a mean of *squared* gradients, and adds a thousandth of the square at each step. In float16 that is 0
    for every gradient under 5e-3, in float32 and bfloat16 for those under 1e-21, which a unit or a weight in the
    loss may make. The division is by eps alone.

    Fix
    ---
    Keep parameters and optimizer state in float32 and use ``torch.autocast``, or bfloat16. Take a tiny factor out of
    the loss: the best weights stay the same.

    Example
    -------
    ::

        model.half()
        optimizer = torch.optim.Adam(model.parameters(), eps=1e-4)

    Use instead
    -----------
    ::

        optimizer = torch.optim.Adam(model.parameters())
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()

    Healthy look-alikes
    -------------------
    State in float32 or bfloat16; gradients of 0, as of embedding rows that were not used; quantised state, which has
    a scale of its own; a loss times 1e-6, which Adam divides out; squares that are scaled before they are stored, or roots of
    them; a first step of usual size under a large eps.

    References
    ----------
    - https://arxiv.org/abs/1710.03740
    - https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
    """

    code = "FP2"
    severity = "warning"
    cause = (
        "a thousandth of the gradient's square is below 6e-8, the smallest number of float16: the division is by eps"
    )
    fix = "keep parameters and optimizer state in float32 and use torch.autocast for speed, or model.to(torch.bfloat16)"
    wide_cause = (
        "the gradients are below 1e-21, so that their squares are 0 even in {}: the division is by eps={:g}, and the "
        "weights do not move"
    )
    wide_fix = "take the tiny factor out of the loss (a unit, a weight, a normalisation), or scale inputs and targets"
    consequences = ("O7", "O22", "O28")
    thrown_far = (*consequences, "N1", "N2", "G1", "G8", "W1", "W5", "O25", "C1", "C2", "C3", "C6", "C11")

    certain_after: int = 3  # looks in a row: the mean of squares fills up over the first steps
    share: float = 0.2  # of the gradients that are not 0; measured 0 in float32 and bfloat16, 0.25 to 0.6 in float16
    nearly_all: float = 0.9  # the same in a wide range; measured 0 at losses of usual size, 1 at one times 1e-22
    enough: int = 64  # sampled gradients that are not 0
    thrown: float = 1.0  # own sizes travelled in that step; healthy is 1e-3 (CS231n)
    worse: float = 10.0  # loss over the first one, after that step

    def __init__(self) -> None:
        self._looks: dict[int, int] = {}
        self._gone: dict[int, OptimizerStateSampled] = {}  # newest look at which they were 0
        self._updates: dict[int, tuple[int, float]] = {}  # step, and typical change of its weights
        self._leaps: dict[int, tuple[OptimizerStateSampled, float]] = {}

    def on_optimizer_state_sampled(self, event: OptimizerStateSampled) -> Iterator[Finding]:
        """Mean squares of 0 where the gradient is not."""
        key, gone = event.optimizer.key, event.squares_zero
        narrow = event.state == "float16"
        share = self.share if narrow else self.nearly_all
        under = event.squares >= self.enough and gone >= share * event.squares and (narrow or self._plain(event))
        self._looks[key] = self._looks.get(key, 0) + 1 if under else 0
        if narrow and under:
            self._gone[key] = event
            self._compare(key)
        if self._looks[key] >= self.certain_after:
            yield self.finding(
                event,
                f"{event.optimizer.name} keeps its mean of squared gradients in {event.state}: it is exactly 0 for "
                f"{gone / event.squares:.0%} of the gradients that are not 0",
                cause="" if narrow else self.wide_cause.format(event.state, event.eps),
                fix="" if narrow else self.wide_fix,
                where=event.optimizer.where,
                key=str(key),
                squares=event.squares,
                zero=gone,
                eps=event.eps,
            )

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """One step divided by eps threw the weights so far that all later gradients are large."""
        key, first = event.optimizer.key, event.first_loss or 0.0
        if key in self._leaps and event.loss is not None and first > 0 and not event.loss < self.worse * first:
            state, update = self._leaps[key]
            found = self.finding(
                event,
                f"{state.optimizer.name} keeps its mean of squared gradients in {state.state}: at step {state.index} it was "
                f"exactly 0 for {state.squares_zero / state.squares:.0%} of the gradients that are not 0, and that step "
                f"changed the weights by {update:.3g} times their size; the loss went from {first:.4g} to {event.loss:.4g}",
                where=state.optimizer.where,
                key=str(key),
                squares=state.squares,
                zero=state.squares_zero,
                update=update,
            )
            yield replace(found, consequences=self.thrown_far)
        moved = [each.update_ratio for each in event.layers if each.matrix and each.update_ratio]
        if moved:
            self._updates[key] = event.index, median(moved)
            self._compare(key)

    def _compare(self, key: int) -> None:
        """The state and the update of one and the same step."""
        state, (index, update) = self._gone.get(key), self._updates.get(key, (0, 0.0))
        if state is not None and state.index == index and update >= self.thrown:
            self._leaps.setdefault(key, (state, update))

    @staticmethod
    def _plain(event: OptimizerStateSampled) -> bool:
        return event.stock and event.state in ("float32", "bfloat16") and bool(event.eps)
