"""O8."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import ScheduleObserved
from flatline.findings import Finding
from flatline.rules import Rule

CYCLIC = ("CosineAnnealingWarmRestarts", "CyclicLR", "ReduceLROnPlateau", "ConstantLR", "SWALR")


class SchedulerOutOfStep(Rule):
    """The learning-rate schedule advances at another pace than it was built for.

    Symptom
    -------
    "lr_scheduler.step() before optimizer.step()"; a learning rate that is practically zero after one epoch, that
    goes up and down without reason, or that never leaves its first value.

    Root cause
    ----------
    A scheduler moves one tick at every ``step()``. Its sizes (``T_max``, ``step_size``, ``total_steps``) are
    counted in those ticks: epochs if it is stepped once an epoch, optimizer steps if it is stepped after each.

    Fix
    ---
    ``optimizer.step()`` first, then ``scheduler.step()``, in the unit that its sizes were counted in; with gradient
    accumulation only where the optimizer steps.

    Example
    -------
    ::

        scheduler = StepLR(optimizer, step_size=30)   # epochs
        for x, y in loader:
            …
            scheduler.step()                          # every batch

    Use instead
    -----------
    ::

        for epoch in range(epochs):
            for x, y in loader:
                …
            scheduler.step()

    Healthy look-alikes
    -------------------
    ``ReduceLROnPlateau``; OneCycle and warm-up per batch; restarts; a first step skipped by the GradScaler.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    code = "O8"
    severity = "warning"
    consequences = ("O7",)
    micro: float = 1.5  # scheduler steps per optimizer step from which on they are per micro-batch
    collapse: float = 1e-3  # of the first rate, at the end of the first epoch: a schedule in epochs stepped per batch
    idle: float = 0.3  # share of the run at the floor that is too much

    def on_schedule_observed(self, event: ScheduleObserved) -> Iterator[Finding]:
        """Compare the two counts, while the run goes on and at its end."""
        if event.calls_before_first_step and event.optimizer_steps and not event.skipped_steps:
            yield self._before(event)
        if event.optimizer_steps < 2 or (event.name in CYCLIC and event.calls):
            return
        found = self._per_micro_batch(event) or self._epochs_per_batch(event) or self._at_the_end(event)
        if found is not None:
            yield found

    def _before(self, event: ScheduleObserved) -> Finding:
        return self.finding(
            event,
            f"{event.name}.step() ran {event.calls_before_first_step} × before the first optimizer.step()",
            cause="the first value of the schedule is skipped, and every later one comes one step early",
            fix="call optimizer.step() first, then scheduler.step()",
            key="order",
            before=event.calls_before_first_step,
        )

    def _per_micro_batch(self, event: ScheduleObserved) -> Finding | None:
        steps = event.optimizer_steps + event.skipped_steps
        if steps < 3:
            return None
        pace, accumulated = event.calls / steps, event.backwards / steps
        if pace < self.micro or accumulated < self.micro or abs(pace - accumulated) > 0.25 * accumulated:
            return None
        return self.finding(
            event,
            f"{event.name} steps {pace:.0f} × for every optimizer step: once per micro-batch",
            cause=f"with {accumulated:.0f} backwards per step the schedule runs {pace:.0f} times too fast",
            fix="call scheduler.step() only where optimizer.step() is called",
            key="pace",
            per_step=pace,
        )

    def _epochs_per_batch(self, event: ScheduleObserved) -> Finding | None:
        length = event.epoch_length
        if abs(event.calls - event.optimizer_steps) > 1 or event.calls < 2:
            return None
        one_of_several = event.others_stepped and event.name != "CosineAnnealingLR"  # a warm-up, chained to a decay
        if length and length > 2 and event.horizon and event.horizon < length and not one_of_several:
            if event.name != "CosineAnnealingLR" and (event.calls <= event.horizon or event.lr >= event.peak_lr):
                return None  # a warm-up is over when its rate has arrived
            return self._too_fast(
                event, f"its {event.horizon} steps are over after {event.horizon / length:.0%} of an epoch"
            )
        left = _left_after(event, length)
        if left is not None and left < self.collapse:
            where = "at the end of the first epoch" if length else f"after {event.calls} steps"
            return self._too_fast(event, f"the rate is {left:.1g} of its first value {where}")
        return None

    def _too_fast(self, event: ScheduleObserved, what: str) -> Finding:
        length = f" of {event.epoch_length} batches" if event.epoch_length else ""
        return self.finding(
            event,
            f"{event.name} steps after every batch, and {what}",
            cause=f"its sizes are counted in epochs{length}, but it advances once per batch",
            fix="move scheduler.step() out of the batch loop, or size the schedule in optimizer steps",
            key="epochs",
            horizon=event.horizon,
            period=event.period,
            gamma=event.gamma,
            epoch_length=event.epoch_length,
        )

    def _at_the_end(self, event: ScheduleObserved) -> Finding | None:
        if event.ended not in ("finished",) or event.others_stepped:
            return None
        if not event.calls:
            due = event.epochs >= 1 or event.epoch_length is None
            by_hand = abs(event.lr - event.first_lr) > 1e-6 * event.first_lr
            return self._never(event) if due and not by_hand and event.name != "SWALR" else None
        if event.horizon and event.calls * 2 < event.horizon and 0.9 < event.optimizer_steps / event.horizon < 1.1:
            return self._too_slow(event)
        if event.steps_at_floor > self.idle * event.optimizer_steps and event.steps_at_floor > 10:
            return self._finished_early(event)
        return None

    def _never(self, event: ScheduleObserved) -> Finding:
        return self.finding(
            event,
            f"{event.name} was built and never stepped in {event.optimizer_steps} optimizer steps: "
            f"the rate stayed at {event.lr:g}",
            cause="only scheduler.step() moves the schedule",
            fix="call scheduler.step() after optimizer.step()",
            where=event.built_where,
            key="never",
        )

    def _too_slow(self, event: ScheduleObserved) -> Finding:
        return self.finding(
            event,
            f"{event.name} was sized for {event.horizon} steps and made {event.calls}, while the optimizer made "
            f"{event.optimizer_steps}: the rate only got from {event.peak_lr:g} to {event.lr:g}",
            cause="its sizes are counted in optimizer steps, but it advances once per epoch",
            fix="call scheduler.step() after every optimizer.step(), or size it in epochs",
            key="slow",
            horizon=event.horizon,
            calls=event.calls,
        )

    def _finished_early(self, event: ScheduleObserved) -> Finding:
        share = event.steps_at_floor / event.optimizer_steps
        return self.finding(
            event,
            f"the rate was under a thousandth of its peak {event.peak_lr:g} for the last {event.steps_at_floor} of "
            f"{event.optimizer_steps} steps ({share:.0%})",
            cause=f"{event.name} had run its course long before the run was over",
            fix="size the schedule to the run: T_max / total_steps = number of scheduler.step() calls",
            key="early",
            horizon=event.horizon,
            steps_at_floor=event.steps_at_floor,
        )


def _left_after(event: ScheduleObserved, length: int | None) -> float | None:
    """Share of the first rate that is left at the end of the first epoch, or now."""
    if event.gamma is not None and event.period and 0 < event.gamma < 1:
        ticks = length if length and length > 2 else event.calls
        power = ticks // event.period
        return float(event.gamma**power) if power >= 3 else None
    return None
