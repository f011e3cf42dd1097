"""O8."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import (
    Curve,
    CurvesUpdated,
    ScheduleObserved,
    SourceLoop,
    SourceMoment,
    SourceParsed,
    SourceTick,
    line_of,
)
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule
from flatline.trends import falling_is_due, main, shown, trend

SIZED = {  # by the argument that is their length, after which the rate is at its lowest
    "CosineAnnealingLR": "T_max",
    "get_linear_schedule_with_warmup": "num_training_steps",
    "get_cosine_schedule_with_warmup": "num_training_steps",
    "get_polynomial_decay_schedule_with_warmup": "num_training_steps",
}
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
    counted in those ticks: epochs if it is stepped once an epoch, optimizer steps if it is stepped after each. They are
    never samples: ``len(dataset)`` is not ``len(loader)``.

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
    ``ReduceLROnPlateau``; OneCycle and warm-up per batch; restarts; a first step skipped by the GradScaler; a LambdaLR
    whose function has no end, or that is told the step; one that is moved on to where a run was interrupted.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    code = "O8"
    severity = "warning"
    consequences = ("O7", "C10")
    micro: float = 1.5  # scheduler steps per optimizer step from which on they are per micro-batch
    collapse: float = 1e-3  # of the first rate, at the end of the first epoch: a schedule in epochs stepped per batch
    beyond: float = 1.05  # times its length: a run that goes on after that was not meant to end with the schedule
    soon: float = 0.1  # of the run, in which milestones that fit its epochs were all passed
    idle: float = 0.3  # share of the run at the floor that is too much
    batches: int = 10  # in an epoch, and epochs in a run: the fewest for which a schedule is judged by its source
    batch: int = 4  # samples of a step, from which on a length in samples is told: the rate hardly leaves its peak
    sampled: int = 20  # steps of a run that is told so; the same number of samples may be chance in shorter ones
    kept: float = 0.7  # of its peak, at the end of such a run; after a quarter a line is at 0.75, a cosine at 0.85
    some: int = 2  # steps before the last milestone, which one may want in a warm-up
    points_needed: int = 20  # of a logged rate
    floor: float = 1e-3  # of the peak: a logged rate under which nothing is learned
    grades: int = 15  # different rates on the way down; a schedule in stairs has fewer, and log lines that are rounded
    few: int = 2  # of them, if the rate ends at 0 and came there straight: half of the way in half of the time
    straight: float = 2.5  # times the time to half the peak; a line has 2, what is divided again and again has more
    nothing: float = 1e-8  # of the peak; ReduceLROnPlateau stops at 1e-8 itself
    early: float = 0.1  # of the run, in which a warm-up would matter
    leap: float = 1.5  # times the first loss, that an early spike reaches

    def on_schedule_observed(self, event: ScheduleObserved) -> Iterator[Finding]:
        """Compare the two counts, while the run goes on and at its end."""
        if event.calls_before_first_step == 1 and event.optimizer_steps and not event.skipped_steps:
            yield self._before(event)
        if event.optimizer_steps < 2 or (event.name in CYCLIC and event.calls) or event.trainer is not None:
            return  # another optimizer took over, which is O23
        found = self._per_micro_batch(event) or self._epochs_per_batch(event) or self._at_the_end(event)
        if found is not None:
            yield found

    def _cadence(self, event: SourceParsed, loop: SourceLoop) -> Iterator[Finding]:
        """A length in epochs that is stepped in the loop within, and the reverse."""
        for moments in loop.moments("schedule"):
            tick = moments[0].tick
            name, _, length = tick.horizon.partition(": ")
            inner = all(any(t.kind == "step" and t.depth > 0 for t in m.path) for m in moments)
            same = length == loop.turns or (tick.length is not None and tick.length == loop.count)
            if name in SIZED and tick.depth > 0 and same and inner:
                message = f"{name} is sized in epochs ({SIZED[name]}={length}), and stepped in the loop within them"
                fix = "step it once per epoch, or give it the number of all steps"
            elif (
                tick.depth > 0
                and inner
                and all(m.tick.always for m in moments)
                and self._over_at_once(tick, loop.count)
            ):
                message = f"{name} is sized in epochs ({length} of {loop.count:g}), and stepped in the loop within them"
                if name == "ExponentialLR":
                    message = f"{name} multiplies the rate by {tick.gamma:g} after every batch of {loop.count:g} epochs"
                fix = "step it once per epoch, or give it its sizes in batches"
            elif tick.in_batches and tick.depth == 0 and loop.turns and all(map(_steps_over_data, moments)):
                message = f"{name} is sized in batches ({length}), and stepped once per epoch"
                fix = "step it after every optimizer step"
            else:
                continue
            cause = "one of its units is not the other: the rate runs through its schedule too fast, or hardly moves"
            yield self.finding(
                event, message, cause=cause, fix=fix, where=tick.where, key=f"cadence {line_of(tick.where)}"
            )

    def _over_at_once(self, tick: SourceTick, epochs: float | None) -> bool:
        """The rate is next to nothing after epochs of a few batches, or changes for the last time in the first of them."""
        if tick.length is None or not tick.gamma or epochs is None or not tick.over_data or not 0 < tick.gamma < 1:
            return False
        if tick.horizon.startswith("MultiStepLR"):
            return self.some <= tick.length <= epochs and epochs >= self.batches
        turns = epochs * self.batches / max(tick.length, 1.0)
        return tick.length <= epochs and bool(tick.gamma**turns <= self.collapse)

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """The logged rate: at its floor long before the end, or at its peak at once while the loss leaps up."""
        rate, loss = main(event, "learning_rate"), main(event, "train_loss")
        if rate is None or len(rate.values) < self.points_needed or max(rate.values) <= 0:
            return
        if event.ended and (since := self._floor_since(rate)) is not None and not _learns_after(loss, since):
            yield self._logged_early(event, rate, since)
        if loss is not None and falling_is_due(event) and (leap := self._leaps(rate, loss)) is not None:
            yield self._no_warm_up(event, rate, loss, leap)

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """The order of two calls, a call without parentheses, and none at all."""
        for loop in event.loops:
            for moments in loop.moments("schedule"):
                if all(_ahead(m) for m in moments):
                    tick = moments[0].tick
                    yield self.finding_at(
                        event,
                        tick.where,
                        f"{tick.name}.step() comes before the optimizer's step in every turn of the loop",
                        cause="the first value of the schedule is skipped, and every later one comes a step early",
                        fix="call scheduler.step() after optimizer.step()",
                    )
            yield from self._cadence(event, loop)
        for fact in event.of("uncalled schedule"):
            message, cause = f"`{fact.text}` stands without parentheses: nothing is called", "the rate never changes"
            yield self.finding_at(event, fact.where, message, cause=cause, fix=f"write {fact.text}()")
        for fact in event.of("never stepped"):
            message, cause = f"{fact.text} is built, and never used", "without step() the rate never changes"
            yield self.finding_at(event, fact.where, message, cause=cause, fix=f"call {fact.name}.step()")

    def _floor_since(self, rate: Curve) -> float | None:
        """The step from which on the rate lies at its floor and does not move."""
        peak, last = max(rate.values), rate.values[-1]
        at = next((i for i in range(len(rate.values), 0, -1) if rate.values[i - 1] - last > 1e-6 * peak), 0)
        way = {round(value / peak, 4) for value in rate.values[:at] if last < value < peak}
        if not 0 <= last <= self.floor * peak or at >= len(rate.values) - 10:
            return None
        known = (len(way) >= self.grades and min(way) <= 0.02) or self._vanished(rate, at)
        left = (rate.steps[-1] - rate.steps[at]) / max(rate.steps[-1] - rate.steps[0], 1e-30)
        return rate.steps[at] if known and left > self.idle else None

    def _vanished(self, rate: Curve, at: int) -> bool:
        """It is 0, and neither stairs nor the rounding of a log line made it so."""
        peak, last = max(rate.values), rate.values[-1]
        top = max(i for i, value in enumerate(rate.values) if value == peak)
        seen = any(0 < value <= self.floor * peak for value in rate.values[:at])
        if last > self.nothing * peak or top >= at:
            return False
        half = next(i for i in range(top, at + 1) if rate.values[i] <= 0.5 * peak)
        came = rate.steps[at] - rate.steps[top] <= self.straight * (rate.steps[half] - rate.steps[top])
        return seen or (came and len({value for value in rate.values[top:at] if value < peak}) >= self.few)

    def _logged_early(self, event: CurvesUpdated, rate: Curve, since: float) -> Finding:
        left = (rate.steps[-1] - since) / (rate.steps[-1] - rate.steps[0])
        return self.finding(
            event,
            f"{rate.name} fell from {max(rate.values):g} to its floor of {rate.values[-1]:g} by step {shown(since)}, and stayed "
            f"there for the last {left:.0%} of the run, until step {shown(rate.steps[-1])}",
            cause="the schedule had run its course long before the run was over",
            fix="size the schedule to the run: T_max / total_steps = number of scheduler.step() calls",
            key="early",
            since=since,
            share=left,
        )

    def _leaps(self, rate: Curve, loss: Curve) -> int | None:
        """The point at which the loss stands far above its first value, while the rate has its peak from the first step on."""
        found, count = trend(loss), max(16, int(self.early * len(loss.values)))
        begin = rate.values[: max(2, int(0.05 * len(rate.values)))]
        if found is None or len(loss.values) < 4 * count or min(begin) < 0.95 * max(rate.values):
            return None
        calm = [median(loss.values[i : i + 3]) for i in range(count)]
        top = max(range(count), key=calm.__getitem__)
        high = calm[top] >= self.leap * calm[0] > 0 and calm[top] - calm[0] >= 8 * found.spread and top >= 2
        highest = max(range(top, top + 3), key=loss.values.__getitem__)
        return highest if high and found.last < calm[0] else None

    def _no_warm_up(self, event: CurvesUpdated, rate: Curve, loss: Curve, at: int) -> Finding:
        return self.finding(
            event,
            f"{rate.name} begins at its peak of {max(rate.values):g}, and {loss.name} leapt from {loss.values[0]:.4g} to "
            f"{loss.values[at]:.4g} at step {shown(loss.steps[at])} before it fell",
            severity="hint",
            cause="the first steps are too large for weights that are still random and for Adam's young averages",
            fix="warm the rate up over the first 1 to 5 % of the steps, from 0 or a hundredth of its peak",
            key="warm-up",
            first=loss.values[0],
            top=loss.values[at],
        )

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
        length, calls = event.epoch_length, event.calls - event.calls_before_first_step
        if abs(calls - event.optimizer_steps) > 1 or calls < 2:
            return None
        one_of_several = event.others_stepped and event.name != "CosineAnnealingLR"  # a warm-up, chained to a decay
        if length and length > 2 and event.horizon and event.horizon < length and not one_of_several:
            if event.calls <= self.beyond * event.horizon + self.some:
                return None  # a run of fewer steps than an epoch has may end here
            if event.name != "CosineAnnealingLR" and event.lr >= event.peak_lr:
                return None  # a warm-up is over when its rate has arrived
            return self._too_fast(
                event, f"its {event.horizon} steps are over after {event.horizon / length:.0%} of an epoch"
            )
        left = _left_after(event, length)
        if left is not None and left < self.collapse:
            whole = length and event.calls >= length
            where = "at the end of the first epoch" if whole else f"after {event.calls} steps"
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
        if self._milestones_in_epochs(event):
            passed = f"its last milestone, {event.milestone}, was passed in the first of {event.epochs + 1} epochs"
            return self._too_fast(event, passed)
        behind = event.horizon is not None and max(event.calls, event.position) * 2 < event.horizon
        if event.horizon and behind and self._spans(event.horizon, event):
            return self._too_slow(event)
        if behind and self._in_samples(event):
            return self._too_long(event)
        if event.steps_at_floor > self.idle * event.optimizer_steps and event.steps_at_floor > 10:
            return self._finished_early(event)
        return None

    def _milestones_in_epochs(self, event: ScheduleObserved) -> bool:
        """Stepped per batch, past milestones that are numbers of epochs of this run: all of them in its first one."""
        last, epochs, length = event.milestone, event.epochs + 1, event.epoch_length
        if event.name != "MultiStepLR" or not last or not length or event.lr >= event.peak_lr:
            return False
        per_batch = abs(event.calls - event.optimizer_steps) <= 1
        return per_batch and self.some < last <= epochs and last < length and last <= self.soon * event.calls

    def _spans(self, horizon: int, event: ScheduleObserved) -> bool:
        """The steps of the run, or its batches where several make a step."""
        seldom = max(event.calls, event.position) * 2 < event.optimizer_steps
        return any(0.9 < count / horizon < 1.1 for count in (event.optimizer_steps, event.backwards)) and seldom

    def _in_samples(self, event: ScheduleObserved) -> bool:
        """As long as the run has samples, and stepped with the optimizer: it came to a share of its way, and no more."""
        one_each = abs(event.calls - event.optimizer_steps) <= 1 and event.calls >= self.sampled
        steps = max(event.calls, event.position)
        short = event.horizon is not None and steps * self.batch <= event.horizon == event.samples
        return one_each and short and event.lr >= self.kept * event.peak_lr

    def _too_long(self, event: ScheduleObserved) -> Finding:
        return self.finding(
            event,
            f"{event.name} was sized for {event.horizon} steps{_spelled(event)}, exactly the number of samples of this run, and "
            f"the run was over after {event.calls}: the rate only got from {event.first_lr:g} to {event.lr:g}",
            cause="its sizes are counted in samples, but it advances once per batch: warm-up and decay take a batch size too long",
            fix="size it in batches: epochs * len(loader), not epochs * len(dataset)",
            key="samples",
            horizon=event.horizon,
            calls=event.calls,
        )

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
        batches = (
            f" in {event.backwards} batches" if event.backwards > event.optimizer_steps + event.skipped_steps else ""
        )
        return self.finding(
            event,
            f"{event.name} was sized for {event.horizon} steps{_spelled(event)} and made {event.calls}, while the optimizer made "
            f"{event.optimizer_steps}{batches}: the rate only got from {event.first_lr:g} to {event.lr:g}",
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


def _spelled(event: ScheduleObserved) -> str:
    return f" ({event.spelled} of its function)" if event.spelled else ""


def _learns_after(loss: Curve | None, since: float) -> bool:
    """The loss goes on falling: the logged rate is not that of what is trained."""
    found = trend(loss)
    return found is not None and since < found.steps[-1] and found.falls(found.at(since) + 1, z=3.0)


def _left_after(event: ScheduleObserved, length: int | None) -> float | None:
    """Share of the first rate that is left at the end of the first epoch, or now, if the run is not there yet."""
    if event.gamma is not None and event.period and 0 < event.gamma < 1:
        ticks = min(length, event.calls) if length and length > 2 else event.calls
        power = ticks // event.period
        return float(event.gamma**power) if power >= 3 else None
    return None


def _ahead(moment: SourceMoment) -> bool:
    """The schedule moves first in the turn, under no condition."""
    before, after = moment.last("step", turn=False), moment.next("step", turn=False)
    ahead = moment.repeats and moment.tick.always and moment.tick.known
    return ahead and before is None and after is not None and after.kind == "step"


def _steps_over_data(moment: SourceMoment) -> bool:
    """The optimizer steps in a loop over batches within this one, and nowhere else."""
    steps = [t for t in moment.path if t.kind == "step"]
    return bool(steps) and all(t.depth > 0 and t.over_data for t in steps)
