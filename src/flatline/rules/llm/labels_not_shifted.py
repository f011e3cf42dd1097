"""L11."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import FutureProbed, LossComputed
from flatline.findings import Finding
from flatline.rules import Rule


class LabelsNotShifted(Rule):
    """A language model learns to repeat the token it was just given.

    Symptom
    -------
    The loss falls to almost 0 within a few hundred steps, and generated text repeats one token for ever.

    Root cause
    ----------
    Position t sees token t, and its label is token t again. Copying is all there is to learn. The label has to
    be token t + 1.

    Fix
    ---
    Shift by one: scores of all positions but the last against tokens of all positions but the first.

    Example
    -------
    ::

        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    Use instead
    -----------
    ::

        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    Healthy look-alikes
    -------------------
    Models that shift inside, as those of transformers do; masked language models, whose inputs are corrupted; an
    autoencoder of sequences gives back its own input on purpose: without a causal mask this is only a hint.

    References
    ----------
    - https://huggingface.co/docs/transformers/tasks/language_modeling
    """

    code = "L11"
    severity = "warning"
    cause = "position t is given token t and has to predict token t again, so copying is all that is learned"
    fix = "shift by one: F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())"
    consequences = ("C4",)

    rounding: float = 1e-3  # standard deviations of the output: a change below is none (half precision)
    steps_needed: int = 3  # losses in a row: the tokens of one batch may be equal by chance

    def __init__(self) -> None:
        self._steps: set[int] = set()

    def on_loss_computed(self, event: LossComputed) -> Iterator[Finding]:
        """Targets that are the very tokens of the input."""
        if event.kind != "cross_entropy":
            return
        if not event.target.equals_input:
            self._steps.clear()
            return
        self._steps.add(event.step)
        if len(self._steps) < self.steps_needed:
            return
        labels = event.target.total - event.target.ignored
        yield self.finding(
            event,
            f"the {labels} labels equal the input tokens, position by position, "
            f"in all {len(self._steps)} steps looked at{', under a causal mask' if event.causal else ''}",
            severity="warning" if event.causal and event.target.in_place else "hint",
            labels=labels,
            causal=event.causal,
        )

    def on_future_probed(self, event: FutureProbed) -> Iterator[Finding]:
        """A model that sees no later position, and is asked for what it was given."""
        if not event.own_token or event.spread.effect > self.rounding or not event.spread.compared:
            return
        yield self.finding(
            event,
            f"the labels equal the input tokens, position by position, and {event.model} sees no later position: "
            f"exchanging positions {event.begin} to {event.length - 1} changes nothing before them",
            causal=True,
        )
