"""O23."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flatline.events import (
    Curve,
    CurvesUpdated,
    RateLost,
    RateMisplaced,
    RateRead,
    RateRestored,
    ScheduleObserved,
    SourceParsed,
)
from flatline.findings import Finding
from flatline.rules import Rule
from flatline.trends import curves


class LoggedRateIsNotTheRate(Rule):
    """The learning rate that is read or scheduled is not the one that trains.

    Symptom
    -------
    The learning-rate curve in the log does not match the schedule, or shows a warm-up and a decay of which the loss
    knows nothing; "To get the last learning rate computed by the scheduler, please use get_last_lr()".

    Root cause
    ----------
    ``get_lr()`` computes the next value of a chained schedule from the present one. Outside of ``step()`` it applies
    a factor that was applied already. And a scheduler writes into the groups of the optimizer that it was given: if
    another optimizer was built since then, over the same parameters or those of a copy of the model, the schedule moves
    rates that nobody reads. Or the number that is logged is the one of the configuration, which no schedule changes. Or
    the loop writes the rate to ``optimizer.lr`` or ``group["learning_rate"]``, and the optimizer reads ``group["lr"]``;
    or to a copy of a group, as ``dict(group, lr=lr)`` and ``state_dict()`` give one. Or ``load_state_dict`` brought
    back the rate at which the schedule of another run had ended, and no schedule follows. Or the function of a LambdaLR
    returns a rate where a factor is asked for, which is multiplied with the rate of the optimizer.

    Fix
    ---
    Log ``scheduler.get_last_lr()`` or ``optimizer.param_groups[0]["lr"]``. Build the scheduler after the optimizer
    that steps, and anew whenever that one is rebuilt.

    Example
    -------
    ::

        scheduler = CosineAnnealingLR(optimizer, epochs)
        optimizer = AdamW(model.parameters(), lr=1e-3)   # the scheduler still holds the old one
        log(scheduler.get_lr())

    Use instead
    -----------
    ::

        optimizer = AdamW(model.parameters(), lr=1e-3)
        scheduler = CosineAnnealingLR(optimizer, epochs)
        log(scheduler.get_last_lr())

    Healthy look-alikes
    -------------------
    ``get_lr()`` of a schedule in closed form (LambdaLR, OneCycleLR), which returns the rate in use; a value that the
    script writes into the groups itself; a setting that is told once, or kept in a checkpoint; wrappers of optimizers
    that share the groups of the one inside; constant schedules and ReduceLROnPlateau; keys and attributes of an optimizer
    of the user's own; a LambdaLR whose lr is 1.0, or whose factor is small by design; a run that goes on with its schedule,
    or at the rate to which it was lowered.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    code = "O23"
    severity = "warning"
    apart: float = 0.01  # relative distance of the two rates: a curve in a log shows no less
    calls_needed: int = 3  # of the schedule, before what is told beside it counts
    certain_after: int = 2  # wrong values that were read: one may be a look ahead
    small: float = 0.03  # a lr up to which nobody means to multiply it with itself; SGD may begin at a tenth of 0.1
    equal: float = 1e-4  # relative distance of the highest rate to that square; a cosine of 200 steps comes so near
    moved: float = 0.01  # relative change of the scheduled rate: less is a constant schedule

    points_needed: int = 20  # of a logged rate; fewer may be a warm-up of both
    floor: float = 1e-3  # of the rate that the optimizer was built with: the weights practically stand still
    low: float = 0.01  # the same, where the file is of a training with another rate: fine-tuning has 0.1 to 0.01
    stage: int = 50  # steps of such a training
    echoed: float = 10.0  # factor between the two, where a setting is told once: settings are told at each beginning
    swing: float = 0.1  # relative change of a logged rate: it follows a schedule

    def __init__(self) -> None:
        self._reads = 0

    def on_rate_read(self, event: RateRead) -> Iterator[Finding]:
        """``get_lr()`` returned what no optimizer uses."""
        if _distance(event.value, event.rate) < self.apart:
            return
        self._reads += 1
        if self._reads < self.certain_after:
            return
        yield self.finding(
            event,
            f"get_lr() of {event.name} returned {event.value:.3g} while the optimizer's rate is {event.rate:.3g}",
            cause="outside of step(), get_lr() applies the next factor of the schedule to a rate that has it already",
            fix='read scheduler.get_last_lr(), or optimizer.param_groups[0]["lr"]',
            key="read",
            returned=event.value,
            rate=event.rate,
        )

    def on_schedule_observed(self, event: ScheduleObserved) -> Iterator[Finding]:
        """A schedule of an optimizer that does not train; or one beside which the loop tells a constant as its rate."""
        trainer = event.trainer
        if trainer is None and self._is_squared(event):
            yield self._squared(event)
        elif trainer is None and event.told:
            yield from self._constant_told(event)
        if trainer is None or event.calls < 2 or _distance(event.lr, event.first_lr) < self.moved:
            return
        if _distance(event.lr, event.trainer_lr) < self.apart:
            return
        yield self.finding(
            event,
            f"{event.name} made {event.calls} steps and took the rate from {event.first_lr:.3g} to {event.lr:.3g}, in an "
            f"optimizer that {'is no longer stepped' if event.optimizer_steps else 'never stepped'}; the {trainer.name} "
            f"that trains {'a model of the same shapes' if event.copied else 'its parameters'} is at {event.trainer_lr:.3g}",
            cause="the scheduler was built for another optimizer than the one whose step() is called",
            fix="build the scheduler after the optimizer that trains, and from it",
            where=event.built_where,
            key="orphan",
            scheduled=event.lr,
            rate=event.trainer_lr,
            steps=trainer.steps,
        )

    def _is_squared(self, event: ScheduleObserved) -> bool:
        """The highest result of a LambdaLR's function is the rate that it is multiplied with, to the last digit."""
        base, highest = event.base_lr, event.highest_lr
        if base is None or not 0 < base <= self.small or event.others_stepped or event.calls < self.calls_needed:
            return False
        resumed = event.position > event.calls + 1  # at a step of its decay
        over = bool(event.ended) or event.lr < (1 - self.swing) * highest
        varied = min(event.first_lr, event.lr) < (1 - self.swing) * highest
        return over and varied and not resumed and _distance(highest, base * base) < self.equal

    def _squared(self, event: ScheduleObserved) -> Finding:
        found = self.finding(
            event,
            f"the function of {event.name} returns at most {event.highest_lr / (event.base_lr or 1.0):.3g}, the very lr that its "
            f"optimizer was built with, and the two are multiplied: the rate never exceeded {event.highest_lr:.3g}",
            cause="a LambdaLR takes a factor for the lr of the group, and its function returns a rate",
            fix="divide what the function returns by that lr, or build the optimizer with lr=1.0",
            where=event.built_where,
            key="squared",
            built=event.base_lr,
            rate=event.highest_lr,
        )
        return replace(found, consequences=(*self.consequences, "O7"))

    def _constant_told(self, event: ScheduleObserved) -> Iterator[Finding]:
        apart = max(_distance(event.first_lr, event.lr), _distance(event.first_lr, event.peak_lr))
        if event.calls < self.calls_needed or apart < self.swing:
            return
        yield self.finding(
            event,
            f"the loop tells {event.told} as its learning rate, a constant, while {event.name} took the rate from "
            f"{event.first_lr:.3g} to {event.lr:.3g} in {event.calls} steps{_peak(event)}",
            cause="what the optimizer was built with is logged, not what it uses",
            fix='log optimizer.param_groups[0]["lr"] or scheduler.get_last_lr()[0]',
            where=event.told_where,
            key="told",
            first=event.first_lr,
            rate=event.lr,
        )

    def on_rate_misplaced(self, event: RateMisplaced) -> Iterator[Finding]:
        """The schedule goes where nothing reads it."""
        moved = max(_distance(each, event.highest) for each in (event.first, event.value))
        if event.looks < self.calls_needed or moved < self.moved:
            return
        name, turned = event.optimizer.name, event.highest > max(event.first, event.value)
        by_way = f", by way of {event.highest:.3g}" if turned else ""
        found = self.finding(
            event,
            f"{event.place} went from {event.first:.3g} to {event.value:.3g}{by_way} in {event.step} steps, and {name} "
            f'reads group["lr"], which stayed at {event.lr:.3g}',
            severity="error",
            cause="groups take any key, and objects any attribute: the optimizer reads lr of its groups, and nothing else",
            fix=f'for group in optimizer.param_groups: group["lr"] = … in place of {event.place}',
            key="misplaced",
            rate=event.lr,
            written=event.value,
        )
        yield replace(found, consequences=(*self.consequences, "O7"))

    def on_rate_restored(self, event: RateRestored) -> Iterator[Finding]:
        """What the optimizer was built with is not what it uses: the end of the schedule of another run, or another one is told."""
        over = self._is_over(event)
        factor = max(event.built, event.rate) / max(min(event.built, event.rate), 1e-30)
        told = event.told and (not event.once or factor >= self.echoed)
        if not over and not told:
            return
        begun = f", where a schedule had brought it there from {event.peak:.3g}" if event.peak and over else ""
        goes = f"{event.told} is told as the rate" if told else "no schedule follows"
        finding = self.finding(
            event,
            f"{event.optimizer.name} was built with lr={event.built:.3g}, and load_state_dict() put the {event.rate:.3g} of the "
            f"file in its place{begun}; {goes}, and {event.steps} steps were taken at {event.rate:.3g}",
            cause="the state of an optimizer holds the settings of its groups, too, the rate of its last step among them",
            fix='after loading: for group in optimizer.param_groups: group["lr"] = lr',
            key="restored",
            built=event.built,
            rate=event.rate,
        )
        yield replace(finding, consequences=(*self.consequences, "O7"))

    def _is_over(self, event: RateRestored) -> bool:
        """The rate is the end of a schedule; higher up, if it was a schedule of another training, begun at another rate."""
        rate, built, peak = event.rate, event.built, event.peak
        anew = event.steps >= self.stage and _distance(built, peak) > self.swing
        low = self.low if peak and anew else self.floor
        return rate <= low * built * (1 + self.equal) and (rate == 0 or rate <= low * peak * (1 + self.equal))

    def on_rate_lost(self, event: RateLost) -> Iterator[Finding]:
        """Worked out as the loop goes on, and given to nobody."""
        values, name = event.values, event.optimizer.name
        if event.attribute:
            yield self._of_attribute(event)
            return
        if event.optimizer.steps < self.points_needed or (not values and not event.copied):
            return
        low, high = min(values, default=0.0), max(values, default=0.0)
        if values and high - low < self.swing * high:
            return
        went = f", which went from {values[0]:.3g} by way of {high:.3g} to {values[-1]:.3g}" if values else ""
        does = f"`{event.text}` changes a copy" if event.copied else f"nothing but the log gets {event.text}"
        found = self.finding(
            event,
            f"the loop works out a rate as it goes{went}, and the lr of {name} stayed at {event.lr:.3g}: {does}",
            severity="warning" if event.copied else "hint",  # it may act by another road: on the loss, on the gradients
            cause="a copy of a group is not the group that the optimizer reads"
            if event.copied
            else "the rate is computed and told, and never written into the groups of the optimizer",
            fix='for group in optimizer.param_groups: group["lr"] = lr, before step()',
            key="lost",
            rate=event.lr,
            lowest=low,
            highest=high,
        )
        stays = ("O28", "O7") if event.copied else ()  # at a rate that was to be left
        yield replace(found, consequences=(*self.consequences, *stays))

    def _of_attribute(self, event: RateLost) -> Finding:
        values, name = event.values, event.optimizer.name
        went = f"went from {values[0]:.3g} by way of {max(values):.3g} to {values[-1]:.3g}"
        found = self.finding(
            event,
            f"`{event.text}` sets an attribute that {name} never reads: it {went if len(values) > 1 else f'is {values[0]:.3g}'}, "
            f"and the rate in use stayed at {event.lr:.3g}",
            severity="warning",
            cause="step() takes its rate from optimizer.param_groups, and from nowhere else",
            fix='for group in optimizer.param_groups: group["lr"] = lr, before step()',
            key="misplaced",  # as where its values were seen: told once
            rate=event.lr,
            lowest=min(values),
            highest=max(values),
        )
        return replace(found, consequences=(*self.consequences, "O28", "O7"))

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """One logged rate is constant at the very peak of another that follows a schedule."""
        rates = [curve for curve in curves(event, "learning_rate") if len(curve.values) >= self.points_needed]
        moving = [rate for rate in rates if min(rate.values) < (1 - self.swing) * max(rate.values)]
        for rate in rates:
            if len(set(rate.values)) != 1:
                continue
            for other in moving:
                if _distance(rate.values[0], max(other.values)) < 1e-6:
                    yield self._tell_constant(event, rate, other)
                    return

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """``get_lr()`` of a schedule that computes it from the rate before, and the first rate in the place of the one in use."""
        for fact in event.of("get_lr"):
            yield self.finding_at(
                event,
                fact.where,
                f"{fact.text} of {fact.name} is not the rate in use: it is the next value of a recursion",
                cause="get_lr() is what step() calls to compute the next rate; at a decay it is off by the factor of the decay",
                fix="read get_last_lr(), or optimizer.param_groups[0]['lr']",
            )
        for fact in event.of("constant rate"):
            yield self.finding_at(
                event,
                fact.where,
                f"{fact.text} is reported as the rate, and a schedule moves the rate in the same loop",
                cause="it is the number that the optimizer began with; the schedule changes param_groups, and not that",
                fix="report scheduler.get_last_lr()[0]",
            )

    def _tell_constant(self, event: CurvesUpdated, rate: Curve, other: Curve) -> Finding:
        return self.finding(
            event,
            f"{rate.name} is {rate.values[0]:.3g} at all {rate.count:,} points, while {other.name} goes from "
            f"{max(other.values):.3g} to {min(other.values):.3g}",
            severity="hint",
            cause="a constant of the configuration was logged, not the rate that the optimizer uses",
            fix='log optimizer.param_groups[0]["lr"] or scheduler.get_last_lr()',
            key=f"constant {rate.name}",
            constant=rate.values[0],
        )


def _peak(event: ScheduleObserved) -> str:
    return f", by way of {event.peak_lr:.3g}" if event.peak_lr > 1.01 * max(event.first_lr, event.lr) else ""


def _distance(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), abs(other), 1e-30)
