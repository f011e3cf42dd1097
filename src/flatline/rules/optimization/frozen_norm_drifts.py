"""O18."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import ParametersAudited, SourceParsed, beside
from flatline.findings import Finding
from flatline.rules import Rule


class FrozenNormDrifts(Rule):
    """Frozen BatchNorm layers go on changing their running statistics.

    Symptom
    -------
    A backbone is frozen, yet validation is unstable, and the same input gives other features from day to day.

    Root cause
    ----------
    ``requires_grad=False`` stops the learning of scale and shift. The running mean and variance are buffers that
    every forward pass in train mode overwrites with the statistics of the new, often small, batches.

    Fix
    ---
    Put frozen BatchNorm layers in eval mode after every ``model.train()``.

    Example
    -------
    ::

        model.backbone.requires_grad_(False)
        model.train()

    Use instead
    -----------
    ::

        model.backbone.requires_grad_(False)
        model.train()
        model.backbone.eval()

    Healthy look-alikes
    -------------------
    Norms in eval mode; ``track_running_stats=False``; averaged copies (MoCo, BYOL), which follow another network;
    the discriminator of a GAN, frozen for the generator's step alone.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html
    """

    code = "O18"
    severity = "warning"
    consequences = ("C4",)
    cause = "train mode overwrites running_mean and running_var at every forward, whatever requires_grad says"
    fix = "call .eval() on the frozen BatchNorm layers after every model.train()"
    drift: float = 1e-3  # smallest relative change of the running statistics that counts as one

    def on_parameters_audited(self, event: ParametersAudited) -> Iterator[Finding]:
        """Affine weights frozen from the start, statistics that moved."""
        learning = any(p.optimizers and p.trainable and p.reached for p in event.parameters)
        other = any(p.trainable and p.optimizers and not p.norm for p in event.parameters)
        layers = [
            n for n in event.norms if n.frozen and n.training and n.ran and not n.copied and n.drifted > self.drift
        ]
        if not layers or not learning or not other:
            return
        worst = max(layers, key=lambda layer: layer.drifted)
        yield self.finding(
            event,
            f"{len(layers)} frozen BatchNorm layers run in train mode; {worst.statistic} of {worst.name} moved by "
            f"{worst.drifted:.0%} in {event.step} steps",
            where=event.backward_where,
            layers=len(layers),
            drift=worst.drifted,
            layer=worst.name,
        )

    def on_source_parsed(self, event: SourceParsed) -> Iterator[Finding]:
        """A frozen trunk with BatchNorm, and train() on the model around it in every epoch."""
        for fact in event.of("drifting norms"):
            yield self.finding_at(
                event,
                fact.where,
                f"{fact.text} puts the BatchNorm layers of {fact.name} into train mode, whose parameters are frozen"
                f"{beside(fact.other, fact.where)}",
            )
