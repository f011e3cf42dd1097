"""F1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flatline.events import (
    BodyNeverTrained,
    FlagOnModule,
    LossesRead,
    RunEnded,
    SourceParsed,
    StageNotReached,
    UnfrozenNotHeld,
    line_of,
)
from flatline.findings import Finding, Severity
from flatline.history import Course, fmean
from flatline.rules import Rule


class FrozenLayersForgotten(Rule):
    """The stage that would unfreeze the pretrained layers is never reached, or unfreezes nothing.

    Symptom
    -------
    Fine-tuning ends where linear probing would: the head learned what it could from fixed features, and no more.

    Root cause
    ----------
    The layers are frozen at the start, and unfrozen under a condition on the epoch. The loop ends before the
    condition is true, often since the number of epochs was lowered, or since epochs are counted from 0. Or the stage sets
    ``requires_grad`` on a module: modules have no such attribute, so it is made, and no parameter changes. Or it waits for
    an accuracy of 30 where accuracy is a share, for a count of samples where batches are counted, for an epoch that
    is counted by too large a number of steps, or stands in a method of a callback that the trainer never calls. Or it goes
    over ``parameters()`` in a variable, an iterator that the loop which froze the layers has used up. Or it unfreezes
    layers that the optimizer was never given, as where it was built from what was trainable at the start. Or the layers
    were never pretrained: nothing was loaded into the body, and the head learns from random features.

    Fix
    ---
    Let the stage begin within the run: ``if epoch == epochs // 2``. Give the layers to the optimizer then. For a
    module, call ``requires_grad_(True)``, with the underscore.

    Example
    -------
    ::

        for epoch in range(10):
            if epoch == 10:
                model.body.requires_grad_(True)

    Use instead
    -----------
    ::

        for epoch in range(10):
            if epoch == 5:
                model.body.requires_grad_(True)
                optimizer.add_param_group({"params": model.body.parameters(), "lr": 1e-5})

    Healthy look-alikes
    -------------------
    Linear probing and adapters, which have no such stage; a stage that is switched off by a setting (a hint); gradual
    unfreezing; layers that a later optimizer gets, or that are trained by hand; frozen teachers and feature extractors; a
    run that was stopped early; a class of the user's with a setting of that name. Random features on purpose, which
    are shallow, or good enough for the loss to come down; random targets beside the model that trains.

    References
    ----------
    - https://arxiv.org/abs/1801.06146
    """

    code = "F1"
    severity = "warning"
    cause = "the loop is over before the condition is true"
    consequences = ("O7", "C2", "O28", "O21", "O18")
    named: int = 4  # words and parts that are told
    unlearned: float = 0.5  # of the first loss that is left, under a head that was replaced or above norms as built
    certain: float = 0.8  # the same where neither shows that the body was meant to be pretrained
    run: int = 100  # steps of a run whose end says so
    most: float = 0.5  # share of the elements that are frozen: less, and the model trains all the same

    def __init__(self) -> None:
        self._courses: dict[int, Course] = {}
        self._random: list[BodyNeverTrained] = []

    def on_losses_read(self, event: LossesRead) -> None:
        """The loss of every step."""
        self._courses.setdefault(event.optimizer.key, Course()).extend(event.losses, event.rates)

    def on_body_never_trained(self, event: BodyNeverTrained) -> None:
        """Judged when it is known what the head learned."""
        self._random.append(event)

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """The head learned next to nothing from features that nobody ever trained."""
        for found in self._random if event.how == "finished" else ():
            course = self._courses.get(found.optimizer.key, Course())
            if course.steps < self.run:
                continue
            losses = [each.loss for each in course.stretches]
            first, last = fmean(losses[: len(losses) // 10 or 1]), fmean(losses[-len(losses) // 5 :])
            meant = (found.norms or found.replaced) and len(self._courses) == 1  # random features may be a baseline
            if last >= (self.unlearned if meant else self.certain) * first > 0:
                yield self._never_trained(found, first, last, severity="error" if meant else "hint")

    def _never_trained(self, event: BodyNeverTrained, first: float, last: float, *, severity: Severity) -> Finding:
        share = event.frozen / (event.frozen + event.trainable)
        finding = self.finding(
            event,
            f"{share:.1%} of {event.model} is frozen with the random weights it was built with ({event.matrices} matrices, "
            f"{event.frozen:,} elements): nothing was loaded, nothing trained it, and the head of {event.trainable:,} "
            f"elements brought the loss from {first:.4g} to {last:.4g}",
            severity=severity,
            cause="layers are frozen to keep what a pretraining taught them, and these were never pretrained",
            fix="load the pretrained weights before they are frozen; with none to load, do not freeze them",
            key="never trained",
            frozen=event.frozen,
            trainable=event.trainable,
        )
        return replace(finding, consequences=(*self.consequences, "C1", "C3", "C4", "C5", "O22"))

    def on_stage_not_reached(self, event: StageNotReached) -> Iterator[Finding]:
        """Most of the model is frozen at the end, though the script means to unfreeze."""
        total = event.frozen + event.trainable
        if not total or event.frozen < self.most * total:
            return
        still = f"{event.frozen / total:.1%} of {total:,} weights are still frozen at the end: the unfreezing"
        if event.why:
            yield self._missed(event, still)
            return
        asked = ", ".join(map(repr, event.words[: self.named]))
        parts = ", ".join(event.parts[: self.named]) + (", …" if len(event.parts) > self.named else "")
        yield self.finding(
            event,
            f"{still} asks for {event.condition}, with {asked}, and no parameter has such a name: the parts are {parts}"
            if event.words
            else f"{still} waits for {event.condition}, and the loop ended at {event.last}",
            severity="warning" if event.written else "hint",
            cause="the names of the model are others, and a condition that is true of none unfreezes nothing, silently"
            if event.words
            else self.cause,
            fix=f"compare with the names that print([n for n, _ in model.named_parameters()]) shows, in place of {asked}"
            if event.words
            else "let the stage begin within the run, or delete it",
            trainable=event.trainable,
            frozen=event.frozen,
        )

    def _missed(self, event: StageNotReached, still: str) -> Finding:
        """A number in another unit, or a method that nothing calls."""
        seen = f"{event.low:.4g} to {event.high:.4g} was seen"
        said, cause, fix = {
            "percent": (
                f"waits for {event.condition}, where {seen}",
                "what is compared is a share between 0 and 1, and the number is in per cent",
                "give the number as a share, such as 0.3 for 30 %",
            ),
            "samples": (
                f"waits for {event.condition}, where {event.low:,.0f} to {event.high:,.0f} was counted, one for each step",
                "the number is reached where samples or micro-batches are counted, and what is counted are steps",
                "count in the unit of the number, or give the number in steps",
            ),
            "rounds": (
                f"waits for {event.condition}, and {event.counted} came to {event.high:,.0f}, while the loop went round "
                f"{event.low:,.0f} times",
                "what is taken for the number of the round is not advanced by each round",
                "take the number from the loop itself: for epoch in range(epochs), and hand epoch on",
            ),
            "uncalled": (
                f"stands in {event.condition}, which nothing calls",
                "the loop calls other methods: one that it does not know by name is passed over silently",
                "give the method the name that the loop calls, and let unknown names raise",
            ),
            "exhausted": (
                f"goes over {event.condition}, which is {event.counted}, made once and gone through in line {event.last}: "
                "nothing is left in it",
                "an iterator can be gone through once; a second loop over it does nothing, silently",
                f"keep a list: {event.condition} = list({event.counted}), or ask for the parameters again",
            ),
        }[event.why]
        return self.finding(
            event, f"{still} {said}", cause=cause, fix=fix, trainable=event.trainable, frozen=event.frozen
        )

    def on_unfrozen_not_held(self, event: UnfrozenNotHeld) -> Iterator[Finding]:
        """``requires_grad`` alone moves nothing."""
        share = event.elements / max(1, event.elements + event.held)
        more = f", … {len(event.names) - self.named} more" if len(event.names) > self.named else ""
        yield self.finding(
            event,
            f"{len(event.names)} tensors ({event.elements:,} elements) were unfrozen {event.steps} steps ago, after "
            f"{event.frozen_for} frozen ones, and no optimizer holds them: gradients arrive, and they are what they were "
            f"({', '.join(event.names[: self.named])}{more})",
            severity="error" if share >= self.most else "warning",
            cause="the optimizer was built from what was trainable then; requires_grad gives a tensor gradients, and puts it "
            "into no optimizer",
            fix='optimizer.add_param_group({"params": ..., "lr": ...}) where they are unfrozen, or build a new optimizer there',
            key="not held",
            elements=event.elements,
            held=event.held,
        )

    def on_flag_on_module(self, event: FlagOnModule) -> Iterator[Finding]:
        """An attribute where a method was meant."""
        state = "stay frozen" if event.flag else "go on training"
        yield self.finding(
            event,
            f"{event.module}.requires_grad = {event.flag} makes an attribute of the module, and changes no parameter: its "
            f"{event.tensors} tensors ({event.elements:,} weights) {state}",
            cause="requires_grad belongs to tensors; a module takes any attribute, and nobody reads this one",
            fix=f"{event.module}.requires_grad_({event.flag}), with the underscore",
            key=line_of(event.where) or event.module,
            module=event.module,
            tensors=event.tensors,
            elements=event.elements,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """The same, as the source shows it."""
        for fact in event.of("flag on module"):
            state = "stay frozen" if fact.text == "True" else "go on training"
            yield self.finding_at(
                event,
                fact.where,
                f"{fact.name}.requires_grad = {fact.text} makes an attribute of the module, and changes no parameter: all of "
                f"them {state}",
                cause="requires_grad belongs to tensors; a module takes any attribute, and nobody reads this one",
                fix=f"{fact.name}.requires_grad_({fact.text}), with the underscore",
            )
