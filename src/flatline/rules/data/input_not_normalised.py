"""D3."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flatline.events import ForwardObserved
from flatline.findings import Finding
from flatline.rules import Rule


class InputNotNormalised(Rule):
    """Raw numbers in the hundreds and thousands reach the first layer.

    Symptom
    -------
    The loss starts far too high or stays flat; sigmoids and tanhs are saturated from the first step, ReLUs die.
    Only absurdly small learning rates keep the run alive.

    Root cause
    ----------
    Initialisation and learning rates are made for inputs of about zero mean and unit variance. Inputs in the
    thousands make activations and gradients in the thousands.

    Fix
    ---
    Subtract the mean and divide by the standard deviation of the training set, per channel or per column.

    Example
    -------
    ::

        x = torch.from_numpy(scan).float()            # 0 … 4095

    Use instead
    -----------
    ::

        x = (torch.from_numpy(scan).float() - mean) / std

    Healthy look-alikes
    -------------------
    Images of 0 to 255, which have an rms of 130 to 150 and never more than 255; a model that begins with a
    normalisation layer, or whose first layer is followed by one; token ids, which are no numbers to a network.

    References
    ----------
    - LeCun, Bottou, Orr and Müller, Efficient BackProp, 1998
    - https://cs231n.github.io/neural-networks-2/
    """

    code = "D3"
    severity = "warning"
    cause = (
        "initialisation and learning rates are made for inputs of mean 0 and deviation 1; "
        "these saturate or explode the first layer"
    )
    consequences = ("O25", "G1", "G2", "C2", "C3", "C5", "W3", "W4", "W6")

    rms: float = 256.0  # an 8-bit image cannot reach it
    steps_needed: int = 3  # in a row

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str], set[int]] = {}

    def on_forward_observed(self, event: ForwardObserved) -> Iterator[Finding]:
        """The numbers that reach the first layer with weights."""
        layer = event.first_layer
        if layer is None:
            return
        key = event.model, layer.layer
        if layer.normalised_next or not self.rms < layer.rms < math.inf:
            self._steps.pop(key, None)
            return
        steps = self._steps.setdefault(key, set())
        steps.add(event.step)
        if len(steps) < self.steps_needed:
            return
        yield self.finding(
            event,
            f"the input of {layer.layer} ({layer.kind}), the first layer, ranges from {layer.low:.4g} to "
            f"{layer.high:.4g}, rms {layer.rms:.3g}, and no normalisation follows",
            fix="scale it: x = (x - mean) / std, with mean and std of the training set per channel or column "
            "(transforms.Normalize, StandardScaler), or begin the model with a BatchNorm layer",
            layer=layer.layer,
            rms=layer.rms,
            low=layer.low,
            high=layer.high,
        )
