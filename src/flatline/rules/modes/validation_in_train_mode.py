"""E1."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from flatline.events import SourceParsed, ValidationObserved
from flatline.findings import Finding, Severity
from flatline.rules import Rule

RECALIBRATION = re.compile(r"(^|_)(bn|batch_?norms?|re?calibrat\w*|precise)(_|$)")


class ValidationInTrainMode(Rule):
    """A validation pass runs while Dropout and BatchNorm are in train mode.

    Symptom
    -------
    The validation loss flickers from run to run and looks worse than the training loss. The same weights give
    another accuracy each time. After validation the model may even be a little worse than before.

    Root cause
    ----------
    ``torch.no_grad()`` switches off gradients, not Dropout and BatchNorm: these follow ``module.training``.
    In train mode Dropout drops units of the very predictions that are scored, and BatchNorm normalises with
    the validation batch and mixes its statistics into the running ones.

    Fix
    ---
    Call ``model.eval()`` before the validation pass and ``model.train()`` after it.

    Example
    -------
    ::

        with torch.no_grad():
            for x, y in val_loader:
                correct += (model(x).argmax(1) == y).sum()

    Use instead
    -----------
    ::

        model.eval()
        with torch.no_grad():
            for x, y in val_loader:
                correct += (model(x).argmax(1) == y).sum()
        model.train()

    Healthy look-alikes
    -------------------
    Monte-Carlo dropout runs the same input many times. EMA teachers and momentum encoders are copies that no
    optimizer holds. A generator is run by its discriminator's step. BatchNorm statistics are recomputed in train
    mode on purpose. A look at what the model makes of its own training data. Pseudo-labels, self-conditioning and
    the like run one or two forwards without gradients at every step.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval
    - https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation
    """

    code = "E1"
    severity = "error"
    consequences = ("C4",)
    cause = "no_grad does not touch Dropout and BatchNorm: they follow train() and eval(), and eval() was not called"
    fix = "call model.eval() before the validation pass and model.train() after it"

    long_pass: int = 3  # forwards on a foreign loader that make a pass at once; pseudo-labelling takes one or two
    with_gradients: int = 4  # the same where gradients are on; triplets take three forwards for one backward
    rare: int = 5  # steps between single forwards that come in a fixed rhythm; self-conditioning comes every other step

    def __init__(self) -> None:
        self._models: dict[str, _Passes] = {}

    def on_validation_observed(self, event: ValidationObserved) -> Iterator[Finding]:
        """A forward without a backward, with layers in train mode."""
        passes = self._models.setdefault(event.model, _Passes())
        passes.add(event)
        if passes.monte_carlo or not _at_fault(event):
            return
        severity = self._verdict(event, passes)
        if severity is None:
            return
        yield self.finding(
            event,
            f"{event.model} ran {_seen(event)} after step {event.step}: "
            f"{event.sensitive} Dropout and BatchNorm layers active{_names(event)}",
            severity=severity,
            model=event.model,
            active_layers=event.sensitive,
            forwards=event.forwards,
            passes=len(passes.steps),
            gradients=event.grad_enabled,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """A pass without gradients, scored against labels, in a source that never calls eval()."""
        for fact in event.of("validated"):
            yield self.finding_at(
                event,
                fact.where,
                f"{fact.text} is scored without gradients in train mode: no eval() comes before it, and it has a {fact.name}",
            )
        for fact in event.of("uncalled eval"):
            message = f"`{fact.text}` stands without parentheses: the model stays in train mode"
            yield self.finding_at(event, fact.where, message, fix=f"write {fact.text}()")

    def _verdict(self, event: ValidationObserved, passes: _Passes) -> Severity | None:
        again = len(passes.foreign) >= 2
        if event.grad_enabled:
            enough = event.other_loader and event.forwards >= self.with_gradients and again
            return "warning" if enough else None
        if event.other_loader:
            return "error" if again or event.forwards >= self.long_pass else None
        if passes.evaluated:
            return None  # it is validated in eval mode elsewhere: this forward is something else
        if event.forwards >= 2:
            return "error" if passes.gap >= 2 else None
        return "warning" if passes.same_tensor() or passes.rhythm(self.rare) else None


def _at_fault(event: ValidationObserved) -> bool:
    """In train mode, with layers that mind, and not for a reason that is known to be good."""
    if not event.training or not event.sensitive or event.averaged or event.adversarial or event.recalibrated:
        return False
    if event.own_data and not event.other_loader:
        return False
    return event.where is None or not RECALIBRATION.search(event.where.function.lower())


def _seen(event: ValidationObserved) -> str:
    many = f"{event.forwards} forwards in a row" if event.forwards > 1 else "a validation forward"
    gradients = "" if event.grad_enabled else " and without gradients"
    source = ", on batches of a loader that it never trains on," if event.other_loader else ""
    return f"{many} in train mode{gradients}{source}"


def _names(event: ValidationObserved) -> str:
    if not event.examples:
        return ""
    more = ", …" if event.sensitive > len(event.examples) else ""
    return f" ({', '.join(event.examples)}{more})"


class _Passes:
    """The passes of one model so far, in train mode; the last one may still be going on."""

    def __init__(self) -> None:
        self.steps: list[int] = []  # after which each pass came
        self.foreign: set[int] = set()  # those on batches of a loader that is never trained on
        self.forwards: list[int] = []
        self.same: list[bool] = []  # it began with the very tensor of the pass before
        self.gap = 0  # steps between the last pass and the one before
        self.monte_carlo = False
        self.evaluated = False

    def add(self, event: ValidationObserved) -> None:
        if not event.training:
            self.evaluated = True
            return
        self.monte_carlo = self.monte_carlo or (event.same_input and event.forwards >= 2)
        if event.other_loader:
            self.foreign.add(event.step)
        if not self.steps or event.step != self.steps[-1]:
            self.gap = event.step - (self.steps[-1] if self.steps else 0)
            self.steps.append(event.step)
            self.forwards.append(event.forwards)
            self.same.append(event.same_input)
        else:
            self.forwards[-1] = max(self.forwards[-1], event.forwards)

    def same_tensor(self) -> bool:
        """Two finished passes were one forward each, on one tensor: a validation set in one piece."""
        return len(self.steps) >= 3 and self.same[-2] and max(self.forwards[:-1]) == 1

    def rhythm(self, rare: int) -> bool:
        """Three finished passes of one forward, always the same number of steps apart."""
        gaps = {later - earlier for earlier, later in pairwise(self.steps)}
        return len(self.steps) >= 4 and len(gaps) == 1 and min(gaps) >= rare and max(self.forwards[:-1]) == 1
