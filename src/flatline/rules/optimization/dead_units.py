"""O25."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import DeadFacts, ForwardObserved, NumbersSampled
from flatline.findings import Finding
from flatline.rules import Rule

OF_THE_ANSWER = (
    "where this is the model's answer, leave the ReLU out, or take nn.Softplus for answers that have to be positive; and "
    "divide the learning rate by 10"
)


class DeadUnits(Rule):
    """Almost all units of a layer are zero, or at the ends of a sigmoid or tanh, for every sample.

    Symptom
    -------
    The loss stops well above what the network should reach, and more width does not help. In the worst case the
    output is the same for every input.

    Root cause
    ----------
    A ReLU whose input is negative for all samples has output 0 and derivative 0, so its weights get no gradient
    and it never comes back. A learning rate that is too high pushes units there in one step; a large negative
    bias or unscaled inputs start them there. A sigmoid or tanh near its limits has next to no derivative
    either: large weights or inputs, or steps that were too large, drive it there.

    Fix
    ---
    Lower the learning rate, use LeakyReLU, GELU or SiLU, and check biases, initialisation and input scale. Between
    tanhs: nn.init.xavier_normal_, or a normalisation layer before each.

    Example
    -------
    ::

        nn.init.constant_(layer.bias, -20.0)

    Use instead
    -----------
    ::

        nn.init.zeros_(layer.bias)

    Healthy look-alikes
    -------------------
    ReLU is sparse by design: half of its outputs are zero for any one sample. Small batches miss rare units; wide
    sparse dictionaries have more units than samples; a hinge loss that is satisfied is a ReLU at zero. Gates (of an
    LSTM, of squeeze-and-excitation), outputs (of a policy, of a generator) and codes are made to reach the limits of a
    sigmoid or tanh; only those between two layers are judged, and not while the loss falls.

    References
    ----------
    - https://cs231n.github.io/neural-networks-1/#actfun
    - Lu, Shin, Su and Karniadakis, Dying ReLU and Initialization, https://arxiv.org/abs/1903.06733
    """

    code = "O25"
    severity = "warning"
    trial_dependent = True
    consequences = ("G2", "O7", "O22", "C2", "C3", "C5", "W4", "W6")

    share: float = 0.9  # of the units; SageMaker Debugger warns at half of a layer
    samples_needed: int = 96  # in the steps taken together: fewer miss rare units
    units_needed: int = 8  # a handful of units may well be zero together
    steps_needed: int = 3  # taken together: one batch may miss a unit by chance
    below: float = -1.0  # what all biases under several ReLUs were filled with; inputs of variance 1 reach less
    filled_layers: int = 2  # of them, with one and the same number
    filled_share: float = 0.5  # of the units of one of them
    saturated: float = 0.9  # share of a layer's numbers within a hundredth of the limits
    fallen: float = 0.7  # of the first loss: a saturated network learns all the same

    def __init__(self) -> None:
        self._first: dict[tuple[str, int, int], float] = {}  # the share when first seen
        self._steps: dict[tuple[str, int, int], int] = {}  # looks so far
        self._newest: dict[tuple[str, int, int], tuple[int, float]] = {}  # step and share of the previous step
        self._gradients = False
        self._learns = False
        self._stuck = False  # a loss is left, and no parameter gets any gradient

    def on_numbers_sampled(self, event: NumbersSampled) -> None:
        """Whether anything still learns: a satisfied hinge loss sends no gradient at all."""
        self._gradients = any(layer.gradient_rms > 0 for layer in event.layers)
        self._stuck = not self._gradients and event.loss is not None and event.loss > 0
        if event.loss is not None and event.first_loss is not None:
            self._learns = event.loss < self.fallen * event.first_loss

    def on_forward_observed(self, event: ForwardObserved) -> Iterator[Finding]:
        """The dead units of every ReLU, the saturation of every hidden sigmoid and tanh."""
        dead, saturated, cut = [], [], []
        filled = self._filled(event)
        line = event.where.line if event.where else 0
        for place, facts in enumerate(event.dead):
            if facts.units < self.units_needed and not self._stuck:
                continue
            name = f"the {facts.kind} {facts.layer or f'number {place + 1} of the graph'}"
            key = name, line, facts.units
            if facts.kind != "ReLU":
                if self._saturated(facts):
                    saturated.append((name, facts))
            elif self._dead(event, key, facts):
                dead.append((name, facts, self._first[key]))
            elif filled is not None and facts.filled == filled and self._much_of(facts):
                cut.append((name, facts))
        if dead:
            yield self._tell_dead(event, dead)
        elif cut:
            yield self._tell_filled(event, cut)
        elif saturated:
            yield self._tell_saturated(event, saturated)

    def _saturated(self, facts: DeadFacts) -> bool:
        enough = facts.looks >= self.steps_needed and facts.looks * facts.samples >= self.samples_needed
        return enough and facts.saturated >= self.saturated and not self._learns

    def _dead(self, event: ForwardObserved, key: tuple[str, int, int], facts: DeadFacts) -> bool:
        share = facts.dead / facts.units
        self._first.setdefault(key, share)
        previous, self._newest[key] = self._newest.get(key, (0, 0.0)), (event.step, share)
        if facts.lasting is None or facts.looks < self.steps_needed or facts.total < self.samples_needed:
            return False
        if facts.lasting < self.share * facts.units or share < previous[1]:
            return False
        if facts.lasting == facts.units:
            return bool(facts.layer) or self._gradients
        return bool(facts.layer) and facts.total >= facts.units

    def _filled(self, event: ForwardObserved) -> float | None:
        """The one number far below 0 that the biases under several ReLUs were filled with."""
        found = [facts.filled for facts in event.dead if facts.filled is not None and facts.filled <= self.below]
        return found[0] if len(found) >= self.filled_layers and len(set(found)) == 1 else None

    def _much_of(self, facts: DeadFacts) -> bool:
        enough = facts.looks >= self.steps_needed and facts.total >= max(self.samples_needed, facts.units)
        return enough and (facts.lasting or 0) >= self.filled_share * facts.units

    def _tell_dead(self, event: ForwardObserved, bad: list[tuple[str, DeadFacts, float]]) -> Finding:
        name, facts, first = max(bad, key=lambda each: (each[1].lasting or 0) / each[1].units)
        born_dead = first >= self.share
        return self.finding(
            event,
            f"{facts.lasting} of {facts.units} units of {name} are zero on all {facts.total} samples of "
            f"{facts.looks} steps, the last of them step {event.step}{_also([each[0] for each in bad if each[0] != name])}",
            severity="error" if facts.lasting == facts.units else "warning",
            cause=_cause(born_dead) + _bias(facts, born_dead),
            fix=_fix(born_dead) if facts.units >= self.units_needed else OF_THE_ANSWER,
            layer=name,
            units=facts.units,
            dead=facts.lasting,
            samples=facts.total,
            first_share=round(first, 4),
            bias=facts.bias,
            layers=len(bad),
        )

    def _tell_filled(self, event: ForwardObserved, bad: list[tuple[str, DeadFacts]]) -> Finding:
        name, facts = max(bad, key=lambda each: (each[1].lasting or 0) / each[1].units)
        layers = sum(each.filled == facts.filled for each in event.dead)
        return self.finding(
            event,
            f"{facts.lasting} of {facts.units} units of {name} are zero on all {facts.total} samples of "
            f"{facts.looks} steps; the biases under {layers} ReLUs all began at {facts.filled:.3g}"
            f"{_also([each[0] for each in bad if each[0] != name])}",
            cause="a ReLU with a negative input for every sample has gradient 0 and never comes back; a bias for the rare "
            "class, log(p / (1 - p)), is meant for the output layer, and hidden layers that get it begin dead",
            fix="give that bias to the output layer alone and start those of hidden layers at 0",
            layer=name,
            units=facts.units,
            dead=facts.lasting,
            samples=facts.total,
            filled=facts.filled,
            layers=layers,
        )

    def _tell_saturated(self, event: ForwardObserved, bad: list[tuple[str, DeadFacts]]) -> Finding:
        name, facts = max(bad, key=lambda each: each[1].saturated)
        return self.finding(
            event,
            f"{facts.saturated:.0%} of what {name} makes lies within 0.01 of its limits, in {facts.looks} steps "
            f"looked at{_also([each[0] for each in bad if each[0] != name])}",
            cause=f"a {facts.kind.lower()} near its limits has next to no derivative, so the layers before it get almost "
            "no gradient: its inputs are too large",
            fix="scale the inputs to mean 0 and deviation 1, initialise with nn.init.xavier_normal_, put a normalisation "
            "layer before it, lower the learning rate; or use ReLU or GELU",
            layer=name,
            units=facts.units,
            saturated=round(facts.saturated, 4),
            layers=len(bad),
        )


def _also(others: list[str]) -> str:
    return f"; the same in {', '.join(others)}" if others else ""


def _bias(facts: DeadFacts, born_dead: bool) -> str:
    """What became of the biases of the dead units, where that is much of the reason."""
    if facts.bias is None or facts.first_bias is None or facts.bias > -1.0:
        return ""
    if born_dead:
        return f"; their biases are {facts.bias:.2g} on average"
    return f"; their biases went from {facts.first_bias:.2g} to {facts.bias:.2g} on average"


def _cause(born_dead: bool) -> str:
    stuck = "a ReLU with a negative input for every sample has gradient 0 and never comes back"
    if born_dead:
        return f"{stuck}; these were dead when first seen: biases, initialisation or input scale put them there"
    return f"{stuck}; these died in training, pushed over by steps that were too large"


def _fix(born_dead: bool) -> str:
    other = "and use nn.LeakyReLU, nn.GELU or nn.SiLU, which keep a gradient"
    if born_dead:
        return (
            "start the biases of the layers before these units at 0 (the output layer may keep its own) and their "
            f"weights with nn.init.kaiming_normal_, scale inputs to mean 0, deviation 1, {other}"
        )
    return f"divide the learning rate by 10 (or warm it up), {other}"
