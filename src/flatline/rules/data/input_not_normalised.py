"""D3."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flatline.events import DeadFacts, ForwardObserved, LayerInput
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
    Images of 0 to 255, which have an rms of 85 to 150 and never more than 255, as long as no ReLU dies of them; a
    model that begins with a normalisation layer, or whose first layer is followed by one, or is a fixed whitening;
    token ids, which are no numbers to a network.

    References
    ----------
    - LeCun, Bottou, Orr and Müller, Efficient BackProp, 1998
    - https://cs231n.github.io/neural-networks-2/
    """

    code = "D3"
    severity = "warning"
    each_training = True
    cause = (
        "initialisation and learning rates are made for inputs of mean 0 and deviation 1; "
        "these saturate or explode the first layer"
    )
    consequences = ("O25", "O28", "G1", "G2", "C2", "C3", "C5", "W3", "W4", "W6")

    rms: float = 256.0  # an 8-bit image cannot reach it
    steps_needed: int = 3  # in a row
    picture: float = 32.0  # rms of an 8-bit image; raw MNIST has 85, a dark one of stars 50
    units_needed: int = 8  # of a layer that died, as for O25
    share: float = 0.9  # of them, the same
    samples_needed: int = 96  # the same
    bias: float = -1.0  # mean of the dead units' biases at first: such a bias kills them at any input

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str], set[int]] = {}
        self._newest: dict[tuple[str, str], LayerInput] = {}
        self._at_first: dict[str, int] = {}  # units of a ReLU that were dead when first seen

    def on_forward_observed(self, event: ForwardObserved) -> Iterator[Finding]:
        """The numbers that reach the first layer with weights; smaller ones where a whole layer of ReLUs died."""
        layer = event.first_layer
        if layer is None:
            yield from self._died(event)
            return
        key = event.model, layer.layer
        self._newest[key] = layer
        if layer.normalised_next or not self.rms < layer.rms < math.inf:
            self._steps.pop(key, None)
            return
        steps = self._steps.setdefault(key, set())
        steps.add(event.step)
        if len(steps) < self.steps_needed:
            return
        yield self._tell(event, layer, "")

    def _died(self, event: ForwardObserved) -> Iterator[Finding]:
        """One model, raw numbers of a picture's size, and a ReLU with next to no living unit."""
        dead = next((facts for facts in event.dead if self._lasts(facts)), None)
        layer = next(iter(self._newest.values())) if len(self._newest) == 1 else None
        if dead is None or layer is None or layer.normalised_next or not self.picture <= layer.rms < math.inf:
            return
        yield self._tell(
            event,
            layer,
            f"; {dead.lasting} of {dead.units} units of the ReLU {dead.layer} are zero on the {dead.total} newest samples",
        )

    def _lasts(self, facts: DeadFacts) -> bool:
        if facts.kind != "ReLU" or not facts.layer or facts.units < self.units_needed:
            return False
        lasting = facts.looks >= self.steps_needed and (facts.total or 0) >= self.samples_needed
        born_so = facts.first_bias is not None and facts.first_bias <= self.bias
        died = facts.units - self._at_first.setdefault(facts.layer, facts.dead)  # a mask of pruning was there before
        some = self.share * facts.units if 2 * died > facts.units else facts.units
        gone = min(facts.lasting or 0, facts.dead) >= some
        return lasting and gone and (facts.total or 0) >= facts.units and not born_so

    def _tell(self, event: ForwardObserved, layer: LayerInput, harm: str) -> Finding:
        return self.finding(
            event,
            f"the input of {layer.layer} ({layer.kind}), the first layer, ranges from {layer.low:.4g} to "
            f"{layer.high:.4g}, rms {layer.rms:.3g}, and no normalisation follows{harm}",
            fix="scale it: x = (x - mean) / std, with mean and std of the training set per channel or column "
            "(transforms.Normalize, StandardScaler), or begin the model with a BatchNorm layer",
            layer=layer.layer,
            rms=layer.rms,
            low=layer.low,
            high=layer.high,
        )
