"""O3."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import (
    BackwardStarted,
    OutputsUnused,
    ParametersAudited,
    ScriptCrashed,
    SourceParsed,
    WeightsSevered,
    beside,
)
from flatline.findings import Finding
from flatline.rules import Rule


class LossDetached(Rule):
    """The loss, or a part of the model, is cut off from the graph.

    Symptom
    -------
    The loss is flat from the first step and every ``p.grad`` is None; or the last layers learn and the first ones
    never move; or ``backward()`` raises "element 0 of tensors does not require grad and does not have a grad_fn".

    Root cause
    ----------
    Something between the parameters and the loss ends the graph: ``torch.no_grad()`` around the forward pass,
    ``.item()``, ``.detach()``, ``.data``, ``.numpy()``, ``float()``, an integer cast, or a tensor built anew from
    numbers. Setting ``requires_grad`` on the result silences the error and trains nothing.

    Fix
    ---
    Call ``backward()`` on the tensor that the loss function returned; log ``loss.item()`` beside it. Keep
    ``no_grad`` for validation. Take ``detach`` out of the forward pass.

    Example
    -------
    ::

        loss = torch.tensor(criterion(model(x), y).item(), requires_grad=True)
        loss.backward()

    Use instead
    -----------
    ::

        loss = criterion(model(x), y)
        loss.backward()

    Healthy look-alikes
    -------------------
    Stop-gradients on purpose: targets in BYOL and DQN, the discriminator's step of a GAN, logging ``.item()``.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/notes/autograd.html
    """

    code = "O3"
    severity = "error"
    cause = "the graph between the parameters and the loss is cut"
    fix = "call backward() on the tensor that the loss function returned, and keep .item() for logging"
    consequences = ("O2", "O4", "O7", "C2", "C10")

    idle: int = 5  # steps in a row, of those before the stage ends: one may be a warm-up of some other kind

    def __init__(self) -> None:
        self._leaf = False  # backward ran on a leaf: the reason that no optimizer gets a gradient

    def on_backward_started(self, event: BackwardStarted) -> Iterator[Finding]:
        """backward() on a leaf that was told to require a gradient, or on a graph without parameters."""
        if event.is_leaf and not event.has_graph and event.optimizer_parameters:
            self._leaf = True
            hint = f" ({event.source_hint} at line {event.hint_where.line})" if event.hint_where else ""
            yield self.finding(
                event,
                f"backward() was called on a tensor that was not computed from any parameter{hint}: "
                f"0 of {event.optimizer_parameters} tensors of the optimizers get a gradient",
                cause="requires_grad was set on a number that had lost its graph; that makes backward() run, and train nothing",
                key="leaf",
                reached=0,
                severing_call=event.source_hint or None,
            )

    def on_outputs_unused(self, event: OutputsUnused) -> Iterator[Finding]:
        """The loss is made of something else: the parameters learn from a penalty on themselves, at best."""
        if event.steps < self.idle:
            return
        names = ", ".join(event.models)
        yield self.finding(
            event,
            f"what {names} returned reached the loss at none of {event.steps} steps: no gradient came back to it",
            cause="the loss is computed from other tensors, or from the output after it lost its graph; "
            "what moves the parameters is a term that does not look at the data",
            fix=f"compute the loss from what {names} returned for this batch",
            key="unused",
            steps=event.steps,
        )

    def on_weights_severed(self, event: WeightsSevered) -> Iterator[Finding]:
        """Layers that the output hangs on, whose own results have a graph; and no gradient finds its way back to the data."""
        if event.steps < self.idle:
            return
        names = ", ".join(event.parts[:3]) + (" …" if len(event.parts) > 3 else "")
        yield self.finding(
            event,
            f"the output of {event.model} changes with the weights of {names}, and no gradient came to any of their "
            f"{event.tensors} tensors in {event.steps} steps, though an optimizer holds them",
            severity="warning",
            cause="between these layers and the output the graph ends, on every way from the data: argmax, rounding, "
            "an integer cast or detach",
            fix="let the gradient through (softmax, a straight-through estimate: hard + soft - soft.detach()), "
            "or freeze these layers if it is meant",
            key="severed",
            tensors=event.tensors,
            steps=event.steps,
        )

    def on_parameters_audited(self, event: ParametersAudited) -> Iterator[Finding]:
        """Layers that ran, whose output reached the next layer without its gradient."""
        cut = [p for p in event.parameters if p.trainable and not p.reached and p.optimizers and p.cut and not p.moved]
        if event.opaque or not all(optimizer.seen for optimizer in event.optimizers):
            return
        if not cut:
            found = list(self._whole_optimizers(event))
            yield from found or self._whole_models(event)
            return
        total = sum(bool(p.optimizers) for p in event.parameters)
        yield self.finding(
            event,
            f"{len(cut)} of {total} parameters in the optimizer are never reached by the loss "
            f"(first {cut[0].name}): the gradient ends {cut[0].cut}",
            cause=f"the forward pass cuts the graph {cut[0].cut} (detach, .data, numpy, an integer cast or no_grad)",
            severity="error" if all(p.cut_proven for p in cut) else "warning",
            fix=f"take out what cuts the graph {cut[0].cut}; freeze these layers with requires_grad_(False) if it is meant",
            where=event.backward_where,
            key="cut",
            unreached=len(cut),
            total=total,
            cut=cut[0].cut,
        )

    def _whole_optimizers(self, event: ParametersAudited) -> Iterator[Finding]:
        """An optimizer whose model runs, and none of whose parameters any loss reaches."""
        for optimizer in event.optimizers:
            mine = [p for p in event.parameters if optimizer.key in p.optimizers and p.trainable]
            if (
                optimizer.steps < 2
                or not optimizer.seen
                or not mine
                or any(p.reached or p.moved or not p.ran for p in mine)
            ):
                continue
            yield self.finding(
                event,
                f"{optimizer.name} made {optimizer.steps} steps without a gradient: none of its {len(mine)} parameters is "
                f"reached by any loss (first {mine[0].name})",
                cause="its model runs, but the output is detached before it reaches a loss",
                fix="take detach() out of the path from this model to its own loss; detach only for the other one's step",
                where=optimizer.where,
                key="leaf" if self._leaf else f"optimizer {optimizer.key}",
                unreached=len(mine),
            )

    def _whole_models(self, event: ParametersAudited) -> Iterator[Finding]:
        """A model that runs with gradients on, beside another that learns: both in one optimizer, one without a gradient."""
        stepped = {optimizer.key for optimizer in event.optimizers if optimizer.steps >= 2}
        held = [p for p in event.parameters if p.trainable and stepped.intersection(p.optimizers)]
        learning = {key for p in held if p.reached for key in p.optimizers}
        for model in dict.fromkeys(p.model for p in held):
            mine = [p for p in held if p.model == model]
            if any(p.reached or p.moved or not p.ran or learning.isdisjoint(p.optimizers) for p in mine):
                continue
            yield self.finding(
                event,
                f"{model} runs at every step, and no loss reaches any of its {len(mine)} parameters in the optimizer "
                f"(first {mine[0].name})",
                severity="warning",
                cause="what it returns loses its graph before the loss: detach, .data, numpy, tolist or an integer cast",
                fix="take out what cuts the graph between the two models; leave the parameters out of the optimizer if it is meant",
                where=event.backward_where,
                key=f"model {model}",
                unreached=len(mine),
            )

    def on_script_crashed(self, event: ScriptCrashed) -> Iterator[Finding]:
        """The error that autograd raises for a loss without a graph."""
        if "does not require grad and does not have a grad_fn" not in event.message:
            return
        message, cause, fix = self._crash(event)
        yield self.finding(event, message, cause=cause, fix=fix, key="crash", severing_call=event.source_hint or None)

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """backward() on what item(), detach() or tensor() returned."""
        for fact in event.of("severed"):
            yield self.finding_at(
                event,
                fact.where,
                f"backward() is called on a number without a graph: {fact.text}{beside(fact.other, fact.where)} cut it",
                cause="a choice is a whole number or a truth value, and has no gradient"
                if fact.name == "chosen"
                else "",
                fix="give the loss the scores themselves, and choose only for the accuracy"
                if fact.name == "chosen"
                else "",
                severing_call=fact.text,
            )
        for fact in event.of("cut layer"):
            switched = "grad" in fact.text or "inference" in fact.text
            how = "computed without gradients" if switched else "detached"
            yield self.finding_at(
                event,
                fact.where,
                f"every result of {fact.name} is {how}{beside(fact.other, fact.where)}: the optimizer holds it, and no "
                "gradient reaches it",
                severity="warning",
                cause="nothing is recorded under no_grad, so no gradient comes back to what was computed there"
                if switched
                else "detach() returns the numbers without their graph; no gradient comes back to what computed them",
                fix=f"drop the {'no_grad' if switched else 'detach()'}, or freeze the layers and leave them out of the optimizer",
                severing_call=fact.text,
            )
        for fact in event.of("unrecorded term"):
            yield self.finding_at(
                event,
                fact.where,
                f"a term of the loss, {fact.name}, is computed under {fact.text}{beside(fact.other, fact.where)}: it has no "
                "gradient, and only the other terms train",
                severity="warning",
                cause="nothing is recorded under no_grad, so the term moves the loss that is shown, and trains nothing",
                fix="compute the term with gradients, and keep no_grad for validation",
                severing_call=fact.text,
            )
        for fact in event.of("cut term"):
            yield self.finding_at(
                event,
                fact.where,
                f"a term of the loss is a number: {fact.text} cut it, and backward(){beside(fact.other, fact.where)} "
                "has no gradient from it",
                severity="warning",
                cause="a number moves the loss that is shown, and trains nothing",
                fix="add the tensor itself, and take the number only for the log",
                severing_call=fact.text,
            )

    def _crash(self, event: ScriptCrashed) -> tuple[str, str, str]:
        said = "backward() was called on a loss without a graph"
        if event.all_frozen:
            fix = "set requires_grad_(True) on the layers that shall learn"
            return said, "every parameter of the model has requires_grad=False", fix
        if event.hint_where is not None and not event.source_hint.startswith("with"):
            line = event.hint_where.line
            return f"{said}: {event.source_hint} at line {line} cut it", self.cause, self.fix
        without = event.forward_without_grad
        if event.hint_where is not None or without is not None:
            line = event.hint_where.line if event.hint_where is not None else without.line if without else 0
            cause = "the forward pass ran with gradients switched off, so nothing was recorded"
            return f"{said}: gradients were off at line {line}", cause, "run the training forward outside of no_grad()"
        return said, self.cause, self.fix
