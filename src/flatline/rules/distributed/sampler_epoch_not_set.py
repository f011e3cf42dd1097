"""P1."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import SourceParsed, beside
from flatline.findings import Finding
from flatline.rules import Rule


class SamplerEpochNotSet(Rule):
    """A DistributedSampler is never told which epoch it is, and deals out the same order in every one.

    Symptom
    -------
    Nothing that one sees at once. Distributed training generalises a little worse than on one device, and the loss
    curve repeats its small bumps from epoch to epoch.

    Root cause
    ----------
    ``DistributedSampler`` shuffles with the seed ``seed + epoch``, so that all ranks agree on the order. ``epoch`` is 0
    until ``set_epoch`` is called: every epoch has the same batches, and each rank sees the same share of the data.

    Fix
    ---
    Call ``sampler.set_epoch(epoch)`` at the beginning of every epoch, before the loader is iterated.

    Example
    -------
    ::

        for epoch in range(epochs):
            for x, y in loader:
                ...

    Use instead
    -----------
    ::

        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                ...

    Healthy look-alikes
    -------------------
    ``shuffle=False``, as for validation; one epoch; frameworks that call ``set_epoch`` themselves.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    code = "P1"
    severity = "warning"
    cause = "the sampler shuffles by its epoch, which stays 0 until set_epoch is called"
    fix = "call sampler.set_epoch(epoch) at the beginning of every epoch"

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """Epochs over such a loader, and set_epoch in none of the files."""
        for fact in event.of("no set_epoch"):
            name = fact.name or "sampler"
            yield self.finding_at(
                event,
                fact.where,
                f"every turn of this loop goes through the data in the same order: set_epoch is never called on "
                f"{fact.text}{beside(fact.other, fact.where)}",
                fix=f"call {name}.set_epoch with the number of the epoch first thing in the loop",
            )
