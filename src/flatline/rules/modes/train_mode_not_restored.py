"""E2."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import ModesObserved, SourceMoment, SourceParsed, Where
from flatline.findings import Finding
from flatline.rules import Rule


class TrainModeNotRestored(Rule):
    """Training goes on in eval mode after a validation pass.

    Symptom
    -------
    The first epoch is as it should be. From the second on the training loss drops oddly and the model overfits,
    or its BatchNorm statistics no longer follow the weights and validation gets worse.

    Root cause
    ----------
    ``model.eval()`` was called for validation, and ``model.train()`` only once, before the first epoch. The mode
    stays until somebody sets it: Dropout is off and BatchNorm's running statistics stand still from then on.

    Fix
    ---
    Call ``model.train()`` at the top of every epoch, or right after the validation pass.

    Example
    -------
    ::

        model.train()
        for epoch in range(epochs):
            train_one_epoch(model)
            validate(model)          # calls model.eval()

    Use instead
    -----------
    ::

        for epoch in range(epochs):
            model.train()
            train_one_epoch(model)
            validate(model)

    Healthy look-alikes
    -------------------
    BatchNorm layers frozen one by one inside a model that is in train mode; a model whose parameters the
    optimizer does not train; eval mode from the very first step, which is O5.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.train
    """

    code = "E2"
    severity = "error"
    consequences = ("C4",)
    cause = "eval() stays in force until train() is called: Dropout is off and BatchNorm's statistics stand still"

    steps_needed: int = 2  # steps in a row; one may be a last update inside an evaluation

    def __init__(self) -> None:
        self._asleep: dict[str, list[int]] = {}
        self._where: dict[str, Where] = {}  # the line is told on closely watched steps only

    def on_modes_observed(self, event: ModesObserved) -> Iterator[Finding]:
        """A step in eval mode, after steps in train mode."""
        if event.where is not None:
            self._where[event.model] = event.where
        if event.training or not event.trained_before or not event.in_eval or not event.trainable:
            self._asleep.pop(event.model, None)
            return
        steps = self._asleep.setdefault(event.model, [])
        steps.append(event.step)
        if len(set(steps)) < self.steps_needed:
            return
        place = f"; eval() was called at {event.eval_where.file}:{event.eval_where.line}" if event.eval_where else ""
        yield self.finding(
            event,
            f"{event.model} trains in eval mode since step {steps[0]}, after steps in train mode: "
            f"{event.in_eval} of {event.sensitive} Dropout and BatchNorm layers are off{_names(event)}{place}",
            fix=f"call {event.model}.train() at the top of every epoch, or right after the validation pass",
            where=event.where or self._where.get(event.model) or event.eval_where,
            model=event.model,
            first_step=steps[0],
            layers_off=event.in_eval,
            layers=event.sensitive,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """A loop that trains a model and calls its eval(), and train() nowhere."""
        awake = any(loop.has("train") for loop in event.loops)
        for loop in event.loops:
            for moments in loop.moments("eval"):
                tick = moments[0].tick
                if (
                    tick.modes
                    and (awake or not all(_first_of_all(m) for m in moments))
                    and not loop.has("train")
                    and not loop.has("opaque")
                    and all(_trained(m) for m in moments)
                ):
                    yield self.finding_at(
                        event,
                        tick.where,
                        f"{tick.name}.eval() is called in the loop that trains it, and {tick.name}.train() is not: "
                        f"from the second turn on its {tick.modes} is off",
                        fix="call model.train() at the beginning of every epoch",
                    )
        for fact in event.of("uncalled train"):
            message = f"`{fact.text}` stands without parentheses: the model stays in eval mode"
            yield self.finding_at(event, fact.where, message, fix=f"write {fact.text}()")


def _names(event: ModesObserved) -> str:
    if not event.examples:
        return ""
    more = ", …" if event.in_eval > len(event.examples) else ""
    return f" ({', '.join(event.examples)}{more})"


def _trained(moment: SourceMoment) -> bool:
    """Steps of the same model's optimizer are in the loop."""
    return moment.repeats and any(t.kind == "step" and t.trains == moment.tick.of for t in moment.path)


def _first_of_all(moment: SourceMoment) -> bool:
    """No step comes before eval() in the turn: the model never trains in train mode, which is another defect."""
    first = next(t for t in moment.path if t.kind in ("eval", "step"))
    return first.kind == "eval"
