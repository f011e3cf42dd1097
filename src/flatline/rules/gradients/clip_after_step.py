"""G5."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import OptimizerStepped, SourceMoment, SourceParsed, Where
from flatline.findings import Finding
from flatline.rules import Rule

STARTS = ("zero", "forward", "batch", "backward")


class ClipAfterStep(Rule):
    """Gradients are clipped after the optimizer has used them.

    Symptom
    -------
    Clipping is in the script, and the loss spikes or diverges as if it were not.

    Root cause
    ----------
    ``optimizer.step()`` reads the gradients. What happens to them afterwards is thrown away by the next
    ``zero_grad()``.

    Fix
    ---
    Move the clipping between ``backward()`` and ``step()``.

    Example
    -------
    ::

        loss.backward()
        optimizer.step()
        clip_grad_norm_(model.parameters(), 1.0)

    Use instead
    -----------
    ::

        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    Healthy look-alikes
    -------------------
    A loop that begins with the step and clips at its end; clipping the gradients of all models for the second of two
    optimizers; ``clip_grad_norm_`` with a huge threshold, used to read the norm.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    """

    code = "G5"
    severity = "error"
    cause = "optimizer.step() has already used the gradients, and the next zero_grad() throws the clipped ones away"
    consequences = ("G1", "C1", "C6")

    steps_needed: int = 2  # loops whose every clip came after the step
    measuring: float = 1e6  # a threshold from here on only reads the norm

    def __init__(self) -> None:
        self._late: dict[int, int] = {}
        self._useful: set[Where | None] = set()  # clips that came between backward and step for some optimizer

    def on_optimizer_stepped(self, event: OptimizerStepped) -> Iterator[Finding]:
        """All clips since the previous step came right after it."""
        self._useful |= {clip.where for clip in event.clips_in_place}
        clips = [c for c in event.clips if c.threshold < self.measuring and c.where not in self._useful]
        if event.closure or event.index < 2 or not clips or not _all_first(event):
            return
        key = event.optimizer.key
        self._late[key] = self._late.get(key, 0) + 1
        if self._late[key] < self.steps_needed:
            return
        call = f"clip_grad_{clips[0].kind}_"
        yield self.finding(
            event,
            f"{call} runs after {event.optimizer.name}.step() and before the next backward: "
            f"seen after all of the last {self._late[key]} steps",
            fix=f"move {call} between loss.backward() and optimizer.step()",
            where=clips[0].where,
            threshold=clips[0].threshold,
            norm=clips[0].norm,
            order=" → ".join(event.tape[:8]),
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """Every way to the clip comes from a step, and goes to a zeroing."""
        for loop in event.loops:
            for moments in loop.moments("clip"):
                clip = moments[0].tick
                if (clip.threshold or 0) < self.measuring and all(_thrown_away(m) for m in moments):
                    step = moments[0].last("step")
                    yield self.finding_at(
                        event,
                        clip.where,
                        f"{clip.name} stands after {step.name if step else 'the optimizer'}.step() and before the next backward",
                        fix=f"move {clip.name} between loss.backward() and optimizer.step()",
                    )


def _all_first(event: OptimizerStepped) -> bool:
    """Every clip stands before anything else that a loop does."""
    start = next((place for place, tick in enumerate(event.tape) if tick in STARTS), 0)
    return "clip" in event.tape[:start] and "clip" not in event.tape[start:]


def _thrown_away(moment: SourceMoment) -> bool:
    before, after = moment.last("backward", "step", "zero", turn=False), moment.next("zero", "step", "backward")
    wiped = after is not None and after.kind == "zero"
    return before is not None and before.kind == "step" and wiped and moment.optimizers == 1
