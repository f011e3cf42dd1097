"""O4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from flatline.events import (
    OptimizerStepped,
    SourceLoop,
    SourceMoment,
    SourceParsed,
    SourceTick,
    StepMissing,
    Tick,
    Where,
    line_of,
)
from flatline.events import beside as near
from flatline.findings import Finding
from flatline.rules import Rule

NO_STEP = "step() is what changes the weights; without it every backward is work for nothing"
ADDED_UP = "gradients add up until they are zeroed: every step applies the sum of all batches so far"
ADDED_UP_IN_CALLS = "gradients add up until they are zeroed: every call of the closure adds to the one before"
UNCALLED = "the name of a method alone is an expression without effect"
Beside: TypeAlias = dict[Where | None, list[tuple[SourceLoop, set[tuple[str, int]]]]]


class UpdateOrderBroken(Rule):
    """zero_grad, backward and step stand in the wrong order, or one of them is missing.

    Symptom
    -------
    The loss is flat and the weights never move, though gradients are computed; or training is erratic and the gradient
    norm grows and grows.

    Root cause
    ----------
    ``backward`` adds to ``.grad`` and ``step`` reads it. Without ``zero_grad`` every step applies the sum of all
    gradients so far; with ``zero_grad`` between ``backward`` and ``step`` there is nothing left to apply; a
    ``step`` before ``backward`` applies the gradients of the batch before, or none; without ``step`` nothing is
    applied at all.

    Fix
    ---
    The canonical order: ``zero_grad``, forward, loss, ``backward``, ``step``.

    Example
    -------
    ::

        loss.backward()
        optimizer.zero_grad()
        optimizer.step()

    Use instead
    -----------
    ::

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    Healthy look-alikes
    -------------------
    Gradient accumulation; closures (LBFGS); ``p.grad = None`` by hand; optimizers that alternate, as in a GAN;
    attacks and saliency maps, which need gradients and no step.

    References
    ----------
    - https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
    """

    code = "O4"
    severity = "error"
    consequences = ("O2", "O7", "O9", "N1", "G1", "G3", "O6", "O22", "O8", "O25", "O28", "W1", "G8")
    certain_after: int = 2  # steps with the same wrong order

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], int] = {}

    def on_optimizer_stepped(self, event: OptimizerStepped) -> Iterator[Finding]:
        """Judge the tape between two steps."""
        if event.closure:
            if event.leftover:
                yield self._never_zeroed(event)
            return
        if event.index == 1 and not event.backward_ever:
            self._seen["empty", event.optimizer.key] = 1
        if event.leftover and event.index >= 2 and event.gradients == "present":
            yield self._never_zeroed(event)
        elif event.optimizer.by_hand:
            return  # what it applied is not known
        elif event.gradients != "present":
            yield from self._nothing_to_apply(event)
        else:
            yield from self._stale(event)

    def on_step_missing(self, event: StepMissing) -> Iterator[Finding]:
        """Gradients thrown away, or never applied."""
        done = "were computed and zeroed again" if event.zeroed else "were computed"
        yield self.finding(
            event,
            f"gradients {done} {event.cycles} times, and {event.optimizer.name}.step() was never called in between",
            cause="step() is what changes the weights; without it every backward is work for nothing",
            fix="call optimizer.step() after backward(), with its parentheses",
            key=f"missing {event.optimizer.key}",
            cycles=event.cycles,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """The same orders, as the source of a loop shows them."""
        beside = _beside_steps(event)
        for loop in event.loops:
            for moments in loop.moments("step"):
                yield from self._in_source(event, loop, moments, beside)
            if not event.steps and _never_stepped(loop):
                zero = loop.moments("zero")[0][0].tick
                told = f"{zero.name} zeroes the gradients of every backward, and its step() is nowhere in this file"
                yield self._at(event, zero.where, told, NO_STEP, "call optimizer.step() after backward()")
        for fact in event.of("idle optimizer"):
            told = f"{fact.name} is asked for zero_grad() only; its step() is nowhere in this file"
            yield self._at(event, fact.where, told, NO_STEP, f"call {fact.name}.step() after backward()")
        for fact in event.of("never zeroed"):
            others = "what zeroes gradients in this file zeroes those of others"
            told = f"{fact.name}.step() follows backward() in every turn of a loop, and {others}"
            fix = f"call {fact.name}.zero_grad() once per step, before backward()"
            yield self._at(event, fact.where, told, ADDED_UP, fix)
        for fact in event.of("zeroing replaced"):
            above = f"the method that zeroes the gradients{near(fact.other, fact.where)}"
            told = f"{fact.text} takes the place of {above}, and does not"
            fix = f"call super().{fact.text.rpartition('.')[2]}() in it"
            yield self._at(event, fact.where, told, ADDED_UP, fix)
        for fact in event.of("closure") if not event.zeroes else ():
            told = f"the closure of {fact.name} runs backward(), and no gradient is zeroed anywhere in this file"
            fix = "call optimizer.zero_grad() first thing in the closure"
            yield self._at(event, fact.other, told, ADDED_UP_IN_CALLS, fix)
        for fact in event.of("uncalled step") + event.of("uncalled zero_grad") + event.of("uncalled backward"):
            told = f"`{fact.text}` stands without parentheses: nothing is called"
            yield self._at(event, fact.where, told, UNCALLED, f"write {fact.text}()")

    def _at(self, event: SourceParsed, where: Where | None, told: str, cause: str, fix: str) -> Finding:
        return self.finding_at(event, where, told, cause=cause, fix=fix)

    def _in_source(
        self, event: SourceParsed, loop: SourceLoop, moments: Sequence[SourceMoment], beside: Beside
    ) -> Iterator[Finding]:
        step = moments[0].tick
        if all(_wiped(m) for m in moments):
            zero = moments[0].last("zero", of=step.of)
            line = f" (line {zero.where.line})" if zero and zero.where else ""
            yield self.finding(
                event,
                f"{_zeroing(zero)}{line} stands between backward() and {step.name}.step()",
                cause="the gradients are wiped before they are applied, so no weight can move",
                fix=f"move {_zeroing(zero)} before backward()",
                where=zero.where if zero else step.where,
                key=line_of(step.where),
            )
        elif (
            step.known
            and step.always
            and step.depth == 0
            and not step.fresh
            and all(_never_zeroed(m) for m in moments)
            and _zeroed_outside(event, loop, step, beside)
        ):
            zeroed = "only outside of it" if event.zeroes else "nowhere in this file"
            yield self.finding_at(
                event,
                step.where,
                f"{step.name}.step() follows backward() in every turn of a loop, and gradients are zeroed {zeroed}",
                cause=ADDED_UP,
                fix="call optimizer.zero_grad() once per step, before backward()",
            )

    def _never_zeroed(self, event: OptimizerStepped) -> Finding:
        name, zero = event.optimizer.name, "optimizer.zero_grad()"
        if event.optimizer.by_hand:
            name, zero = "the backward of", "model.zero_grad(), or set p.grad = None for every parameter,"
        return self.finding(
            event,
            "the gradients of the "
            + ("closure's previous run" if event.closure else "step before")
            + f" were still there when {name} step {event.index} added to them",
            cause=ADDED_UP_IN_CALLS if event.closure else ADDED_UP,
            fix=f"call {zero} "
            + ("first thing in the closure" if event.closure else "once per step, before backward()"),
            key=f"unzeroed {event.optimizer.key}",
            optimizer=event.optimizer.name,
        )

    def _nothing_to_apply(self, event: OptimizerStepped) -> Iterator[Finding]:
        tape = event.tape
        if not event.backward_ever or "backward" not in tape:
            return
        last = _last(tape, "backward")
        after = tape[last + 1 :]
        kind = "before" if "forward" in after else "between" if "zero" in after else ""
        if not kind or not self._again(kind, event):
            return
        if kind == "before":
            yield self._step_first(event, f"found {_none(event)}")
        else:
            yield self.finding(
                event,
                f"{_wiping(event)} between backward() and step(): {event.optimizer.name} found {_none(event)}",
                cause="the gradients are wiped before they are applied, so no weight can move",
                fix="move what zeroes them before backward()"
                if event.wiped_by_hand
                else "move zero_grad() before backward()",
                key=f"between {event.optimizer.key}",
                gradients=event.gradients,
            )

    def _stale(self, event: OptimizerStepped) -> Iterator[Finding]:
        """Gradients of the batch before: the forward pass of this one ran after the last backward."""
        tape = event.tape
        if self._first_was_empty(event) and "backward" in tape and "forward" in tape[_last(tape, "backward") + 1 :]:
            if self._again("before", event):
                yield self._step_first(event, "applied the gradients of the batch before")

    def _first_was_empty(self, event: OptimizerStepped) -> bool:
        return self._seen.get(("empty", event.optimizer.key), 0) > 0

    def _step_first(self, event: OptimizerStepped, what: str) -> Finding:
        return self.finding(
            event,
            f"step() runs before this batch's backward(): {event.optimizer.name} {what}",
            cause="step() reads the gradients that backward() writes; it ran first",
            fix="move step() behind backward()",
            key=f"before {event.optimizer.key}",
            gradients=event.gradients,
        )

    def _again(self, kind: str, event: OptimizerStepped) -> bool:
        key = kind, event.optimizer.key
        self._seen[key] = self._seen.get(key, 0) + 1
        return self._seen[key] >= self.certain_after - (kind == "before" and self._first_was_empty(event))


def _wiping(event: OptimizerStepped) -> str:
    if event.wiped_by_hand:
        return "the gradients are zeroed by hand"
    return f"zero_grad(){f' (line {event.zero_where.line})' if event.zero_where else ''} stands"


def _none(event: OptimizerStepped) -> str:
    return "no gradient" if event.gradients == "none" else "only zeros"


def _last(tape: tuple[Tick, ...], what: Tick) -> int:
    return len(tape) - 1 - tape[::-1].index(what)


def _zeroing(zero: SourceTick | None) -> str:
    return f"what empties {zero.name}" if zero is not None and ".grad" in zero.name else "zero_grad()"


def _wiped(moment: SourceMoment) -> bool:
    """The last thing before the step is the end of its gradients, on a way with a backward."""
    step = moment.tick
    last = moment.last("zero", "backward", "step")
    if last is None or last.kind != "zero" or not any(tick.kind == "backward" for tick in moment.path):
        return False
    return last.of == step.of or (last.trains != "" and last.trains in (step.trains, step.of))


def _never_zeroed(moment: SourceMoment) -> bool:
    last = moment.last("backward", "zero", "step", turn=False)
    plain = all(tick.kind != "opaque" and tick.known for tick in moment.path if tick.kind in ("opaque", "backward"))
    return moment.repeats and moment.optimizers == 1 and last is not None and last.kind == "backward" and plain


def _zeroed_outside(event: SourceParsed, loop: SourceLoop, step: SourceTick, beside: Beside) -> bool:
    """Every zeroing in these files is seen on a way that comes by this step, but outside of the loop."""
    if loop.has("zero"):
        return False
    left = {(place.file, place.line) for place in event.zeroes}
    for other, zeroes in beside.get(step.where, ()) if left else ():
        left -= zeroes if other is not loop else set()
    return not left


def _beside_steps(event: SourceParsed) -> Beside:
    """For the place of every step: the ways that come by it, and what is zeroed on them."""
    found: Beside = {}
    for loop in event.loops:
        for path in loop.paths:
            zeroes = {(t.where.file, t.where.line) for t in path if t.kind == "zero" and t.where}
            for where in {t.where for t in path if t.kind == "step"} if zeroes else ():
                found.setdefault(where, []).append((loop, zeroes))
    return found


def _never_stepped(loop: SourceLoop) -> bool:
    """Zeroed by an optimizer of torch in every turn, with a plain backward and nothing that may step."""
    ticks = [tick for path in loop.paths for tick in path]
    zeroed = bool(ticks) and all(any(t.kind == "zero" and t.known for t in path) for path in loop.paths if path)
    plain = all(t.known for t in ticks if t.kind == "backward")
    return (
        loop.repeats and zeroed and plain and loop.has("backward") and not loop.has("opaque") and not loop.has("step")
    )
