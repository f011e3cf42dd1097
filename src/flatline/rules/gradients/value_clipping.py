"""G7."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import OptimizerStepped
from flatline.findings import Finding
from flatline.rules import Rule


class ValueClipping(Rule):
    """Gradients are clipped element by element, which changes their direction.

    Symptom
    -------
    Training is stable and somewhat slow, or settles at a worse loss than with clipping by norm.

    Root cause
    ----------
    ``clip_grad_value_`` cuts every large element to the same value, and leaves the small ones. The gradient no longer points
    downhill in proportion. Clipping by norm shrinks all elements alike and keeps the direction.

    Fix
    ---
    ``torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)``.

    Example
    -------
    ::

        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)

    Use instead
    -----------
    ::

        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)

    Healthy look-alikes
    -------------------
    Clipping by value as a guard against rare outliers, with a limit that is almost never met; recipes of reinforcement
    learning that were tuned with it. It is a hint for that reason, and never more.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_value_.html
    """

    code = "G7"
    severity = "hint"
    cause = "clip_grad_value_ cuts each element on its own, so that the gradient no longer points downhill"
    fix = "clip by norm: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)"

    steps_needed: int = 3  # one might be an experiment

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}

    def on_optimizer_stepped(self, event: OptimizerStepped) -> Iterator[Finding]:
        """The clips before one step."""
        clips = [clip for clip in event.clips if clip.kind == "value"]
        if not clips:
            return
        key = event.optimizer.key
        self._steps[key] = self._steps.get(key, 0) + 1
        if self._steps[key] >= self.steps_needed:
            yield self.finding(
                event,
                f"gradients are clipped by value, to {clips[-1].threshold:g}, before every step",
                where=clips[-1].where,
                threshold=clips[-1].threshold,
            )
