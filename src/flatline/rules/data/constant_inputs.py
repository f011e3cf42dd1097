"""D1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flatline.events import InputsObserved, LossComputed
from flatline.findings import Finding
from flatline.rules import Rule

WORDS = 2  # one for every word, and one that fills up


class ConstantInputs(Rule):
    """Every sample that the model is given is the same.

    Symptom
    -------
    The loss falls to that of the commonest answer (the labels' entropy, the targets' variance) and stays there, whatever
    the model and the learning rate.

    Root cause
    ----------
    The numbers were lost on the way: a buffer that is allocated and never filled, an integer division that leaves zeros, a
    crop outside the image, a transform that overwrites its input, the mean over the wrong axis. Or ``__getitem__`` returns one
    buffer that it fills anew each time: a batch is made of as many views of its last content.

    Fix
    ---
    Look at a batch: ``x.std(0)`` must not be 0. Then follow it back through the transforms to the file. Return a copy of what
    is written to again.

    Example
    -------
    ::

        images = (raw.int() // 256).float()      # all zeros

    Use instead
    -----------
    ::

        images = raw.float() / 255

    Healthy look-alikes
    -------------------
    A network that learns one picture from one fixed noise; token ids that all begin with the same one; a policy with a single
    state; a second model, or a second argument, through which the data come; a batch of one; a state that is repeated by hand
    for several actions.

    References
    ----------
    - https://karpathy.github.io/2019/04/25/recipe/
    """

    code = "D1"
    severity = "warning"
    each_training = True
    cause = (
        "the inputs lost their content before they reached the model: it can learn no more than the mean of the targets"
    )
    fix = "check `x.std(0)` of a batch and follow it back through the transforms to the file"
    consequences = ("D5", "D7", "O28", "O25", "C2", "C3", "C5")

    steps_needed: int = 6  # close looks; one empty batch may be an accident
    rows_needed: int = 4  # equal samples in a batch; two may be augmented copies
    places_needed: int = 4  # of a sequence, and as many ids of each; a decoder begins with one
    ids_needed: int = 16  # rows of an embedding of which one is asked for; bits and genotypes have 2 to 5
    words_needed: int = 100  # the same where another fills up: then the length may be all that counts

    def __init__(self) -> None:
        self._steps: set[int] = set()
        self._contents: set[tuple[str, int]] = set()
        self._spoilt = self._varied = False
        self._last: InputsObserved | None = None
        self._ids: dict[str, set[int]] = {}  # that a model was ever asked for
        self._worded: set[int] = set()  # steps at which they were seen

    def on_inputs_observed(self, event: InputsObserved) -> None:
        """Keep in mind whether anything that any model was given has ever varied."""
        self._contents.add((event.model, event.content))
        constant = event.equal_rows and event.floating and event.content and event.rows >= self.rows_needed
        self._varied = self._varied or not constant or not event.own_items
        self._spoilt = self._spoilt or not constant or len(self._contents) > 1
        self._steps.add(event.step)
        self._last = event
        needed = self.ids_needed if len(event.ids) == 1 else self.words_needed
        few = event.ids if event.vocabulary >= needed and event.features >= self.places_needed else ()
        self._ids.setdefault(event.model, set()).update(few or (-1, -2, -3))
        self._worded |= {event.step} if few and event.rows >= self.rows_needed else set()

    def on_loss_computed(self, event: LossComputed) -> Iterator[Finding]:
        """Targets that vary, where the inputs do not."""
        low, high, seen = event.target.low, event.target.high, self._last
        varied = low is not None and high is not None and high > low
        if seen is None or len(self._steps) < self.steps_needed or not varied or event.reduction != "mean":
            return
        steps = len(self._steps)
        told = (
            f"every one of the {seen.rows} samples of a batch equal to the others, while its targets range from {low:.4g} "
            f"to {high:.4g}"
        )
        if (ids := self._of_one_word(seen)) and steps == len(self._worded):
            yield self._told(
                event,
                seen,
                f"of the {seen.vocabulary:,} rows of its embedding, {seen.model} was asked for {ids} in all {steps} steps looked "
                f"at, {seen.rows} sequences of {seen.features} each, while the targets range from {low:.4g} to {high:.4g}",
                cause="every word became the same id, as unknown ones do: the texts are empty before they reach the model",
                fix="look up some words by hand: the table must go from words to ids, and be built with the same tokenizer",
            )
        elif not self._spoilt:
            yield self._told(
                event, seen, f"{seen.model} was given the same numbers in all {steps} steps looked at, {told}"
            )
        elif not self._varied:
            yield self._told(
                event,
                seen,
                f"in all {steps} steps looked at, the loader gave {seen.model} one sample many times over: {told}",
                severity="error",
                cause="__getitem__ returns one tensor that it writes to again, so that all samples of a batch are its last content",
                fix="return a copy: `return self.buffer.clone(), label`, or make a new tensor for each sample",
            )

    def _of_one_word(self, seen: InputsObserved) -> str:
        """The one id that all texts consist of, and the one that fills them up; '' if there are more."""
        ids = sorted(self._ids.get(seen.model, ()))
        return " and ".join(map(str, ids)) if len(self._ids) == 1 and 0 < len(ids) <= WORDS and min(ids) >= 0 else ""

    def _told(self, event: LossComputed, seen: InputsObserved, message: str, **how: Any) -> Finding:
        return self.finding(event, message, rows=seen.rows, features=seen.features, steps=len(self._steps), **how)
