"""O2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatline.events import ParameterFacts, ParametersAudited, SourceParsed, beside
from flatline.findings import Finding
from flatline.rules import Rule


class ParameterNotInOptimizer(Rule):
    """Trainable parameters that the loss reaches are in no optimizer, or the optimizer holds others.

    Symptom
    -------
    The loss is flat from the first step, or falls to a poor level; weights of a layer are byte for byte the same
    after ``step()``, though gradients arrive.

    Root cause
    ----------
    The optimizer updates another set of tensors than the model runs with: a head was replaced, or layers were
    added, after the optimizer was built; modules stand in a plain list, so that ``model.parameters()`` does not
    find them; a submodule was never passed; the optimizer holds a copy of the model; or nearly everything that
    it holds has ``requires_grad=False``.

    Fix
    ---
    Build the optimizer last, from the model that trains, after ``.to(device)``, head surgery and unfreezing. Keep
    submodules in ``nn.ModuleList``. What shall not learn gets ``requires_grad_(False)``.

    Example
    -------
    ::

        optimizer = torch.optim.AdamW(model.parameters())
        model.head = nn.Linear(512, 10)

    Use instead
    -----------
    ::

        model.head = nn.Linear(512, 10)
        optimizer = torch.optim.AdamW(model.parameters())

    Healthy look-alikes
    -------------------
    GANs and other loops with several optimizers; frozen teachers and averaged copies; manual updates; a network in
    eval mode, or loaded from a checkpoint, through which a loss only passes.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/optim.html#constructing-it
    """

    code = "O2"
    severity = "error"
    cause = "the optimizer updates another set of tensors than the model runs with"
    fix = "build the optimizer after the model is complete, from its own parameters()"
    consequences = ("O7", "C2", "O6", "C6")
    late: int = 12  # steps after the first empty look; more than asynchronous workers are usually behind
    mostly: float = 0.5  # share of the tensors without a use whose shapes come back in those that nobody holds

    def __init__(self) -> None:
        self._hollow = 0  # step since which an optimizer found no gradients

    def on_parameters_audited(self, event: ParametersAudited) -> Iterator[Finding]:
        """Left-out parameters, optimizers of something else, optimizers of frozen tensors."""
        if not event.optimizers:
            return
        twins, hollow = self._are_twins(event), self._lasts(event)
        replaced = [p for p in event.parameters if twins and (hollow or p.after_optimizer)]
        left_out = [p for p in event.parameters if self._left_out(p) and (not p.loaded or p in replaced)]
        seen = hollow or all(o.seen for o in event.optimizers if o.key not in event.idle)
        given = hollow and twins and any(not p.gradient_zero for p in left_out)  # there was something to get
        stale = left_out and seen and event.held and (event.stale == event.held or given)
        if stale and any(self._written_to(p) and not (p.loaded and hollow) for p in event.parameters):
            return  # master weights, whose steps bfloat16 rounds away for some
        if stale:
            yield self._stale(event, left_out)
        elif left_out and any(p.optimizers and p.reached for p in event.parameters):
            yield self._forgotten(event, left_out)
        else:
            yield from self._nearly_all_frozen(event)

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """Layers that come too late for the optimizer, and layers that no module registers."""
        for fact in event.of("rebound"):
            line = fact.other.line if fact.other else 0
            yield self.finding_at(
                event,
                fact.where,
                f"`{fact.text}` makes new parameters after {fact.name} was built from the old ones (line {line})",
            )
        for fact in event.of("orphan"):
            stale = "; the optimizer holds what it is a copy of" if fact.text else ""
            yield self.finding_at(
                event,
                fact.where,
                f"the loss goes through {fact.name}{beside(fact.other, fact.where)}, and "
                f"its parameters are given to no optimizer{stale}",
                severity="warning",
                fix="hand the parameters of everything that is to learn to an optimizer, or freeze them",
            )
        for fact in (*event.of("plain list"), *event.of("plain dict")):
            plain, held = ("list", "ModuleList([...])") if fact.kind == "plain list" else ("dict", "ModuleDict({...})")
            yield self.finding_at(
                event,
                fact.where,
                f"self.{fact.name} is a plain {plain}: the parameters of {fact.text} are not in parameters()",
                cause="a module registers modules, nn.ModuleList and nn.ModuleDict; what stands in a Python list or dict is not "
                "trained, moved or saved",
                fix=f"self.{fact.name} = nn.{held}",
            )

    def _lasts(self, event: ParametersAudited) -> bool:
        """Gradients may arrive some steps late, from other workers."""
        self._hollow = (self._hollow or event.step) if event.hollow else 0
        return event.hollow and event.step >= self._hollow + self.late

    def _left_out(self, p: ParameterFacts) -> bool:
        wanted = p.trainable and p.reached and not p.optimizers and p.has_gradient
        return wanted and not p.moved and p.training

    def _are_twins(self, event: ParametersAudited) -> bool:
        """What the optimizer holds without a use has the shapes of what learns nowhere: another object of the same model."""
        unreached = event.held if event.hollow else event.stale
        return event.twins > 0 and event.twins >= self.mostly * unreached

    def _written_to(self, p: ParameterFacts) -> bool:
        return p.reached and p.moved and not p.optimizers

    def _forgotten(self, event: ParametersAudited, left_out: Sequence[ParameterFacts]) -> Finding:
        new = [p for p in left_out if p.after_optimizer]
        loose = [p for p in left_out if not p.registered]
        plain = [p for p in loose if p.kind == "tensor"]
        why = self.cause
        if plain:
            why = "a tensor with requires_grad=True that is a plain attribute of a module is not found by parameters()"
        elif loose:
            why = "modules kept in a plain list or dict are not found by model.parameters(), so no optimizer got them"
        elif new:
            why = "these layers were made after the optimizer was built, so it cannot hold them"
        sure = bool(new or loose) or any(p.optimizers for p in event.parameters if p.model == left_out[0].model)
        return self.finding(
            event,
            f"{_count(left_out)} that the loss reaches in no optimizer ({_names(left_out)}): "
            f"unchanged after {event.step} steps though gradients arrive",
            severity="error" if sure else "warning",
            cause=why,
            fix=self._fix(new, loose, plain),
            tensors=len(left_out),
            elements=sum(p.numel for p in left_out),
            first=left_out[0].name,
        )

    def _fix(
        self, new: Sequence[ParameterFacts], loose: Sequence[ParameterFacts], plain: Sequence[ParameterFacts]
    ) -> str:
        if plain:
            return f"self.{plain[0].name.rpartition('.')[2]} = nn.Parameter(…)"
        if loose:
            return "keep them in nn.ModuleList / nn.ModuleDict"
        if new:
            return "build the optimizer after the last change of the model, or optimizer.add_param_group({'params': …})"
        return (
            "pass these parameters to the optimizer, or freeze them with requires_grad_(False) if they shall not learn"
        )

    def _stale(self, event: ParametersAudited, left_out: Sequence[ParameterFacts]) -> Finding:
        return self.finding(
            event,
            f"none of the {event.held} tensors in the optimizer is reached by the loss; it trains "
            f"{_count(left_out)} that no optimizer holds ({_names(left_out)})",
            cause="the optimizer holds the tensors of another model object: a copy, or one that was replaced later",
            fix="build the optimizer from the model that is run, after it was copied, replaced or moved",
            held=event.held,
            stale=event.stale,
        )

    def _nearly_all_frozen(self, event: ParametersAudited) -> Iterator[Finding]:
        held = [p for p in event.parameters if p.optimizers]
        frozen = [p for p in held if not p.trainable]
        learning = [p for p in held if p.trainable and p.reached]
        if not learning or not frozen or any(not p.norm for p in learning) or any(p.loaded for p in frozen):
            return
        share = sum(p.numel for p in learning) / sum(p.numel for p in held)
        yield self.finding(
            event,
            f"the optimizer holds {len(held)} tensors, of which {len(frozen)} have requires_grad=False; only "
            f"normalisation layers learn ({share:.1%} of the elements, {_names(learning)})",
            severity="warning",
            cause="all weights are frozen, so step() skips them and nothing but scales and shifts of norms can change",
            fix="set requires_grad_(True) on what shall learn, and pass only that to the optimizer",
            frozen=len(frozen),
            learning=len(learning),
        )


def _count(parameters: Sequence[ParameterFacts]) -> str:
    elements = sum(p.numel for p in parameters)
    noun = "parameter" if len(parameters) == 1 else "parameters"
    return f"{len(parameters)} trainable {noun} ({elements:,} elements)"


def _names(parameters: Sequence[ParameterFacts]) -> str:
    shown = ", ".join(p.name for p in parameters[:3])
    return shown + (f", … {len(parameters) - 3} more" if len(parameters) > 3 else "")
