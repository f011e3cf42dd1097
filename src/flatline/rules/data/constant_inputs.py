"""D1."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

from flatline.events import (
    ForwardObserved,
    InputsObserved,
    LayerInput,
    LossComputed,
    LossesRead,
    RunEnded,
    SamplesAlike,
)
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule

WORDS = 2  # one for every word, and one that fills up


class ConstantInputs(Rule):
    """Every sample that the model is given is the same, or all but the same.

    Symptom
    -------
    The loss falls to that of the commonest answer (the labels' entropy, the targets' variance) and stays there, whatever
    the model and the learning rate.

    Root cause
    ----------
    The numbers were lost on the way: a buffer that is allocated and never filled, an integer division that leaves zeros, a
    crop outside the image, a transform that overwrites its input, the mean over the wrong axis, a cast to whole numbers of what
    was scaled to 0 … 1. Or ``__getitem__`` returns one buffer that it fills anew each time: a batch is made of as many views of its
    last content. Or they were made too small: images divided by 255 twice, and then normalised, are all −2.2 but for a
    hundredth.

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
    for several actions. Inputs with a large offset that a first normalisation takes out; empty rows that have one target;
    columns of yes and no; any model that learns.

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

    left: float = 0.85  # of the targets' scatter, under one row: it may be one without an event, or a default profile
    spread: float = 0.01  # between samples, in what they have in common; 8-bit images divided twice have 0.004
    deviations: float = 3.0  # of what a simple rule tells, above the commonest class or no correlation
    probed_needed: int = 150  # samples for that
    raw: float = 2.0  # how far the rms may differ in which the first layer gets them: no centring stands between
    before: int = 12  # losses until the samples were compared, behind the first fall to guessing
    window: int = 32  # the last ones, whose median is compared with theirs
    confirmed: int = 100  # steps after which a model may still begin to learn
    kept: int = 400  # of the first losses
    still: float = 0.9  # of the loss: under it something was learned

    def __init__(self) -> None:
        self._steps: set[int] = set()
        self._contents: set[tuple[str, int]] = set()
        self._spoilt = self._varied = False
        self._last: InputsObserved | None = None
        self._ids: dict[str, set[int]] = {}  # that a model was ever asked for
        self._worded: set[int] = set()  # steps at which they were seen
        self._alike: SamplesAlike | None = None
        self._layer: LayerInput | None = None  # of the newest model whose first layer gets numbers as they are
        self._early: list[tuple[int, float]] = []  # losses
        self._late: deque[float] = deque(maxlen=self.window)
        self._steps_read = 0
        self._optimizers: set[int] = set()

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

    # ------------------------------------------------------------------ all but the same

    def on_forward_observed(self, event: ForwardObserved) -> None:
        """Whether the first layer gets them as they are."""
        self._layer = event.first_layer or self._layer

    def on_samples_alike(self, event: SamplesAlike) -> None:
        """Seen by a model at chance."""
        self._alike = self._alike or event

    def on_losses_read(self, event: LossesRead) -> None:
        """How the loss goes on."""
        self._optimizers.add(event.optimizer.key)
        self._late.extend(event.losses)
        self._steps_read = max(self._steps_read, *event.steps) if event.steps else self._steps_read
        if len(self._early) < self.kept:
            self._early += zip(event.steps, event.losses, strict=True)

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """A model that learned nothing to the end, and was given next to nothing."""
        alike, seen = self._alike, self._last
        varied = self._spoilt and self._varied  # else it was told as equal in all
        if alike is None or seen is None or not varied or not seen.floating or not self._stood_still(alike.step):
            return
        if alike.left >= self.left:
            yield self._one_row(alike)
        elif alike.spread <= self.spread and self._reach_the_first_layer(alike) and self._tells(alike):
            yield self._small(alike, seen.model)

    def _stood_still(self, since: int) -> bool:
        """The one model under one optimizer, whose loss is what it was when the samples were compared."""
        then = [loss for step, loss in self._early if step <= since][-self.before :]
        alone = len(self._optimizers) == 1 == len({model for model, _ in self._contents})
        long = self._steps_read >= since + self.confirmed and len(self._late) == self.window
        return bool(then) and alone and long and median(self._late) >= self.still * median(then)

    def _reach_the_first_layer(self, alike: SamplesAlike) -> bool:
        """As large as they are, and no normalisation follows."""
        layer = self._layer
        near = layer is not None and alike.rms / self.raw <= layer.rms <= alike.rms * self.raw
        return near and layer is not None and not layer.normalised_next

    def _tells(self, alike: SamplesAlike) -> bool:
        """A simple rule does what the model does not, once the inputs are standardised."""
        if alike.probed < self.probed_needed:
            return False
        chance = alike.commonest if alike.labels else 0.0
        error = math.sqrt((chance * (1 - chance) if alike.labels else 2.0) / alike.probed)
        return alike.told > chance + self.deviations * error

    def _one_row(self, alike: SamplesAlike) -> Finding:
        content = f", all {alike.value:.4g}" if alike.value is not None else ""
        return self._lost(
            alike,
            f"{alike.equal:.0%} of the {alike.rows:,} samples looked at are one and the same row of {alike.width:,} numbers"
            f"{content}, and hold {alike.left:.0%} of what the targets vary by, which no model can tell; {self._loss()}",
            cause=f"{self.cause}. An integer division, or a cast to whole numbers of what was scaled to 0 … 1, leaves a few ends "
            "of the range, and one number for all the rest",
            fix="print `x.unique()` before and after each transform: scale in floating point, `x.astype(np.float32) / 255`, and "
            "cast nothing back to the dtype of the file",
        )

    def _small(self, alike: SamplesAlike, model: str) -> Finding:
        right = f"right in {alike.told:.0%}, where the commonest class is {alike.commonest:.0%}"
        rule = right if alike.labels else f"correlated {alike.told:.2f} with the targets"
        unit = "what it is in all of them" if alike.common >= 1 else "one"
        return self._lost(
            alike,
            f"no number that {model} is given varies between samples by more than {100 * alike.spread:.2g} % of {unit} (their rms "
            f"is {alike.rms:.3g}), and no normalisation follows; once they are standardised, a simple rule is {rule}; "
            f"{self._loss()}",
            cause="the inputs are all but constant: beside what they have in common, and beside the biases, their differences are "
            "too small to be learned from",
            fix="scale once: what is in 0 … 1 must not be divided by 255 again, and the mean and std of Normalize must be in the "
            "units of its input; look at `x.mean()` and `x.std(0)` of a batch, which should be near 0 and 1",
        )

    def _loss(self) -> str:
        return f"the loss is {median(self._late):.4g} after {self._steps_read:,} steps, as at the beginning"

    def _lost(self, alike: SamplesAlike, message: str, **how: Any) -> Finding:
        return self.finding(
            alike,
            message,
            rows=alike.rows,
            features=alike.width,
            equal=alike.equal,
            spread=alike.spread,
            **how,
        )
