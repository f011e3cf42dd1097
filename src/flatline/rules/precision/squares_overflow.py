"""FP5."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import OverflowHidden
from flatline.findings import Finding
from flatline.rules import Rule


class SquaresOverflow(Rule):
    """A sum of squares overflows float16, and what is divided by its root becomes 0.

    Symptom
    -------
    The model learns nothing, or only from some of its samples, in float16 alone. No loss and no gradient is nan or inf,
    and the loss scale stays where it is.

    Root cause
    ----------
    float16 ends at 65504: the square of a number above 255 is inf in it, and so is the mean of such squares. A norm by
    hand divides by the root of that mean. A number over inf is 0, which looks like any other number, so that everything
    behind the norm goes on with zeros.

    Fix
    ---
    Take the squares in float32, ``x.float().pow(2).mean(-1, keepdim=True)``, and go back to the dtype behind the division;
    nn.RMSNorm, nn.LayerNorm and F.normalize under autocast do that themselves. Scale raw samples (16-bit sound, pixels,
    counts) before they are cast to float16.

    Example
    -------
    ::

        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)      # x in float16, up to 32767

    Use instead
    -----------
    ::

        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps).to(x.dtype)

    Healthy look-alikes
    -------------------
    float32 and bfloat16, which reach 3e38; squares taken in float32 of numbers in float16; samples that are zero because they
    were given as zeros, or are masked; a first hidden state of zeros; a distance to infinity by which is divided on purpose.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/amp.html
    - Micikevicius and others, Mixed Precision Training, https://arxiv.org/abs/1710.03740
    """

    code = "FP5"
    severity = "warning"
    cause = (
        "float16 ends at 65504, so that the square of a number above 255 is inf; a number over inf is 0, and everything behind "
        "it goes on with zeros"
    )
    fix = (
        "take the squares in float32: `x.float().pow(2).mean(-1, keepdim=True)`, and cast back behind the division; scale raw "
        "samples before they are cast to float16"
    )
    consequences = ("D1", "D3", "D7", "G2", "O7", "O22", "O25", "W4", "W5", "C2", "C3", "C5")

    looks_needed: int = 3  # steps; one sum may be an accident of one batch
    some: float = 0.1  # of the sums or samples; fewer are outliers
    most: float = 0.9  # of them: then nothing of the samples is left

    def __init__(self) -> None:
        self._steps: dict[str, set[int]] = {}

    def on_overflow_hidden(self, event: OverflowHidden) -> Iterator[Finding]:
        """The same place, step after step."""
        steps = self._steps.setdefault(event.place, set())
        if event.share >= self.some:
            steps.add(event.step)
        if len(steps) < self.looks_needed:
            return
        yield self.finding(
            event,
            f"{event.place}: a sum of squares of numbers up to {event.largest:.4g} is inf in float16, and {event.share:.0%} of "
            f"what is divided by it became 0, in all of {len(steps)} steps",
            severity="error" if event.share >= self.most else "warning",
            largest=event.largest,
            share=event.share,
        )
