"""O9."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flatline.events import (
    BackwardFacts,
    LossesRead,
    NumbersSampled,
    OptimizerStepped,
    RunEnded,
    SourceMoment,
    SourceParsed,
    Tick,
)
from flatline.findings import Finding
from flatline.history import fmean, median
from flatline.rules import Rule


class AccumulationNotAveraged(Rule):
    """Gradients of several micro-batches are summed, not averaged.

    Symptom
    -------
    Going from one batch of B to N micro-batches of B/N "with the same settings" trains hotter or diverges; the
    gradient norm is N times larger.

    Root cause
    ----------
    Each loss is a mean over its micro-batch, and ``backward`` adds the gradients. The sum of N means is N times
    the mean over the whole batch: with SGD that is N times the learning rate, with clipping a step that is always
    clipped.

    Fix
    ---
    Divide each loss by the number of micro-batches; for tokens, divide the sum of losses by the number of tokens
    in the whole window.

    Example
    -------
    ::

        loss = criterion(model(x), y)
        loss.backward()
        if (i + 1) % 4 == 0: optimizer.step()

    Use instead
    -----------
    ::

        loss = criterion(model(x), y) / 4
        loss.backward()
        if (i + 1) % 4 == 0: optimizer.step()

    Healthy look-alikes
    -------------------
    Losses that are sums; gradients divided by hand before the step; several different losses backed one by one:
    the real and the fake half of a discriminator's step, the heads of a multi-task model. Sharpness-aware
    steps zero in between. Adam and its kin take the same step from a gradient N times as large: without clipping and
    without decay in the gradient this is a hint.

    References
    ----------
    - https://huggingface.co/blog/gradient_accumulation
    """

    code = "O9"
    severity = "warning"
    consequences = ("G3", "G1", "G2", "O28")
    whatever = ("W1", "W5", "O25", "C2", "C3", "C5")  # besides, where steps are known to be too large
    certain_after: int = 2  # windows of the same kind
    several: int = 8  # losses of single samples that are added up; their mean is the loss of the first step
    thrown: float = 0.02  # typical change in one of the first steps; twice what is usual (docs/thresholds.md)
    first_steps: int = 16  # that were sampled
    window: int = 32  # steps whose mean loss is compared with that of the first one
    risen: float = 2.0  # times the first loss; eight squared errors vary by half, and a floor of noise is no harm

    few: int = 8  # steps whose mean loss is the height of a leap
    steps: int = 3  # that were too large, before what they did
    leapt: float = 4.0  # times the first loss, in so few steps: a sum that threw the weights away, and all they knew
    nothing: float = 0.7  # of the first loss, at the end: no more was learned than a constant knows

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._single: dict[int, OptimizerStepped] = {}  # windows of losses of single samples
        self._updates: dict[int, list[float]] = {}
        self._first: dict[int, float] = {}  # loss
        self._losses: dict[int, deque[float]] = {}  # the newest ones
        self._highest: dict[int, float] = {}  # mean of a window

    def on_optimizer_stepped(self, event: OptimizerStepped) -> Iterator[Finding]:
        """N backwards of one line, a forward before each, no division, no rescaling."""
        key = event.optimizer.key
        if self._of_samples(event):
            self._single[key] = event
        else:
            self._single.pop(key, None)
        if not self._undivided(event):
            self._seen[key] = 0
            return
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] < self.certain_after:
            return
        count = _since_zeroed(event).count("backward")
        yield self.finding(
            event,
            f"{count} backwards of a mean loss add up before each step of {event.optimizer.name}, and none is divided by {count}",
            severity="hint" if _hidden(event) else "warning",
            cause=self._why(event, count),
            fix=f"divide before backward: (loss / {count}).backward()",
            where=event.backwards[-1].where,
            key=str(key),
            micro_batches=count,
        )

    def on_numbers_sampled(self, event: NumbersSampled) -> None:
        """The size of the steps."""
        ratios = [each.update_ratio for each in event.layers if each.matrix and each.update_ratio is not None]
        known = self._updates.setdefault(event.optimizer.key, [])
        if ratios and len(known) < self.first_steps:
            known.append(median(ratios))

    def on_losses_read(self, event: LossesRead) -> None:
        """The mean of each step's losses."""
        key = event.optimizer.key
        self._first.setdefault(key, event.losses[0] if event.losses else 0.0)
        newest = self._losses.setdefault(key, deque(maxlen=self.window))
        for loss in event.losses:
            newest.append(loss)
            if len(newest) >= self.few and key in self._single:
                level = fmean(list(newest)[-self.few :])
                self._highest[key] = max(self._highest.get(key, 0.0), level)

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """Losses of single samples that were added up, steps that are far too large, and nothing learned."""
        for key, seen in self._single.items():
            newest = self._losses.get(key, deque())
            updates = sorted(self._updates.get(key) or [0.0])
            if len(newest) < self.window:
                continue
            before, now, count = self._first[key], fmean(newest), len(seen.backwards)
            leapt = (
                self._highest.get(key, 0.0) >= self.leapt * before
                and self.nothing * before <= now <= self.risen * before
            )
            update = (
                updates[-min(self.steps, len(updates))] if leapt else median(updates)
            )  # units that died stand still
            if update >= self.thrown and before > 0 and (leapt or now > self.risen * before):
                way = f"by way of {self._highest[key]:.4g} " if leapt else ""
                found = self.finding(
                    seen,
                    f"the gradients of {count} single samples add up before each step of {seen.optimizer.name}, and nothing is "
                    f"divided by {count}; the first steps changed the weights by {update:.1%} each (healthy: about 0.1 %), "
                    f"and the loss went from {before:.4g} {way}to {now:.4g}",
                    cause=self._why(seen, count),
                    fix=f"divide before backward: (loss / {count}).backward()",
                    where=seen.backwards[-1].where,
                    key=str(key),
                    micro_batches=count,
                    update_ratio=update,
                )
                yield replace(found, consequences=self.consequences + self.whatever)

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """A mean is sent backward in every turn, undivided, and the step comes in some turns only."""
        for loop in event.loops:
            for moments in loop.moments("backward"):
                tick = moments[0].tick
                if loop.repeats and tick.mean and tick.always and tick.depth == 0 and _accumulates(moments):
                    yield self.finding_at(
                        event,
                        tick.where,
                        f"{tick.name}.backward() runs in every turn on a mean, and the optimizer steps in some turns only",
                        cause="the gradients of the turns between two steps add up: the step is as many times too large",
                        fix="divide the loss by the number of turns between two steps before backward()",
                    )
        for fact in event.of("micro mean"):
            line = fact.other.line if fact.other else 0
            yield self.finding_at(
                event,
                fact.where,
                f"{fact.name}.backward() runs on the mean of each part of a batch (loop in line {line}), "
                "and the optimizer steps once after all parts",
                cause="the gradients of the parts add up: the step is as many times too large as there are parts",
                fix="multiply the loss of a part by its share of the batch before backward()",
            )

    def _undivided(self, event: OptimizerStepped) -> bool:
        backwards = _added_up(event)
        return bool(backwards) and all(b.mean for b in backwards)

    def _of_samples(self, event: OptimizerStepped) -> bool:
        """Each loss is one number from the start, of an optimizer whose steps are as long as the sum."""
        backwards = _added_up(event)
        alone = len(backwards) >= self.several and not any(b.mean or b.losses for b in backwards)
        return alone and not event.optimizer.adaptive

    def _why(self, event: OptimizerStepped, count: int) -> str:
        if _hidden(event):
            name = event.optimizer.name
            return f"the gradient is {count} times that of the whole batch: {name} divides that out, until gradients are clipped"
        if event.optimizer.adaptive:
            hidden = f"{event.optimizer.name} hides it, clipping and eps do not"
            return f"the gradient is {count} times that of the whole batch; {hidden}"
        return f"the gradient is {count} times that of the whole batch: in effect the learning rate is {count} times higher"


