"""D5."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import BatchesServed, BatchRepeated, ForwardObserved, OneBatchTaken
from flatline.findings import Finding
from flatline.rules import Rule


class SameBatchEveryStep(Rule):
    """Every step learns from the same batch.

    Symptom
    -------
    The training loss falls to almost 0 within some hundred steps, and accuracy on any other data stays at chance.

    Root cause
    ----------
    ``next(iter(loader))`` inside the loop makes a new iterator each time, and its first batch is always the same one
    unless the loader shuffles; noise that is added to it makes no new samples. Or the dataset ignores the index that it
    is asked for. Or a fixed slice of a tensor, ``X[:32]``, is taken in every step. Or ``x, y = next(it)`` stands before the loop.
    Or the generator is seeded in the function that draws the batch, so that
    it draws the same samples at each call. Or the sampler moves its window along in a local variable, which the next
    call does not see.

    Fix
    ---
    Iterate over the loader, use the index, move the slice along, seed once before the loop.

    Example
    -------
    ::

        for step in range(1000):
            x, y = next(iter(loader))

    Use instead
    -----------
    ::

        for x, y in loader:
            ...

    Healthy look-alikes
    -------------------
    One batch fetched once and learned by heart on purpose, which is O1: nothing is validated beside it, or the script says
    so; a subset that ``next(iter(loader))`` draws; full-batch training; a loader of a
    single batch; a shuffling loader that is restarted at every step; a batch that is kept beside fresh ones; a dummy dataset
    whose items only count steps; a split
    that is cut out anew at every step without a draw; a whole pass over an unshuffled loader for one step.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
    """

    code = "D5"
    severity = "error"
    each_training = True
    consequences = ("C4",)

    batches_needed: int = 4  # equal ones in a row
    others_needed: int = 3  # different inputs in the newest calls of a model; the same batch each time is one
    slices_needed: int = 5  # equal slices in a row, each a new view
    steps_needed: int = 100  # with the one batch that was taken before the loop; fewer try the loop out
    validations_needed: int = 2  # on other data, beside them: so the loop is no trial
    length_needed: int = 4  # batches of the loader that it was taken from
    slice_share: float = 0.25  # a slice of more than this of the tensor is rather a split of the data

    def __init__(self) -> None:
        self._restarts: list[tuple[int, int]] = []  # step, iterators made
        self._altered = 0  # of the newest batches in a row, all that was learned from
        self._inputs: dict[str, list[_Input]] = {}

    # ------------------------------------------------------------------ batches of a loader

    def on_batches_served(self, event: BatchesServed) -> Iterator[Finding]:
        """The batches of the last steps, by content and by index."""
        self._restarts = [*self._restarts[-self.batches_needed + 1 :], (event.step, event.restarts)]
        self._altered = self._altered + 1 if event.altered else 0
        prints, indices = event.fingerprints[-self.batches_needed :], event.indices[-self.batches_needed :]
        if len(prints) < self.batches_needed or len(set(prints)) > 1 or (event.loader_length or 2) < 2:
            return
        if len(set(indices)) > 1:
            if self._same_inputs():
                yield self._ignored_index(event)
        elif self._restarted() and (indices[0] != 0 or self._same_inputs()) and not self._beside_others():
            yield self._restarting(event)

    def _restarted(self) -> bool:
        """A new iterator for every step."""
        if len(self._restarts) < self.batches_needed:
            return False
        (step, restarts), (later, more) = self._restarts[0], self._restarts[-1]
        return more - restarts >= later - step > 0

    def _same_inputs(self) -> bool:
        """The first layer of some model was given the very same numbers: its whole input was measured."""
        return any(_equal(seen[-self.batches_needed :], self.batches_needed) for seen in self._inputs.values())

    def _beside_others(self) -> bool:
        """A model was given other inputs, too, at each of these steps: the same ones are kept to compare with. Noise on them
        makes no other inputs."""
        if self._altered >= self.batches_needed:
            return False
        contents = [[each.content for each in seen if each.content is not None] for seen in self._inputs.values()]
        return any(len(set(each)) >= self.others_needed for each in contents)

    def _restarting(self, event: BatchesServed) -> Finding:
        steps = self._restarts[-1][0] - self._restarts[0][0] + 1
        length = f" of {event.loader_length}" if event.loader_length else ""
        did = "built anew" if event.rebuilt else "restarted"
        return self.finding(
            event,
            f"the last {self.batches_needed} batches looked at are one and the same{length}, and the loader was "
            f"{did} {event.restarts} times in {event.step} steps",
            cause="a loader that is built for every step begins with its first batch each time, and with the same seed, or "
            "unshuffled, that batch never changes"
            if event.rebuilt
            else "next(iter(loader)) makes a new iterator each time, and unshuffled, its first batch never changes",
            fix="build the loader once, before the loop, and go through it: `for x, y in loader:`"
            if event.rebuilt
            else "write `for x, y in loader:`; or call iter(loader) once before the loop and next() in it",
            restarts=event.restarts,
            steps=steps,
            loader_length=event.loader_length,
        )

    def _ignored_index(self, event: BatchesServed) -> Finding:
        return self.finding(
            event,
            f"the last {self.batches_needed} batches looked at hold the same numbers, though the loader asked for "
            "other samples each time",
            cause="the dataset's __getitem__ returns the same item whatever index it is asked for",
            fix="use the index: `def __getitem__(self, index): return self.x[index], self.y[index]`",
            loader_length=event.loader_length,
        )

    # ------------------------------------------------------------------ slices of a tensor

    def on_forward_observed(self, event: ForwardObserved) -> Iterator[Finding]:
        """A fixed slice of a larger tensor, cut anew at every step."""
        if not event.inputs.shape or not event.training:
            return
        seen = self._inputs.setdefault(event.model, [])
        seen.append(_Input(event, self.slice_share))
        del seen[: -max(self.slices_needed, self.batches_needed)]
        last = seen[-self.slices_needed :]
        if not all(each.slice for each in last) or not _equal(last, self.slices_needed):
            return
        rows, of = event.inputs.shape[0], event.inputs.base_rows
        yield self.finding(
            event,
            f"{event.model} was given the same {rows} of {of} rows in {len(last)} steps in a row, cut anew each time",
            severity="warning",
            cause="the slice does not move with the step, so all other rows are never learned from",
            fix=f"move it along: `i = torch.randint(len(x), ({rows},))` and `x[i]`, or iterate over a DataLoader",
            rows=rows,
            of=of,
        )

    # ------------------------------------------------------------------ batches drawn by hand

    def on_batch_repeated(self, event: BatchRepeated) -> Iterator[Finding]:
        """The same numbers in new tensors, where the loop seeds a generator before it draws, or a window stands still."""
        if event.times < self.slices_needed or event.rows < 2:
            return
        if event.lost:
            yield self._standing_still(event)
        if not event.seeding:
            return
        yield self.finding(
            event,
            f"{event.model} was given the same {event.rows} samples in {event.times} steps in a row, drawn anew each time: "
            f"`{event.seeding}` comes before the draw in every step",
            severity="warning",
            where=event.statement,
            cause="a generator that is seeded again deals the same indices again, so all other samples are never learned from",
            fix="seed once, before the loop, and let the generator run on: `g = torch.Generator().manual_seed(0)` outside, "
            "`torch.randint(len(x), (n,), generator=g)` inside",
            rows=event.rows,
            seeding=event.seeding,
        )

    def _standing_still(self, event: BatchRepeated) -> Finding:
        name, by_epoch = event.lost.split()[0], "//" in event.lost
        why = (
            "is the number of whole passes so far"
            if by_epoch
            else "changes a variable of one call, and nothing reads it after that"
        )
        return self.finding(
            event,
            f"{event.model} was given the same {event.rows} samples in {event.times} steps in a row, in a new tensor each time: "
            f"`{event.lost}` {why}",
            severity="warning",
            where=event.statement,
            cause="the batch moves once in a pass: all other samples of the pass are never learned from"
            if by_epoch
            else f"the next call begins where this one did, for {name} is not kept: whatever lies beyond is never learned from",
            fix=f"`{event.lost.replace('//', '%')}`, or iterate over a DataLoader"
            if by_epoch
            else f"keep it: `self.{name} = {name}` at the end, or return it to the caller; or iterate over a DataLoader",
            rows=event.rows,
            lost=event.lost,
        )

    # ------------------------------------------------------------------ one batch, taken before the loop

    def on_one_batch_taken(self, event: OneBatchTaken) -> Iterator[Finding]:
        """A loader of many gave one, and the script validates on other data as if it had learned from all."""
        long = event.length is None or event.length >= self.length_needed
        if not long or event.step < self.steps_needed or event.validations < self.validations_needed:
            return
        of = f" of {event.length}" if event.length else ""
        yield self.finding(
            event,
            f"{event.model} was given the same {event.rows} samples at every step looked at, {event.step} steps long: the loader "
            f"gave one batch{of}, before the loop",
            severity="warning",
            cause="next() is not called again, so all other samples are never learned from",
            fix="call next() in the loop, or write `for batch in loader:`",
            rows=event.rows,
            loader_length=event.length,
        )


class _Input:
    """What a model was called with at one step, as far as it can be compared."""

    def __init__(self, event: ForwardObserved, share: float) -> None:
        facts, layer = event.inputs, event.first_layer
        self.step = event.step
        measured = None if layer is None else (layer.rms, layer.low, layer.high)
        self.content = None if measured is None else (facts.fingerprint, measured)
        self.slice = (
            bool(facts.base_rows) and facts.shape[0] <= share * (facts.base_rows or 0) and not facts.same_object
        )


def _equal(inputs: list[_Input], needed: int) -> bool:
    """Of different steps, measured, and all the same."""
    steps, contents = {each.step for each in inputs}, {each.content for each in inputs}
    return len(steps) >= needed and len(contents) == 1 and None not in contents
