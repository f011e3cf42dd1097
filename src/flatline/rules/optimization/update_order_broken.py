"""O4."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import OptimizerStepped, StepMissing, Tick
from flatline.findings import Finding
from flatline.rules import Rule


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
    consequences = ("O2", "O7", "O9", "N1", "G1", "G3", "O6", "O22", "O8")
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

    def _never_zeroed(self, event: OptimizerStepped) -> Finding:
        return self.finding(
            event,
            "the gradients of the "
            + ("closure's previous run" if event.closure else "step before")
            + f" were still there when {event.optimizer.name} step {event.index} added to them",
            cause="gradients add up until they are zeroed: every step applies the sum of all batches so far",
            fix="call optimizer.zero_grad() "
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
