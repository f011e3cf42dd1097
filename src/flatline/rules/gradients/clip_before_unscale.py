"""G4."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flatline.events import ClipFacts, OptimizerStepped, SourceMoment, SourceParsed
from flatline.findings import Finding
from flatline.rules import Rule


class ClipBeforeUnscale(Rule):
    """Gradients are clipped while they still carry the loss scale.

    Symptom
    -------
    Mixed-precision training is far slower than float32 training with the same settings. The logged gradient norm is
    in the thousands or millions, and changes with the scale.

    Root cause
    ----------
    After ``scaler.scale(loss).backward()`` all gradients are multiplied by the loss scale, 65536 at first. A
    threshold of 1.0 then clips them to 1.0 / scale of what was meant, once ``scaler.step`` has divided them.

    Fix
    ---
    Call ``scaler.unscale_(optimizer)`` between backward and clipping. ``scaler.step`` knows and does not divide again.

    Example
    -------
    ::

        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)

    Use instead
    -----------
    ::

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)

    Healthy look-alikes
    -------------------
    A threshold that is multiplied by the scale; a disabled scaler; bfloat16, which needs no scaler; a second
    optimizer whose loss is not scaled.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
    """

    code = "G4"
    severity = "error"
    consequences = ("G3", "O7", "O22", "C2", "C3", "C5")

    threshold_over_scale: float = 1e-3  # a threshold from here on was multiplied by the scale
    norm_over_scale: float = 1e-4  # a norm under it does not carry the scale: true norms are larger than that

    def on_optimizer_stepped(self, event: OptimizerStepped) -> Iterator[Finding]:
        """A clip after backward, on gradients that are still scaled."""
        hand = event.clip_by_hand
        clip = next((clip for clip in event.clips if self._wrong(clip)), None) if _after_backward(event) else None
        if clip is None and hand is not None and self._wrong(hand):
            yield self._tell(event, hand, "the script's own clipping")
        elif clip is not None:
            yield self._tell(event, clip, f"clip_grad_{clip.kind}_")

    def _tell(self, event: OptimizerStepped, clip: ClipFacts, call: str) -> Finding:
        norm = "" if clip.norm is None else f" of norm {clip.norm:.3g}"
        return self.finding(
            event,
            f"{call} clips gradients{norm} to {clip.threshold:.4g} while they carry the loss scale {clip.scale:g}",
            cause=f"scaler.step divides by the scale after clipping, so the step is held to "
            f"{clip.threshold:.4g} / {clip.scale:g} = {clip.threshold / clip.scale:.2g} instead of {clip.threshold:.4g}",
            fix=f"call scaler.unscale_(optimizer) between backward() and {call}",
            where=clip.where,
            threshold=clip.threshold,
            scale=clip.scale,
            norm=clip.norm,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """Every way to the clip comes from a scaled backward, and goes to the scaler's step."""
        for loop in event.loops:
            for moments in loop.moments("clip"):
                clip = moments[0].tick
                if all(_still_scaled(m) for m in moments):
                    yield self.finding_at(
                        event,
                        clip.where,
                        f"{clip.name} clips gradients that carry the loss scale: scaler.unscale_ was not called before it",
                        cause="scaler.step divides by the scale after clipping, so the step is held to a threshold thousands "
                        "of times smaller than the one that is written",
                        fix=f"call scaler.unscale_(optimizer) between backward() and {clip.name}",
                    )

    def _wrong(self, clip: ClipFacts) -> bool:
        if not clip.scaled or clip.scale <= 1 or clip.threshold >= clip.scale * self.threshold_over_scale:
            return False
        return clip.norm is None or clip.norm >= clip.scale * self.norm_over_scale


def _after_backward(event: OptimizerStepped) -> bool:
    tape = event.tape
    return "backward" in tape and "clip" in tape[tape.index("backward") :]


def _still_scaled(moment: SourceMoment) -> bool:
    before, after = moment.last("backward", "unscale", "step"), moment.next("backward", "unscale", "step")
    scaled = before is not None and before.kind == "backward" and before.scaled
    stepped = after is not None and (after.kind == "unscale" or (after.kind == "step" and after.scaled))
    return scaled and stepped and moment.tick.threshold != math.inf