def _added_up(event: OptimizerStepped) -> tuple[BackwardFacts, ...]:
    """Undivided losses of one line, with a forward of its own each, that were sent backward since gradients were zeroed."""
    if event.optimizer.by_hand:
        return ()  # its own update may divide
    summed = _since_zeroed(event).count("backward")
    backwards = event.backwards[-summed:] if summed else ()
    if len(backwards) < 2 or event.closure or event.rescaled_by_hand or event.leftover:
        return ()
    if len({(b.where, b.reached, b.factor > 0) for b in backwards}) != 1 or backwards[0].where is None:
        return ()
    divided = any(abs(b.factor) < 0.999 or not b.plain or b.one_target for b in backwards)
    return backwards if not divided and _fresh_forwards(event) >= summed else ()


def _hidden(event: OptimizerStepped) -> bool:
    """An optimizer that divides by the gradient's own scale takes the same step, where nothing else reads the gradient."""
    coupled = any(group.weight_decay for group in event.optimizer.groups) and not event.optimizer.decoupled
    return event.optimizer.adaptive and not event.clips and not coupled


def _since_zeroed(event: OptimizerStepped) -> tuple[Tick, ...]:
    """What was zeroed without a step in between is no part of the sum: the script left that batch out."""
    last = max((place for place, what in enumerate(event.tape) if what == "zero"), default=-1)
    return event.tape[last + 1 :]


def _fresh_forwards(event: OptimizerStepped) -> int:
    """Backwards with a forward pass, and a new batch where batches are seen, right before them."""
    batches = "batch" in event.tape
    fresh, forward, batch = 0, False, False
    for what in event.tape:
        fresh = 0 if what == "zero" else fresh
        forward, batch = forward or what == "forward", batch or what == "batch"
        if what == "backward":
            fresh += forward and (batch or not batches)
            forward = batch = False
    return fresh


def _accumulates(moments: Sequence[SourceMoment]) -> bool:
    """Ways without a step, and others with the step and the zeroing of one optimizer after the backward."""
    steps = [[t for t in m.path if t.kind == "step"] for m in moments]
    plain = all(len([t for t in m.path if t.kind == "backward"]) == 1 for m in moments)
    simple = not any(t.kind == "opaque" for m in moments for t in m.path)
    zeroed = all(any(t.kind == "zero" for t in m.path) == bool(found) for m, found in zip(moments, steps, strict=True))
    one = len({t.of for found in steps for t in found}) == 1
    later = all(m.next("step", turn=False) is not None for m, found in zip(moments, steps, strict=True) if found)
    return plain and simple and zeroed and one and later and not all(steps)
