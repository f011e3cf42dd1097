"""O5."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatline.events import (
    ModesObserved,
    SourceMoment,
    SourceParsed,
)
from flatline.findings import Finding
from flatline.rules import Rule


class TrainingInEvalMode(Rule):
    """The model trains in eval mode.

    Symptom
    -------
    The model underfits or overfits for no reason: dropout drops nothing, BatchNorm uses running statistics that
    nobody updates.

    Root cause
    ----------
    ``model.eval()`` was called before training, by hand, by a helper, or by the function that loaded the model
    (Hugging Face's ``from_pretrained`` returns models in eval mode), and ``model.train()`` was not.

    Fix
    ---
    Call ``model.train()`` at the top of every training epoch.

    Example
    -------
    ::

        model = load_model().eval()
        for x, y in loader:
            train_step(model, x, y)

    Use instead
    -----------
    ::

        model.train()
        for x, y in loader:
            train_step(model, x, y)

    Healthy look-alikes
    -------------------
    BatchNorm frozen on purpose inside a model in train mode; a backbone in eval whose weights do not learn; models
    without dropout and BatchNorm, for which the mode means nothing.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval
    """

    code = "O5"
    severity = "error"
    consequences = ("C2", "C3", "C4", "C5")
    fix = "call model.train() before the training loop, and again after every validation"
    certain_after: int = 2  # steps in eval mode, from the first on

    def __init__(self) -> None:
        self._asleep: dict[str, int] = {}

    def on_modes_observed(self, event: ModesObserved) -> Iterator[Finding]:
        """A model whose every Dropout and BatchNorm slept through its training steps."""
        if event.training or event.trained_before or not event.trainable or not event.in_eval:
            return
        if event.in_eval < event.sensitive:
            return
        self._asleep[event.model] = self._asleep.get(event.model, 0) + 1
        if self._asleep[event.model] < self.certain_after:
            return
        call = f"; eval() was called at line {event.eval_where.line}" if event.eval_where else ""
        yield self.finding(
            event,
            f"{event.model} is updated in eval mode: {event.in_eval} of {event.sensitive} Dropout and BatchNorm "
            f"layers are off ({', '.join(event.examples)}){call}",
            cause="in eval mode dropout is the identity and BatchNorm neither uses nor updates batch statistics",
            in_eval=event.in_eval,
            layers=event.sensitive,
            eval_line=event.eval_where.line if event.eval_where else None,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """eval() on the way to the training loop, and no train() after it."""
        for loop in event.loops:
            for moments in loop.moments("eval"):
                tick = moments[0].tick
                if tick.modes and _on_every_way(moments):
                    yield self.finding_at(
                        event,
                        tick.where,
                        f"{tick.name}.eval() comes before the steps that train it, and train() does not follow: "
                        f"its {tick.modes} is off",
                        cause="eval() stays in force until train() is called",
                    )


def _on_every_way(moments: Sequence[SourceMoment]) -> bool:
    """A call that two phases share is come by twice on one way, the last time with no step after it."""
    ways = {id(m.path) for m in moments}
    return {id(m.path) for m in moments if _trained_after(m)} == ways


def _trained_after(moment: SourceMoment) -> bool:
    """The same model's optimizer steps later on the way, with neither train() nor anything unknown on it."""
    if moment.repeats or any(t.kind in ("train", "opaque") for t in moment.path):
        return False
    return any(t.kind == "step" and t.trains == moment.tick.of for t in moment.path[moment.at :])
