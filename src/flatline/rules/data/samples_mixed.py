"""D12."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import DimensionsMixed, SamplesProbed
from flatline.findings import Finding
from flatline.rules import Rule


class SamplesMixed(Rule):
    """The samples of a batch run into each other inside the model.

    Symptom
    -------
    The model learns slowly or not at all. Its output for a sample depends on which others happen to stand in the batch,
    and in what order; with a batch of one it is another model.

    Root cause
    ----------
    A layer takes the dimension of the samples for time (torch's recurrent and attention layers do, unless they are built
    with ``batch_first=True``), or a ``view`` or ``reshape`` stands where a ``transpose`` is needed.

    Fix
    ---
    Build the layer with ``batch_first=True``, or transpose before it and after it. Swap dimensions with ``transpose`` or
    ``permute``; ``view`` only cuts the numbers anew, in the order in which they lie.

    Example
    -------
    ::

        nn.LSTM(64, 128)(batch)

    Use instead
    -----------
    ::

        nn.LSTM(64, 128, batch_first=True)(batch)

    Healthy look-alikes
    -------------------
    BatchNorm, which is in eval mode here. Graphs, sets and memory banks look at other samples on purpose: without regard
    to their order, so only an output that changes with the order is told, or a layer of torch's that reads samples as time.
    The first dimension may be time, space or one long stream: it is told only where the script itself drew so many
    samples in no order, or where the labels are the next elements along the other dimension.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html
    - Karpathy, A Recipe for Training Neural Networks, 2019, https://karpathy.github.io/2019/04/25/recipe/
    """

    code = "D12"
    severity = "error"
    consequences = ("O1", "C2", "C3", "C5")

    least: float = 1e-3  # standard deviations of the output: above rounding in half precision

    def on_samples_probed(self, event: SamplesProbed) -> Iterator[Finding]:
        """A sample changed with the others, in a way that no model of sets would show."""
        spread = event.spread
        if spread.effect <= self.least or not (event.proven and event.own_target):
            return
        if not (event.reads_as_time or event.order_matters):
            return
        yield self.finding(
            event,
            f"with the other samples of its batch exchanged, the output of a sample changes by up to {spread.effect:.2g} "
            "standard deviations, in eval mode",
            cause=f"{spread.place} {self._why(event)}",
            fix="batch_first=True in that layer, or transpose(0, 1) before and after it"
            if event.reads_as_time
            else "swap dimensions with transpose or permute: view and reshape cut the numbers anew, across samples",
            layer=spread.layer,
            effect=spread.effect,
        )

    def on_dimensions_mixed(self, event: DimensionsMixed) -> Iterator[Finding]:
        """A view in the source of a forward, where the dimensions have to be swapped."""
        yield self.finding(
            event,
            f"`{event.statement}` in the forward of {event.module} takes a tensor of ({event.order}): its numbers are cut anew in "
            "the order in which they lie, so that each new row holds parts of several samples",
            cause="view and reshape swap no dimensions: they only name other sizes for the same row of numbers",
            fix="permute or transpose first, then join: x.permute(…).reshape(…)",
            key="view",
            module=event.module,
        )

    def _why(self, event: SamplesProbed) -> str:
        shape = " × ".join(map(str, event.spread.shape))
        if event.reads_as_time:
            return f"takes the first dimension of its input ({shape}) for time, and there are the samples"
        return "is the first to mix samples, and their order in the batch decides what comes out"
