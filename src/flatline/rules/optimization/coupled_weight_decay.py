"""O6."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flatline.events import LayerNumbers, NumbersSampled, OptimizerCreated, SourceParsed
from flatline.findings import Finding
from flatline.rules import Rule


class CoupledWeightDecay(Rule):
    """Weight decay goes through Adam's preconditioner, or shrinks norms and biases.

    Symptom
    -------
    ``weight_decay`` on Adam barely regularises, or hurts; the same number that works in an AdamW recipe ruins the
    run. Gains of normalisation layers drift towards 0.

    Root cause
    ----------
    ``torch.optim.Adam`` adds ``weight_decay * w`` to the gradient, and divides it by the running second moment
    with the rest: weights with large gradients are decayed less, those with small gradients are driven to zero by
    sign. AdamW applies the decay to the weight itself. And tensors with one dimension (biases, norm gains) have
    nothing to overfit with; decay only harms them.

    Fix
    ---
    Use AdamW, in two groups: ``weight_decay=0`` for tensors with fewer than two dimensions.

    Example
    -------
    ::

        optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)

    Use instead
    -----------
    ::

        decay = [p for p in model.parameters() if p.dim() >= 2]
        rest = [p for p in model.parameters() if p.dim() < 2]
        optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}])

    Healthy look-alikes
    -------------------
    SGD with L2; AdamW; published recipes that use Adam with a small L2 term (graph networks with 5e-4): a hint only.

    References
    ----------
    - https://arxiv.org/abs/1711.05101
    """

    code = "O6"
    severity = "hint"
    fix = "use torch.optim.AdamW, with weight_decay=0 for biases and norms"
    strong: float = 1e-2  # AdamW's own default: a number that was meant for decoupled decay
    share: float = 0.5  # of the gradient: from here on the decay steers most tensors
    samples: int = 3  # sampled steps that agree

    brings_about = ("W2", "C2", "C3", "C5")  # as a warning

    def __init__(self) -> None:
        self._dominated: dict[int, int] = {}

    def on_optimizer_created(self, event: OptimizerCreated) -> Iterator[Finding]:
        """Told as a hint: coupled decay, and decay on one-dimensional tensors."""
        groups = [group for group in event.optimizer.groups if group.weight_decay > 0]
        if not groups:
            return
        known = not event.optimizer.own  # what the user's own step does with the decay is not
        if event.optimizer.adaptive and not event.optimizer.decoupled and known:
            decay = max(group.weight_decay for group in groups)
            yield self.finding(
                event,
                f"{event.optimizer.name}(weight_decay={decay:g}) is coupled to the gradient",
                cause=_why(event.optimizer.name),
                key="coupled",
                weight_decay=decay,
            )
        small = sum(group.small_tensors for group in groups)
        if small and event.optimizer.adaptive:
            yield self.finding(
                event,
                f"weight decay is applied to {small} biases and norm tensors",
                cause="gains and biases have nothing to overfit with; decay pulls them towards 0",
                key="small",
                tensors=small,
            )

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """A warning when the decay is as large as the gradients that it is mixed with."""
        optimizer = event.optimizer
        if not optimizer.adaptive or optimizer.decoupled or optimizer.own:
            return
        layers = [n for n in event.layers if n.matrix and n.weight_decay >= self.strong and n.gradient_rms > 0]
        ruled = [n for n in layers if _decay_share(n) >= self.share]
        if not layers or len(ruled) * 2 < len(layers):
            self._dominated[optimizer.key] = 0
            return
        self._dominated[optimizer.key] = self._dominated.get(optimizer.key, 0) + 1
        if self._dominated[optimizer.key] == self.samples:
            worst = max(ruled, key=_decay_share)
            found = self.finding(
                event,
                f"{optimizer.name}(weight_decay={worst.weight_decay:g}): the decay term is {_decay_share(worst):.2g} × the "
                f"loss's gradient in {worst.name}, and over {self.share:g} × in {len(ruled)} of {len(layers)} weight matrices",
                severity="warning",
                cause=_why(optimizer.name),
                where=optimizer.where,
                key="dominates",
                weight_decay=worst.weight_decay,
                ratio=_decay_share(worst),
            )
            yield replace(found, consequences=self.brings_about)

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """The same hint, from the call that builds the optimizer."""
        for fact in event.of("coupled"):
            yield self.finding_at(
                event,
                fact.where,
                f"{fact.name}(weight_decay={fact.text}) is coupled to the gradient",
                cause=_why(fact.name),
            )


def _why(name: str) -> str:
    return f"{name} divides the decay by the running gradient scale, so its strength no longer follows weight_decay"


def _decay_share(layer: LayerNumbers) -> float:
    """The decay's part of the mixed gradient, over the loss's part."""
    return layer.weight_decay * layer.weight_rms / layer.gradient_rms
