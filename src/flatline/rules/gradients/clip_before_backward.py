"""G6."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import OptimizerStepped, SourceMoment, SourceParsed, Where
from flatline.findings import Finding
from flatline.rules import Rule


class ClipBeforeBackward(Rule):
    """Gradients are clipped before there are any.

    Symptom
    -------
    Clipping is in the script, and the loss spikes or diverges as if it were not. The norm that ``clip_grad_norm_``
    returns is always 0.

    Root cause
    ----------
    After ``zero_grad()`` the gradients are empty until ``backward()`` fills them. Clipping in between does nothing.

    Fix
    ---
    Move the clipping between ``backward()`` and ``step()``.

    Example
    -------
    ::

        optimizer.zero_grad()
        loss = criterion(model(x), y)
        clip_grad_norm_(model.parameters(), 1.0)
        loss.backward()
        optimizer.step()

    Use instead
    -----------
    ::

        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    Healthy look-alikes
    -------------------
    Several backwards per step with a clip after each; clipping the gradients of all models for another optimizer;
    a backward that cannot be seen, after which the norm is not 0.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    """

    code = "G6"
    severity = "error"
    cause = "between zero_grad() and backward() the gradients are empty, so there is nothing to clip"
    consequences = ("G1", "C1", "C6")

    steps_needed: int = 2  # loops whose every clip came before the first backward

    def __init__(self) -> None:
        self._early: dict[int, int] = {}
        self._useful: set[Where | None] = set()  # clips that came between backward and step for some optimizer

    def on_optimizer_stepped(self, event: OptimizerStepped) -> Iterator[Finding]:
        """All clips of this loop stand before its first backward."""
        self._useful |= {clip.where for clip in event.clips_in_place}
        clips = [clip for clip in event.clips if clip.where not in self._useful and not clip.norm]
        if event.closure or not clips or len(clips) < len(event.clips) or not _all_early(event):
            return
        key = event.optimizer.key
        self._early[key] = self._early.get(key, 0) + 1
        if self._early[key] < self.steps_needed:
            return
        call = f"clip_grad_{clips[0].kind}_"
        norm = "" if clips[0].norm is None else f", on gradients of norm {clips[0].norm:g}"
        yield self.finding(
            event,
            f"{call} runs before backward() in all of the last {self._early[key]} steps{norm}",
            fix=f"move {call} between loss.backward() and optimizer.step()",
            where=clips[0].where,
            threshold=clips[0].threshold,
            norm=clips[0].norm,
            order=" → ".join(event.tape[:8]),
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """Every way to the clip comes from a zeroing, and goes to a backward."""
        for loop in event.loops:
            for moments in loop.moments("clip"):
                clip = moments[0].tick
                if all(_empty(m) for m in moments):
                    yield self.finding_at(
                        event,
                        clip.where,
                        f"{clip.name} stands before backward(), when the gradients were just zeroed",
                        fix=f"move {clip.name} between loss.backward() and optimizer.step()",
                    )


def _all_early(event: OptimizerStepped) -> bool:
    """Clips after the loop began, and none once a backward has run."""
    if "backward" not in event.tape:
        return False
    first = event.tape.index("backward")
    before = event.tape[:first]
    clip = max((place for place, tick in enumerate(before) if tick == "clip"), default=-1)
    begun = any(tick in ("zero", "forward", "batch") for tick in before[: max(0, clip)])
    return begun and "clip" not in event.tape[first:]


def _empty(moment: SourceMoment) -> bool:
    before, after = moment.last("zero", "backward", "step"), moment.next("backward", "step", turn=False)
    empty = before is not None and before.kind == "zero"
    return empty and after is not None and after.kind == "backward" and moment.optimizers == 1
