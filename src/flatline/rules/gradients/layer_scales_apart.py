"""G10."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import NumbersSampled
from flatline.findings import Finding
from flatline.rules import Rule


class LayerScalesApart(Rule):
    """Gradients of different layers lie orders of magnitude apart under plain SGD.

    Symptom
    -------
    Some layers learn, others seem frozen; no single learning rate fits all of them.

    Root cause
    ----------
    Plain SGD multiplies every gradient by the same rate. Layers whose gradients differ a thousandfold then move at speeds that
    differ a thousandfold.

    Fix
    ---
    Use AdamW, or parameter groups with their own rates; better, a matching initialisation and normalisation layers.

    Example
    -------
    ::

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    Use instead
    -----------
    ::

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    Healthy look-alikes
    -------------------
    Most networks without normalisation, somewhat: it is a hint, and never more. Frozen layers and embeddings of
    which few rows are used do not count.

    References
    ----------
    - https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    code = "G10"
    severity = "hint"
    each_training = True
    trial_dependent = True
    cause = "one rate serves gradients that lie orders of magnitude apart"
    fix = "use AdamW, or parameter groups with their own lr; add normalisation layers or match the initialisation"

    apart: float = 1e4  # largest over smallest; 95 % of healthy scripts stay under 300
    samples_needed: int = 10  # in a row

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """The gradients of all weight matrices of one optimizer."""
        layers = [
            each for each in event.layers if each.matrix and each.gradient_rms > 0 and "Embedding" not in each.kind
        ]
        if len(layers) < 2 or event.optimizer.adaptive or event.optimizer.by_hand:
            return
        low, high = min(layers, key=lambda each: each.gradient_rms), max(layers, key=lambda each: each.gradient_rms)
        key, ratio = event.optimizer.key, high.gradient_rms / low.gradient_rms
        self._seen[key] = self._seen.get(key, 0) + 1 if ratio >= self.apart else 0
        if self._seen[key] >= self.samples_needed:
            yield self.finding(
                event,
                f"gradients lie {ratio:.1e}-fold apart: rms {high.gradient_rms:.2g} at {high.name or 'one layer'}, "
                f"{low.gradient_rms:.2g} at {low.name or 'another'}",
                ratio=ratio,
                largest=high.name,
                smallest=low.name,
            )
