"""W4."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flatline.events import ActivationsSampled, FirstCrossEntropy, LayerActivations, NumbersSampled, RunEnded
from flatline.findings import Finding
from flatline.rules import Rule


class InitialLossOff(Rule):
    """The first loss of a classifier is far above ln(classes).

    Symptom
    -------
    The initial loss is far too high: 15 or 40 at the first step, where it should be about 2.3 for ten classes. It falls
    steeply for a while, which looks like progress, then goes on from where it should have begun; early gradients are
    large.

    Root cause
    ----------
    An untrained network knows nothing, so every class should get about the same score and the loss should be
    ln(classes). Scores that are spread over tens at the start make confident, wrong predictions. Their spread is
    the size of what reaches the output layer, times the rms of its weight, times √fan_in: a weight drawn from
    N(0, 1), or shared with an nn.Embedding that keeps its N(0, 1), makes it √fan_in.

    Fix
    ---
    Keep nn.Linear's own initialisation for the output layer, or draw its weight with std=0.02 and set its bias to 0.
    For a shared embedding: nn.init.normal_(embedding.weight, std=0.02).

    Example
    -------
    ::

        nn.init.normal_(head.weight)                  # std 1

    Use instead
    -----------
    ::

        nn.init.normal_(head.weight, std=0.02)

    Healthy look-alikes
    -------------------
    Weights that were loaded; a loss that is a sum or is weighted, smoothed or masked (the mean cross entropy of the
    scored targets is compared, whatever was made of it); scores divided by a temperature or multiplied by the scale of
    a cosine classifier; products of two embeddings, as in contrastive learning; a head that starts at zero.

    References
    ----------
    - https://karpathy.github.io/2019/04/25/recipe/ (verify loss at init)
    - https://cs231n.github.io/neural-networks-3/#sanitycheck
    """

    code = "W4"
    severity = "warning"
    each_training = True
    trial_dependent = True
    cause = (
        "the scores are spread widely before anything was learned, so the network starts out sure of wrong answers "
        "and has to unlearn them first"
    )
    fix = "keep nn.Linear's own initialisation for the output layer, or nn.init.normal_(head.weight, std=0.02)"

    ratio: float = 3.0  # first loss over ln(classes); random text under a trained language model stays below 2
    mild_ratio: float = 1.5  # measured: default initialisations stay within 1.1
    spread: float = 3.0  # of the scores of a row; at 1 the loss is half a nat above ln(classes)
    gain: float = 3.0  # of the weight; torch's default has 0.58, Xavier 1, Kaiming 1.4
    enlarged: float = 2.0  # a constant behind the layer that is to blame where its weight is as usual
    targets_needed: int = 8  # fewer may be hard by chance
    steps_needed: int = 50  # of a run that never came down; a default initialisation comes down within some dozen
    never: float = 100.0  # last loss over ln(classes); an 8-bit image under a default layer begins at 65
    above: float = 1.2  # the same, of one that began at ``never``: worse than to give all classes equal scores
    late: int = 200  # steps after which that is judged
    same: float = 0.05  # relative distance of the run's first loss from the cross entropy: it is that, and no sum

    def __init__(self) -> None:
        self._layers: dict[str, LayerActivations] = {}
        self._high: FirstCrossEntropy | None = None  # far too high, and not by the output layer's doing
        self._lowest = math.inf

    def on_activations_sampled(self, event: ActivationsSampled) -> None:
        """Mean and deviation of the scores at the start, for the evidence."""
        if event.untrained:
            self._layers.update((layer.layer, layer) for layer in event.layers)

    def on_first_cross_entropy(self, event: FirstCrossEntropy) -> Iterator[Finding]:
        """The mean cross entropy before the first step, against that of equal scores."""
        equal = math.log(max(2, event.classes))
        if event.targets < self.targets_needed or not (math.isfinite(event.value) and math.isfinite(event.spread)):
            return
        if event.value < self.mild_ratio * equal or event.spread < 1.0:
            return
        proven = event.value >= self.ratio * equal and event.spread >= self.spread and self._own_doing(event)
        if event.value >= self.ratio * equal and event.spread >= self.spread and not proven:
            self._high = self._high or event
        scores = self._layers.get(event.layer)
        yield self.finding(
            event,
            f"the first cross entropy is {event.value:.3g}, where {event.classes} classes with equal scores give "
            f"ln {event.classes} = {equal:.3g}: the scores of a row have std {event.spread:.3g} before the first step",
            severity="warning" if proven else "hint",
            cause=self._cause(event),
            fix=self._fix(event),
            first_loss=event.value,
            expected=round(equal, 4),
            classes=event.classes,
            scores_std=event.spread,
            scores_mean=scores.mean if scores else None,
            layer=event.layer,
            gain=round(event.gain, 4),
            input_rms=event.input_rms,
        )

    def on_numbers_sampled(self, event: NumbersSampled) -> None:
        """The lowest loss that was seen."""
        if event.loss is not None:
            self._lowest = min(self._lowest, event.loss)

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """It began far above the loss of equal scores, whoever's doing that was, and never once got down to it."""
        high = self._high
        if high is None or event.loss is None or event.first_loss is None or event.step < self.steps_needed:
            return
        equal = math.log(max(2, high.classes))
        that_one = abs(event.first_loss - high.value) <= self.same * high.value
        never = event.loss >= self.never * equal and equal < self._lowest < math.inf
        far = high.value >= self.never * equal and event.loss >= self.above * equal and event.step >= self.late
        if that_one and (never or far):
            yield self.finding(
                event,
                f"the cross entropy began at {high.value:.3g} and is still {event.loss:.3g} after {event.step} steps, "
                f"{'never as low as' if never else 'above'} "
                f"ln {high.classes} = {equal:.3g}, which equal scores for all {high.classes} classes give",
                where=high.where,
                cause=self._cause(high) + self._depth(),
                fix="put a normalisation layer (nn.LayerNorm) between the layers; take means instead of sums over neighbours or "
                "elements, divide by √(terms), scale the inputs to mean 0 and deviation 1",
                key="never",
                first_loss=high.value,
                loss=event.loss,
                expected=round(equal, 4),
                classes=high.classes,
                scores_std=high.spread,
                input_rms=high.input_rms,
            )

    def _depth(self) -> str:
        """Where along the network the numbers grew."""
        layers = [each for each in self._layers.values() if each.weighted]
        if len(layers) < 2:
            return ""
        return (
            f"; outputs have std {layers[0].std:.2g} at {layers[0].layer}, {layers[-1].std:.2g} at {layers[-1].layer}"
        )

    def _own_doing(self, event: FirstCrossEntropy) -> bool:
        """The output layer's weight or bias makes most of the spread, and not what reaches the layer."""
        return event.gain >= self.gain or event.bias_std >= 0.7 * event.spread

    def _cause(self, event: FirstCrossEntropy) -> str:
        layer = event.layer or "the output layer"
        if event.factor >= self.enlarged and event.gain / event.factor < self.gain:
            return f"what {layer} gives is multiplied by {event.factor:.3g} before the softmax"
        if event.bias_std >= 0.7 * event.spread:
            return f"the bias of {layer} is spread with std {event.bias_std:.3g} before the first step"
        if event.gain >= self.gain:
            times = f", and they are multiplied by {event.factor:.3g} besides" if event.factor >= self.enlarged else ""
            shared = f", shared with the embedding {event.tied}," if event.tied else ""
            return (
                f"the weight of {layer}{shared} has std {event.weight_std:.3g} with {event.fan_in} inputs, so its outputs "
                f"are {event.gain / event.factor:.3g} times as large as its inputs; 1/√{event.fan_in} = "
                f"{event.fan_in**-0.5:.2g} keeps them" + times
            )
        size = f"rms {event.input_rms:.3g}" if event.input_rms is not None else "large numbers"
        return f"what reaches {layer} has {size}, and its weight (gain {event.gain:.2g}) passes that on"

    def _fix(self, event: FirstCrossEntropy) -> str:
        if event.factor >= self.enlarged and event.gain / event.factor < self.gain:
            return "leave that factor out; a temperature is for features and weights that are both brought to length 1"
        if event.bias_std >= 0.7 * event.spread:
            return f"start the bias of {event.layer or 'the output layer'} at 0: nn.init.zeros_(bias)"
        if event.gain < self.gain:
            return "scale the inputs to mean 0 and deviation 1, or put a normalisation layer before the output layer"
        if event.tied:
            return f"draw the embedding's weight ({event.tied}) with nn.init.normal_(weight, std=0.02) before training"
        return f"keep nn.Linear's own initialisation for {event.layer or 'it'}, or nn.init.normal_(weight, std=0.02)"
