"""O9."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatline.events import (
    OptimizerStepped,
    SourceMoment,
    SourceParsed,
    Tick,
)
from flatline.findings import Finding
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
    consequences = ("G3", "G1")
    certain_after: int = 2  # windows of the same kind

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def on_optimizer_stepped(self, event: OptimizerStepped) -> Iterator[Finding]:
        """N backwards of one line, a forward before each, no division, no rescaling."""
        if not self._undivided(event):
            self._seen[event.optimizer.key] = 0
            return
        key = event.optimizer.key
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
        if event.optimizer.by_hand:
            return False  # its own update may divide
        summed = _since_zeroed(event).count("backward")
        backwards = event.backwards[-summed:] if summed else ()
        if len(backwards) < 2 or event.closure or event.rescaled_by_hand or event.leftover:
            return False
        if len({(b.where, b.reached, b.factor > 0) for b in backwards}) != 1 or backwards[0].where is None:
            return False
        if any(b.one_target for b in backwards):
            return False
        averaged = any(abs(b.factor) < 0.999 or not b.mean or not b.plain for b in backwards)
        return not averaged and _fresh_forwards(event) >= summed

    def _why(self, event: OptimizerStepped, count: int) -> str:
        if _hidden(event):
            name = event.optimizer.name
            return f"the gradient is {count} times that of the whole batch: {name} divides that out, until gradients are clipped"
        if event.optimizer.adaptive:
            hidden = f"{event.optimizer.name} hides it, clipping and eps do not"
            return f"the gradient is {count} times that of the whole batch; {hidden}"
        return f"the gradient is {count} times that of the whole batch: in effect the learning rate is {count} times higher"


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
