"""FP4."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import PrecisionObserved
from flatline.findings import Finding
from flatline.rules import Rule


class PrecisionLeftUnused(Rule):
    """The device computes faster, or more safely, in a precision that the script does not use.

    Symptom
    -------
    A step takes several times as long as others report for the same model and GPU; or training in float16 needs a
    loss scale and skips steps.

    Root cause
    ----------
    Since Ampere, GPUs multiply matrices in TF32 and bfloat16 on tensor cores. torch uses neither unless it is asked
    to. bfloat16 has the range of float32, so that gradients do not underflow and no GradScaler is needed.

    Fix
    ---
    ``torch.set_float32_matmul_precision("high")`` at the top of the script; for training in half precision
    ``torch.autocast("cuda", dtype=torch.bfloat16)``.

    Example
    -------
    ::

        model = Net().cuda()
        train(model)

    Use instead
    -----------
    ::

        torch.set_float32_matmul_precision("high")
        model = Net().cuda()
        train(model)

    Healthy look-alikes
    -------------------
    A CPU, an older GPU, float64, TF32 or bfloat16 in use already.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html
    - https://docs.pytorch.org/docs/stable/amp.html
    """

    code = "FP4"
    severity = "hint"

    ampere: int = 8  # major compute capability of the first GPUs with TF32 and bfloat16

    def on_precision_observed(self, event: PrecisionObserved) -> Iterator[Finding]:
        """float32 without TF32, or float16, on a GPU that has better."""
        if event.device != "cuda" or event.capability < self.ampere:
            return
        if event.dtype == "float32" and event.parameters == "float32" and not event.tf32:
            yield self.finding(
                event,
                "float32 matrices are multiplied without tensor cores",
                cause="TF32 is off, and no autocast is on",
                fix='torch.set_float32_matmul_precision("high"), or torch.autocast("cuda", dtype=torch.bfloat16)',
                key="tf32",
            )
        elif event.dtype == "float16" and event.scaled:
            yield self.finding(
                event,
                "float16 with a loss scale on a GPU that has bfloat16",
                cause="float16 needs a loss scale and may skip steps; bfloat16 has the range of float32",
                fix='torch.autocast("cuda", dtype=torch.bfloat16), without GradScaler',
                key="bfloat16",
            )
