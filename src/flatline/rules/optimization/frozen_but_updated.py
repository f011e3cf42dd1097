"""O17."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import ParametersAudited, SourceParsed, beside
from flatline.findings import Finding
from flatline.rules import Rule


class FrozenButUpdated(Rule):
    """Frozen parameters keep changing at every step.

    Symptom
    -------
    Layers were frozen, but their weights differ after some steps; pretrained features drift and get worse.

    Root cause
    ----------
    An optimizer skips a parameter when its ``grad`` is None, not when ``requires_grad`` is False. A gradient of
    zeros, or an old one, lets weight decay and momentum go on.

    Fix
    ---
    Leave frozen parameters out of the optimizer, or set their ``grad`` to None.

    Example
    -------
    ::

        optimizer = torch.optim.AdamW(model.parameters())
        …
        model.backbone.requires_grad_(False)
        optimizer.zero_grad(set_to_none=False)

    Use instead
    -----------
    ::

        model.backbone.requires_grad_(False)
        optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)

    Healthy look-alikes
    -------------------
    Frozen parameters that are in the optimizer without a gradient; gradual unfreezing.

    References
    ----------
    - https://discuss.pytorch.org/t/parameters-with-requires-grad-false-are-updated-during-training/90096
    """

    code = "O17"
    severity = "error"
    fix = (
        "freeze before the optimizer is built and pass only p.requires_grad parameters to it; or set p.grad = None where "
        "they are frozen (zero_grad(set_to_none=False) keeps zeros, which decay all the same)"
    )

    def on_parameters_audited(self, event: ParametersAudited) -> Iterator[Finding]:
        """Moved inside a step without a gradient of their own."""
        frozen = [p for p in event.parameters if not p.trainable and p.optimizers and p.moved_frozen]
        held = [p for p in event.parameters if p.trainable and p.gradient_zeroed and p.optimizers and p.moved_at_step]
        held = [p for p in held if p.weight_decay > 0]
        if frozen:
            decay = max(p.weight_decay for p in frozen)
            why = f"weight decay ({decay:g}) and momentum" if decay else "momentum"
            yield self.finding(
                event,
                f"{len(frozen)} parameters with requires_grad=False changed inside step() (first {frozen[0].name})",
                cause=f"their .grad is a tensor, not None, so the optimizer applies {why} to them all the same",
                key="frozen",
                parameters=len(frozen),
                weight_decay=decay,
            )
        elif held:
            yield self.finding(
                event,
                f"the gradients of {len(held)} parameters are zeroed before each step, and weight decay "
                f"({held[0].weight_decay:g}) moves them all the same (first {held[0].name})",
                severity="warning",
                cause="a gradient of zeros still lets the optimizer apply weight decay and momentum",
                key="zeroed",
                parameters=len(held),
                weight_decay=held[0].weight_decay,
            )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """Frozen behind a condition in the loop, while the optimizer keeps gradients of zeros."""
        for fact in event.of("frozen but held"):
            yield self.finding_at(
                event,
                fact.where,
                f"`{fact.text}` in the middle of the training, and the optimizer{beside(fact.other, fact.where)} holds these "
                f"parameters with gradients of zeros: {fact.name} moves them on",
                severity="warning",
                cause="gradients that are zeroed, and not set to None, still let the optimizer step",
            )
