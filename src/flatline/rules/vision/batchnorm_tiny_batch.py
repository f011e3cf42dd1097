"""V7."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import ActivationsSampled, LayerActivations
from flatline.findings import Finding
from flatline.rules import Rule


class BatchnormTinyBatch(Rule):
    """BatchNorm takes its statistics from two numbers per channel.

    Symptom
    -------
    Training is unstable or stays far behind a run with larger batches; in eval mode, which uses the running
    averages, results are quite different from those in training.

    Root cause
    ----------
    BatchNorm subtracts the mean of the batch and divides by its deviation. Of two numbers nothing is left but
    which one is larger: the output is +1 and -1 for any input. Accumulating gradients does not help, as every
    micro-batch is normalised by itself.

    Fix
    ---
    Use a normalisation within the sample: nn.GroupNorm or nn.LayerNorm. Or larger batches, torch.nn.SyncBatchNorm
    when training on several devices, or frozen statistics (module.eval()) in a pretrained network.

    Example
    -------
    ::

        loader = DataLoader(data, batch_size=2)
        net = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU())

    Use instead
    -----------
    ::

        net = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.ReLU())

    Healthy look-alikes
    -------------------
    Two large images, whose pixels are many numbers per channel (a hint at most); the small last batch of an epoch;
    BatchNorm in eval mode; SyncBatchNorm; GroupNorm, LayerNorm and InstanceNorm; one pooled branch of a large network.

    References
    ----------
    - Wu and He, Group Normalization, https://arxiv.org/abs/1803.08494
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
    """

    code = "V7"
    severity = "warning"
    cause = (
        "of two numbers, less their mean and divided by their deviation, only the signs are left: what the layer "
        "passes on does not depend on how far the samples differ"
    )
    fix = (
        "nn.GroupNorm(8, channels) or nn.LayerNorm in place of BatchNorm; or a larger batch, SyncBatchNorm on several devices, "
        "or BatchNorm in eval mode if the network is pretrained"
    )
    consequences = ("O7", "C2", "C3", "C5", "C6")

    values_at_most: int = 2  # exact: two numbers become -1 and +1
    items_at_most: int = 2  # samples per device; Wu and He: 10 points of ImageNet error lost at 2
    steps_needed: int = 4  # observed, none with a larger batch: a ragged last batch is one step
    share: float = 0.5  # of the BatchNorm layers; a pooled branch is one of many

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}

    def on_activations_sampled(self, event: ActivationsSampled) -> Iterator[Finding]:
        """What each BatchNorm layer took its statistics from."""
        norms = [layer for layer in event.layers if layer.values is not None and layer.items > 0]
        tiny = [layer for layer in norms if layer.items <= self.items_at_most]
        if not tiny:
            self._steps[event.model] = -self.steps_needed if norms else 0
            return
        self._steps[event.model] = self._steps.get(event.model, 0) + 1
        if self._steps[event.model] < self.steps_needed:
            return
        empty = [layer for layer in tiny if (layer.values or 0) <= self.values_at_most]
        proven = len(empty) >= self.share * len(norms)
        yield self._tell(event, empty if proven else tiny, proven)

    def _tell(self, event: ActivationsSampled, layers: list[LayerActivations], proven: bool) -> Finding:
        first = min(layers, key=lambda layer: layer.values or 0)
        others = f" ({len(layers)} such layers)" if len(layers) > 1 else ""
        return self.finding(
            event,
            f"{first.layer} ({first.kind}) normalises each channel by {first.values} numbers from {first.items} "
            f"sample{'s' if first.items > 1 else ''}, in {self._steps[event.model]} steps looked at{others}",
            severity="warning" if proven else "hint",
            cause=self.cause
            if proven
            else "statistics of so few samples are noise, and the running averages follow it",
            layer=first.layer,
            values=first.values,
            items=first.items,
            layers=len(layers),
        )
