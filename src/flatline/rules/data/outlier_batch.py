"""D8."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import BatchStoodOut, MissingFed, MissingTaught
from flatline.findings import Finding
from flatline.rules import Rule


class OutlierBatch(Rule):
    """One batch holds numbers orders of magnitude off all others.

    Symptom
    -------
    The loss falls smoothly, jumps by orders of magnitude in a single step, and needs many steps to come back, or never
    does; or the loss is nan from the first steps on. With a loader that does not shuffle it happens at the same batch of
    every epoch.

    Root cause
    ----------
    Some rows were stored in another unit, a sensor's error code was taken for a value, a division by almost 0 went into a
    feature. A few such rows make a gradient large enough to throw the weights. Or a code such as -999, which stands for
    a missing number, is among the targets of a squared error, and all that the model learns is how often. Among the
    inputs it makes the mean and the deviation that its column is scaled by, and what was measured is squeezed to nothing.

    Fix
    ---
    Find the rows and correct or drop them; clip features to a range that can be, and gradients by norm.

    Example
    -------
    ::

        x = torch.tensor(table.values)              # -99999 stands for "missing"

    Use instead
    -----------
    ::

        x = torch.tensor(table.replace(-99999, 0).values).clamp(-10, 10)

    Healthy look-alikes
    -------------------
    Heavy-tailed data, whose batches all differ in their largest number; a loss that jumps over an ordinary batch, from
    a wrong label or a high learning rate; a new stage of a curriculum, whose batches all are larger; data that were never
    normalised, which is D3; a code that a mask leaves out of the loss; one
    that is replaced before the column is scaled; flags, counts and codes that most rows hold; values cut off at a limit.

    References
    ----------
    - Chowdhery et al., PaLM: Scaling Language Modeling with Pathways, 2022, section 5.1
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    """

    code = "D8"
    severity = "warning"
    each_training = True
    cause = "rows in another unit, an error code taken for a value, or a division by almost 0: their gradient throws the weights"
    consequences = ("D3", "N1", "N2", "G1", "G8", "O28", "O22", "O25", "W1", "C1", "C3", "C6", "C11")

    loss_grown: float = 10.0  # over the median of the losses before, as in G1
    loss_moved: float = 4.0  # the same, where the numbers alone are beyond doubt
    times: float = 50.0  # the largest number of all batches before; of normal numbers the largest grow by a half
    times_alone: float = 3.0  # the same, where more batches were looked at and none was off; normal numbers need 6 then
    even: float = 2.5  # and those were much alike: largest over smallest; 1.5 for normal numbers, 4 for heavy tails
    batches_around: int = 8  # looked at before, for that
    later_around: int = 3  # and after it
    batches_needed: int = 5  # looked at before
    later_needed: int = 1  # and after it, as large as those before: the data did not change for good

    def on_batch_stood_out(self, event: BatchStoodOut) -> Iterator[Finding]:
        """A batch that stands alone, beyond what the batches' own spread explains."""
        spread = event.usual / event.least if event.least > 0 else float("inf")
        alone = event.batches >= self.batches_needed and event.later >= self.later_needed
        alone = alone or (event.lost and event.batches + event.later >= self.batches_needed + self.later_needed)
        grown = self.loss_grown if event.largest < self.times * spread**2 * event.usual else self.loss_moved
        jumped = event.usual_loss > 0 and event.loss >= grown * event.usual_loss
        around = event.batches >= self.batches_around and event.later >= self.later_around
        around = (
            around and spread <= self.even and not event.alike and event.what == "inputs"
        )  # rewards are rare and large by nature
        times = self.times_alone if around else self.times
        if not alone or not jumped or event.largest < times * spread**2 * event.usual:
            return
        rows = _rows(event)
        more = f"; {event.alike} {'more' if event.lost else 'earlier ones'} were as far off" if event.alike else ""
        yield self.finding(
            event,
            f"{_place(event)}holds {event.what} of up to {event.largest:.3g}, where the {event.batches + event.later} other "
            f"batches looked at end at {event.usual:.3g}{f'; {rows}' if rows else ''}{more}; at this step the loss jumped from "
            f"{event.usual_loss:.3g} to {event.loss:.3g}{', and soon after it none was finite' if event.lost else ''}",
            severity="error" if event.lost else "warning",
            fix=f"look at {rows or 'this batch'} and correct or drop what is wrong; clamp the {event.what} to a range that "
            "can be, and clip: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            largest=event.largest,
            usual=event.usual,
            rows=event.off,
            loss=event.loss,
            usual_loss=event.usual_loss,
            loss_after=event.loss_after,
        )

    def on_missing_taught(self, event: MissingTaught) -> Iterator[Finding]:
        """A code for what is missing, as a target."""
        yield self.finding(
            event,
            f"{event.code:.6g} stood {event.times} times among the targets of {event.kind} that were looked at, where all others "
            f"lie between {event.low:.3g} and {event.high:.3g}; the loss was {event.loss:.3g} with it",
            cause="such a number is written where one is missing; the loss takes it for a target, and its square outweighs all "
            "others",
            fix=f"leave these rows out: keep = targets != {event.code:.6g}, and the loss of outputs[keep] and targets[keep]",
            key="code",
            code=event.code,
            times=event.times,
        )

    def on_missing_fed(self, event: MissingFed) -> Iterator[Finding]:
        """The same, in what the first layer is given."""
        several = len(event.columns) > 1
        columns = f"columns {', '.join(map(str, event.columns))}" if several else f"column {event.columns[0]}"
        yield self.finding(
            event,
            f"{event.code:.6g} stands for what is missing in {columns} of the inputs: in column {event.columns[0]}, "
            f"{event.share:.1%} of the numbers are {event.value:.4g} and all others lie between {event.low:.4g} and "
            f"{event.high:.4g}",
            cause="the code was taken for a value, and makes the mean and the deviation of its column: next to it all that "
            "was measured is one number",
            fix=f"replace {event.code:.6g} by nan when the table is read, scale with nanmean and nanstd, and fill with 0 "
            "after that",
            key="fed",
            code=event.code,
            columns=len(event.columns),
            share=event.share,
        )


def _place(event: BatchStoodOut) -> str:
    position = f" ({event.place[0]} of {event.place[1]} of its pass)" if event.place else ""
    return f"the batch of step {event.step}{position} "


def _rows(event: BatchStoodOut) -> str:
    """The rows that are off, if not all of them are."""
    if not 0 < event.off < event.of:
        return ""
    named = ", ".join(str(row) for row in event.rows)
    more = f" and {event.off - len(event.rows)} more" if event.off > len(event.rows) else ""
    return f"row{'s' if event.off > 1 else ''} {named}{more} of {event.of}"
