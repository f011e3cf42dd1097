"""G2."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from flatline.events import LayerNumbers, NumbersSampled
from flatline.findings import Finding
from flatline.rules import Rule


class VanishingGradient(Rule):
    """Gradients die out layer by layer on the way to the input.

    Symptom
    -------
    The loss falls a little and stays near chance. The last layers move, the first ones keep their initial values,
    so that the network learns on random features.

    Root cause
    ----------
    Backward multiplies by every layer's derivative. A sigmoid's is at most 1/4, that of a saturated tanh is near
    0, and weights that start too small shrink it further: after ten such layers nothing is left.

    Fix
    ---
    Let the gradient pass: ReLU or GELU instead of sigmoid, residual connections, a normalisation layer between
    the layers, an initialisation that fits the activation (Kaiming for ReLU, Xavier for tanh).

    Example
    -------
    ::

        for _ in range(10):
            layers += [nn.Linear(64, 64), nn.Sigmoid()]

    Use instead
    -----------
    ::

        for _ in range(10):
            layers += [nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()]

    Healthy look-alikes
    -------------------
    Gradients that are exactly zero belong to frozen or dead layers, or to the first step of LoRA. A single tensor
    with a small gradient, such as an embedding of which few rows were used, is no decay over depth.

    References
    ----------
    - Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, 2010
    - https://docs.pytorch.org/docs/stable/nn.init.html
    """

    code = "G2"
    severity = "warning"
    cause = (
        "backward multiplies by each layer's derivative (at most 1/4 for a sigmoid, near 0 for a saturated tanh), "
        "so the gradient shrinks with every layer on its way to the input"
    )
    fix = (
        "replace sigmoid or tanh between the layers by ReLU and draw the weights with nn.init.kaiming_normal_ (the "
        "default initialisation fades under ReLU, too), or put LayerNorm and ReLU in every layer; residual connections"
    )
    consequences = ("O22", "C2", "C3", "C5")

    layers_needed: int = 5  # fewer layers say nothing about depth
    floor: float = 1e-5  # first over last; healthy networks stay within two or three orders of magnitude
    steps_needed: int = 3  # sampled steps in a row
    rising: float = 0.75  # share of neighbours where the deeper layer has the larger gradient
    largest_jump: float = 0.6  # share of the whole decay that one pair of neighbours may make up

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """The gradient of each weight matrix, in order of depth."""
        layers = [each for each in event.layers if each.matrix and each.depth >= 0 and _positive(each.gradient_rms)]
        key = event.optimizer.key
        self._seen[key] = self._seen.get(key, 0) + 1 if self._decays(layers) else 0
        if self._seen[key] < self.steps_needed:
            return
        first, last = layers[0], layers[-1]
        yield self.finding(
            event,
            f"the gradient fades with depth: rms {first.gradient_rms:.2g} at {first.name or 'the first layer'} against "
            f"{last.gradient_rms:.2g} at {last.name or 'the last layer'}, over {len(layers)} weight matrices "
            f"({(first.gradient_rms / last.gradient_rms) ** (1 / (len(layers) - 1)):.2g} × per layer)",
            first=first.gradient_rms,
            last=last.gradient_rms,
            ratio=first.gradient_rms / last.gradient_rms,
            layers=len(layers),
        )

    def _decays(self, layers: list[LayerNumbers]) -> bool:
        """Small at the first layer, and by many small losses along the depth."""
        if len(layers) < self.layers_needed or layers[0].gradient_rms / layers[-1].gradient_rms >= self.floor:
            return False
        logs = [math.log10(layer.gradient_rms) for layer in layers]
        jumps = [later - earlier for earlier, later in pairwise(logs)]
        gradual = max(jumps) <= self.largest_jump * (logs[-1] - logs[0])
        return gradual and sum(jump > 0 for jump in jumps) >= self.rising * len(jumps)


def _positive(number: float) -> bool:
    return 0.0 < number < math.inf
