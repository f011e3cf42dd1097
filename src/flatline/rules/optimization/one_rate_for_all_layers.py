"""O19."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from flatline.events import NumbersSampled, ParametersAudited
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule


class OneRateForAllLayers(Rule):
    """Pretrained layers and a fresh head share one learning rate, and it rewrites the pretrained ones.

    Symptom
    -------
    Fine-tuning the whole model is worse than training the head on frozen features; the loss jumps up in the first
    steps and never comes below that of a fresh model.

    Root cause
    ----------
    The head is random and needs large steps. The gradients that it sends down in its first steps are noise, and at
    the same rate they overwrite features that were learned on far more data.

    Fix
    ---
    Two parameter groups, the pretrained one at a tenth of the head's rate or less, and a warm-up; or train the head
    alone first.

    Example
    -------
    ::

        model.load_state_dict(pretrained, strict=False)   # the head is new
        optimizer = AdamW(model.parameters(), lr=1e-2)

    Use instead
    -----------
    ::

        optimizer = AdamW([
            {"params": model.body.parameters(), "lr": 1e-5},
            {"params": model.head.parameters(), "lr": 1e-3},
        ])

    Healthy look-alikes
    -------------------
    Groups with rates of their own; a body that moves less than half of its own size (a hint), or as far under
    BatchNorm; one small rate for all layers, as for BERT; training from scratch, or on from a checkpoint that has
    every layer; a frozen body.

    References
    ----------
    - https://arxiv.org/abs/1801.06146
    """

    code = "O19"
    severity = "warning"
    cause = "the fresh head's first gradients are noise, and the body follows them at the head's rate"
    early: int = 5  # steps in which a pretrained layer should hardly move
    far: float = 0.4  # sizes of its own that a body layer travels in them: measured, docs/thresholds.md
    far_normed: float = 1.0  # the same under BatchNorm, which gives back the size of what it is given
    noticeable: float = 0.1  # the same, told as a hint; usual fine-tuning is at 1e-3 to 1e-2 a step (CS231n)
    leap: float = 1.5  # highest loss of those steps over the first one
    all_too_fast: float = 3.0  # from here on the rate is too high for any layer, which is O28
    body: float = 0.6  # share of the elements that came from the checkpoint

    def __init__(self) -> None:
        self._loaded: dict[str, bool] = {}  # name of each trained matrix -> from a checkpoint
        self._worst: dict[int, float] = defaultdict(float)  # loss in the first steps of an optimizer
        self._path: dict[tuple[int, str], float] = defaultdict(float)

    def on_parameters_audited(self, event: ParametersAudited) -> None:
        """Which weights came from a checkpoint, or from training before."""
        for p in event.parameters:
            if p.trainable and p.optimizers and len(p.shape) >= 2 and not p.norm:
                self._loaded[p.name] = p.loaded or p.trained_before

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """How far the pretrained weights travelled in the first steps."""
        key = event.optimizer.key
        if event.index > self.early:
            return
        self._worst[key] = max(self._worst[key], event.loss or 0.0)
        for layer in event.layers:
            self._path[key, layer.name] += layer.update_ratio or 0.0
        matrices = [layer for layer in event.layers if layer.matrix and layer.name in self._loaded]
        body = [layer for layer in matrices if self._loaded[layer.name]]
        head = [layer for layer in matrices if not self._loaded[layer.name]]
        if event.index < self.early or len(body) < 2 or not head or len({m.learning_rate for m in matrices}) > 1:
            return
        share = sum(layer.elements for layer in body) / sum(layer.elements for layer in matrices)
        path = median(self._path[key, layer.name] for layer in body)
        if share < self.body or not self.noticeable <= path < self.all_too_fast:
            return
        normed = any("BatchNorm" in layer.kind for layer in event.layers)
        far = self.far_normed if normed else self.far
        rate, first = head[0].learning_rate, event.first_loss or 0.0
        leapt = 0 < self.leap * first <= self._worst[key]
        jump = f"; the loss leapt from {first:.3g} to {self._worst[key]:.3g}" if leapt else ""
        yield self.finding(
            event,
            f"{len(body)} pretrained weight matrices moved by {path:.0%} of their own size in {self.early} steps, at the "
            f"rate of {rate:g} that they share with the fresh {head[0].name}{jump}",
            severity="warning" if path >= far else "hint",
            fix=f"give the pretrained layers a group of their own, with lr={rate / 10:g} or less",
            where=event.optimizer.where,
            key=str(key),
            moved=path,
            lr=rate,
        )
