"""F3."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import OptimizerBeganAnew, ScheduleBeganAnew
from flatline.findings import Finding
from flatline.rules import Rule


class OptimizerStateLeft(Rule):
    """A run is resumed from a checkpoint, and the optimizer's part of it is left in the file.

    Symptom
    -------
    After each resume the loss jumps up and needs hundreds of steps to come back; the curve of an interrupted run never
    meets that of one that was not.

    Root cause
    ----------
    Adam divides by a running mean of squared gradients, and momentum is a running mean, too. A new optimizer begins
    both at zero: its first steps are as long as those of the first steps of training, taken from weights that were
    about to settle.

    Fix
    ---
    ``optimizer.load_state_dict(checkpoint["optimizer"])`` after the optimizer is built, and the scheduler's and the
    scaler's likewise.

    Example
    -------
    ::

        checkpoint = torch.load("last.pt")
        model.load_state_dict(checkpoint["model"])
        for epoch in range(checkpoint["epoch"] + 1, epochs):

    Use instead
    -----------
    ::

        checkpoint = torch.load("last.pt")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        for epoch in range(checkpoint["epoch"] + 1, epochs):

    Healthy look-alikes
    -------------------
    Fine-tuning that starts from a checkpoint, and counts its epochs from 0; another optimizer, or other parameters, than
    the file has; a stage with a rate of its own; a state without any numbers, as of plain SGD; a file of weights and a
    count alone, unless a schedule that is made for the whole run begins again with the optimizer.

    References
    ----------
    - https://docs.pytorch.org/tutorials/recipes/recipes/saving_and_loading_a_general_checkpoint.html
    """

    code = "F3"
    severity = "warning"
    consequences = ("O28", "C1", "C3", "C6", "C9")
    cause = "the optimizer's running means begin at zero again, in the middle of training"

    counted: int = 1  # epochs or steps that the checkpoint had behind it: at 0 nothing was trained

    def on_optimizer_began_anew(self, event: OptimizerBeganAnew) -> Iterator[Finding]:
        """The count goes on where the file left it, the optimizer does not."""
        if event.count < self.counted or not event.tensors:
            return
        again = (
            f"; {event.schedule}, of {event.length:,} steps for the whole run, begins again at 0"
            if event.length
            else ""
        )
        goes_on = f"training goes on from {event.counter} = {event.count} of the checkpoint"
        yield self.finding(
            event,
            f"{goes_on}, and {event.optimizer} took its first step without the state for {event.tensors} tensors that lies "
            f"there under {event.key!r}"
            if event.key
            else f"{goes_on}, which holds {', '.join(map(repr, event.others))} and no state of {event.optimizer}: its first "
            f"step had none for {event.tensors} tensors{again}",
            fix=f"optimizer.load_state_dict(checkpoint[{event.key!r}]) after the optimizer is built"
            if event.key
            else "save optimizer.state_dict() and scheduler.state_dict() in the checkpoint, too, and load both after they are built"
            if event.schedule
            else "save optimizer.state_dict() in the checkpoint, too, and load it after the optimizer is built",
            count=event.count,
            tensors=event.tensors,
        )

    def on_schedule_began_anew(self, event: ScheduleBeganAnew) -> Iterator[Finding]:
        """The count and the optimizer go on, and the schedule of the whole run begins at 0."""
        if event.count < self.counted:
            return
        kept = "which holds the schedule's state, too" if event.saved else "which holds no state of the schedule"
        yield self.finding(
            event,
            f"training goes on from {event.counter} = {event.count} of the checkpoint, {kept}: {event.schedule}, of "
            f"{event.length:,} steps for the whole run, begins again at 0",
            cause="the rate goes through its warm-up and its peak a second time, and the run ends before it has come down",
            fix="save scheduler.state_dict() in the checkpoint, and load it after the scheduler is built",
            key="schedule",
            count=event.count,
            length=event.length,
        )
