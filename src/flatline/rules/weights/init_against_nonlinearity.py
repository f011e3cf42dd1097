"""W6."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from flatline.events import ActivationsSampled, LayerActivations, RunEnded, WavesStacked
from flatline.findings import Finding
from flatline.history import median
from flatline.rules import Rule

SCHEMES = {
    "ReLU": (math.sqrt(2), "nn.init.kaiming_normal_(layer.weight, nonlinearity='relu')"),
    "LeakyReLU": (math.sqrt(2), "nn.init.kaiming_normal_(layer.weight, a=slope, nonlinearity='leaky_relu')"),
    "GELU": (math.sqrt(2), "nn.init.kaiming_normal_(layer.weight, nonlinearity='relu')"),
    "SiLU": (math.sqrt(2), "nn.init.kaiming_normal_(layer.weight, nonlinearity='relu')"),
    "Tanh": (1.0, "nn.init.xavier_normal_(layer.weight, gain=nn.init.calculate_gain('tanh'))"),
    "Sigmoid": (1.0, "nn.init.xavier_normal_(layer.weight)"),
    "SELU": (1.0, "nn.init.kaiming_normal_(layer.weight, nonlinearity='linear')"),
}


class InitAgainstNonlinearity(Rule):
    """Weights start far larger or smaller than their activation function wants them.

    Symptom
    -------
    The first epochs are slow, or the loss starts high and falls steeply; the same network learns at once with the
    initialisation of the framework.

    Root cause
    ----------
    A layer passes on the size of what it is given if the rms of its weight times √fan_in fits its
    activation function: √2 for ReLU, about 1 for tanh and sigmoid. A fixed std such as 0.01 or 1 fits one width only.
    Stacked sine layers want phases of a deviation of about 1: where phases spread over whole turns, every layer scatters
    neighbouring inputs, and what comes out is noise to the next one.

    Fix
    ---
    nn.init.kaiming_normal_ before ReLU and its kin, nn.init.xavier_normal_ before tanh and sigmoid; or the default of
    nn.Linear and nn.Conv2d, which is close enough. For sin(w0 * layer(x)) behind another sine: uniform in ±√(6 / fan_in) / w0.

    Example
    -------
    ::

        nn.init.normal_(layer.weight, std=0.01)
        x = torch.relu(layer(x))

    Use instead
    -----------
    ::

        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    Healthy look-alikes
    -------------------
    torch's default initialisation; normalised networks, where std=0.02 is usual and the size does not matter; output
    layers, which may start small; loaded weights. The first of several sine layers and random Fourier features, which read
    coordinates, and whose phases are wide on purpose. Sines that tell a few codes apart, and learn them all.

    References
    ----------
    - https://docs.pytorch.org/docs/stable/nn.init.html
    - He, Zhang, Ren and Sun, Delving Deep into Rectifiers, https://arxiv.org/abs/1502.01852
    - Sitzmann and others, Implicit Neural Representations with Periodic Activation Functions, https://arxiv.org/abs/2006.09661
    """

    code = "W6"
    severity = "hint"
    trial_dependent = True

    high: float = 3.0  # times what the activation function wants; Kaiming before tanh is 1.4
    low: float = 0.25  # of it; torch's default before ReLU is 0.41
    layers_needed: int = 3  # of one activation function; two cannot do much harm
    sines_needed: int = 2  # behind another one; a single wide layer can still be fitted
    learned: float = 0.15  # of the first loss: under it the sines did no harm, as where they tell a few codes apart
    turn: float = 2 * math.pi  # deviation of the phases of a sine; SIREN's own initialisation makes about 1

    def __init__(self) -> None:
        self._waves: WavesStacked | None = None

    def on_activations_sampled(self, event: ActivationsSampled) -> Iterator[Finding]:
        """Layers right before an activation function, in a network without normalisation."""
        if not event.untrained or any("Norm" in layer.kind for layer in event.layers):
            return
        before: dict[str, list[LayerActivations]] = {}
        for layer, after in pairwise(event.layers):
            if layer.gain is not None and after.kind in SCHEMES:
                before.setdefault(after.kind, []).append(layer)
        for kind, layers in before.items():
            if len(layers) >= self.layers_needed:
                yield from self._judge(event, kind, layers)

    def on_waves_stacked(self, event: WavesStacked) -> None:
        """Phases that spread over whole turns in every sine layer that reads another one."""
        if len(event.phases) >= self.sines_needed and min(event.phases) >= self.turn:
            self._waves = event

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """Sines that hash a few codes learn them by heart; all others stay far from their targets."""
        learned = event.loss is not None and event.loss < self.learned * (event.first_loss or 0.0)
        if self._waves is not None and not learned and event.how == "finished":
            yield self._of_waves(self._waves)

    def _of_waves(self, event: WavesStacked) -> Finding:
        phases, count = median(event.phases), len(event.phases)
        return self.finding(
            event,
            f"the phases of {count} sine layers behind another sine have a deviation of {phases:.3g} at the "
            f"start: {phases / math.pi:.2g} half turns; they want about 1",
            severity="warning",
            cause="where phases spread over whole turns, neighbouring inputs come out anywhere between -1 and 1: noise, to the "
            "layers behind",
            fix="initialise layers behind a sine with `nn.init.uniform_(layer.weight, -b, b)`, where b = sqrt(6 / fan_in) / w0 and "
            "w0 is the factor in the sine; only the first layer begins at ±1 / fan_in",
            key="waves",
            phases=round(phases, 4),
            layers=count,
        )

    def _judge(self, event: ActivationsSampled, kind: str, layers: list[LayerActivations]) -> Iterator[Finding]:
        wanted, fix = SCHEMES[kind]
        gain = median(layer.gain for layer in layers if layer.gain is not None)
        if self.low * wanted <= gain <= self.high * wanted:
            return
        fan_in = int(median(layer.fan_in for layer in layers))
        yield self.finding(
            event,
            f"the weights of {len(layers)} layers before {kind} ({layers[0].layer} …) have an rms of about "
            f"{gain / math.sqrt(fan_in):.2g} with {fan_in} inputs; {kind} wants {wanted / math.sqrt(fan_in):.2g}",
            cause=f"each of them multiplies the size of its input by {gain:.2g}, where {wanted:.2g} keeps it through {kind}",
            fix=fix,
            gain=round(gain, 4),
            wanted=round(wanted, 4),
            layers=len(layers),
        )
