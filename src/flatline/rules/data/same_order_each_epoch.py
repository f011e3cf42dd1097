"""D6."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import OrderDealtAgain, PassEnded
from flatline.findings import Finding
from flatline.rules import Rule


class SameOrderEachEpoch(Rule):
    """Every epoch takes the samples in one and the same order.

    Symptom
    -------
    None at first. The loss swings with the period of an epoch, and ends a little higher than it could.

    Root cause
    ----------
    Without ``shuffle=True`` the same samples meet in the same batches for ever, so that the noise of the gradient does not
    average out over epochs. Where the loader does shuffle, a generator that is seeded again before each epoch
    deals the same cards again, and dropout and augmentation repeat with them.

    Fix
    ---
    ``shuffle=True``, and seed once, before the first epoch.

    Example
    -------
    ::

        for epoch in range(50):
            torch.manual_seed(0)
            for x, y in loader:
                ...

    Use instead
    -----------
    ::

        torch.manual_seed(0)
        for epoch in range(50):
            for x, y in loader:
                ...

    Healthy look-alikes
    -------------------
    A loader of one or two batches; several models compared on the same order; a series that is read in the order of time; a
    sampler that groups by length. Batches by hand in one order that nothing draws, or drawn with the epoch's own seed.

    References
    ----------
    - Shalev-Shwartz and Ben-David, Understanding Machine Learning, chapter 14, 2014
    - https://docs.pytorch.org/docs/stable/notes/randomness.html
    """

    code = "D6"
    severity = "hint"
    cause = "the loader does not shuffle, so that the same samples meet in the same batches in every epoch"
    fix = "DataLoader(..., shuffle=True); leave it as it is when the order carries meaning"

    passes_needed: int = 2  # the second equal one is no accident for three batches and more
    shuffled_passes_needed: int = 3  # one repetition may be a new run on the same loader
    batches_needed: int = 3  # fewer hardly have an order

    def on_pass_ended(self, event: PassEnded) -> Iterator[Finding]:
        """The order of this pass against that of those before it."""
        if event.batches < self.batches_needed or event.new_optimizers:
            return
        if event.sequential and event.same_order >= self.passes_needed:
            yield self.finding(
                event,
                f"{event.same_order} epochs took their {event.batches} batches in the order of the data set",
                key="sequential",
                epochs=event.same_order,
                batches=event.batches,
            )
        elif event.sampler == "RandomSampler" and event.same_order >= self.shuffled_passes_needed:
            yield self._seeded_again(event)

    def on_order_dealt_again(self, event: OrderDealtAgain) -> Iterator[Finding]:
        """The order of batches that are made by hand."""
        yield self.finding(
            event,
            f"{event.model} was given the same batches again, bit for bit, each time a multiple of {event.period} steps later "
            f"({event.returns} looks); `{event.seeding}` seeds the generator before the order of a pass is drawn",
            severity="warning",
            cause="each pass begins from the same seed: the same order, the same augmentation and the same noise as the one before",
            fix="make the generator once, before the first epoch; or seed it with the epoch: seed + epoch",
            key="dealt",
            returns=event.returns,
            period=event.period,
        )

    def _seeded_again(self, event: PassEnded) -> Finding:
        return self.finding(
            event,
            f"the loader shuffles, yet {event.same_order} epochs in a row took the same samples in the same order, "
            f"all {event.batches} batches of them",
            severity="warning",
            cause="the generator that shuffles is seeded again before each epoch, so that it deals the same order again; "
            "whatever else draws from it repeats, too",
            fix="seed once, before the first epoch; or pass generator=torch.Generator().manual_seed(seed) to the DataLoader",
            key="seeded",
            epochs=event.same_order,
            batches=event.batches,
        )
