"""D11."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import LoaderWaited
from flatline.findings import Finding
from flatline.rules import Rule


class LoaderStarves(Rule):
    """The loop spends much of its time waiting for batches.

    Symptom
    -------
    An epoch takes long, the GPU's use goes up and down, and a smaller model is hardly faster.

    Root cause
    ----------
    Samples are read, decoded and transformed in the training process itself, or by too few workers, while the model waits.

    Fix
    ---
    ``num_workers`` of 2 to 8, ``persistent_workers=True``, ``pin_memory=True``; do once what is done for every sample in every
    epoch.

    Example
    -------
    ::

        loader = DataLoader(images, batch_size=64)

    Use instead
    -----------
    ::

        loader = DataLoader(images, batch_size=64, num_workers=4, persistent_workers=True)

    Healthy look-alikes
    -------------------
    The first batch of a pass, for which workers have to be started; a small model, whose steps take less time than
    collecting a few rows; an accelerator that is still at work while the loop waits.

    References
    ----------
    - https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    - https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
    """

    code = "D11"
    severity = "hint"
    cause = "samples are made more slowly than the model learns from them"

    share: float = 0.4  # of the time of a step; torch's profiler points at 0.05
    seconds: float = 0.005  # for one batch: below it there is little to gain
    steps_needed: int = 5  # whose time was taken

    def on_loader_waited(self, event: LoaderWaited) -> Iterator[Finding]:
        """The wait beside the rest of the step."""
        if event.steps < self.steps_needed or event.share < self.share or event.wait < self.seconds:
            return
        more = "more workers" if event.workers else "num_workers=4, persistent_workers=True"
        yield self.finding(
            event,
            f"{event.share:.0%} of the time of a step goes by in waiting for its batch, {1000 * event.wait:.3g} ms with "
            f"{event.workers} workers, as {event.steps} steps show",
            fix=f"DataLoader(..., {more}); do once, before training, what is done for each sample in every epoch",
            share=event.share,
            wait=event.wait,
            workers=event.workers,
        )
