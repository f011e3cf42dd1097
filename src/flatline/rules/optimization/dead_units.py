"""O25."""

from __future__ import annotations

from collections.abc import Iterator

from flatline.events import DeadFacts, ForwardObserved, NumbersSampled
from flatline.findings import Finding
from flatline.rules import Rule


class DeadUnits(Rule):
    """Almost all units of a layer are zero for every sample.

    Symptom
    -------
    The loss stops well above what the network should reach, and more width does not help. In the worst case the
    output is the same for every input.

    Root cause
    ----------
    A ReLU whose input is negative for all samples has output 0 and derivative 0, so its weights get no gradient
    and it never comes back. A learning rate that is too high pushes units there in one step; a large negative
    bias or unscaled inputs start them there.

    Fix
    ---
    Lower the learning rate, use LeakyReLU, GELU or SiLU, and check biases, initialisation and input scale.

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
    sparse dictionaries have more units than samples; a hinge loss that is satisfied is a ReLU at zero.

    References
    ----------
    - https://cs231n.github.io/neural-networks-1/#actfun
    - Lu, Shin, Su and Karniadakis, Dying ReLU and Initialization, https://arxiv.org/abs/1903.06733
    """

    code = "O25"
    severity = "warning"
    consequences = ("G2", "O7", "O22", "C2", "C3", "C5")

    share: float = 0.9  # of the units; SageMaker Debugger warns at half of a layer
    samples_needed: int = 32  # in the batch: fewer miss rare units
    units_needed: int = 8  # a handful of units may well be zero together
    steps_needed: int = 3  # observations in a row: one batch may miss a unit by chance

    def __init__(self) -> None:
        self._layers: dict[tuple[str, int, int], _History] = {}
        self._gradients = False

    def on_numbers_sampled(self, event: NumbersSampled) -> None:
        """Whether anything still learns: a satisfied hinge loss sends no gradient at all."""
        self._gradients = any(layer.gradient_rms > 0 for layer in event.layers)

    def on_forward_observed(self, event: ForwardObserved) -> Iterator[Finding]:
        """The share of dead units of every activation."""
        bad = []
        line = event.where.line if event.where else 0
        for place, facts in enumerate(event.dead):
            if facts.units < self.units_needed or facts.samples < self.samples_needed:
                continue
            name = f"the {facts.kind} {facts.layer or f'number {place + 1} of the graph'}"
            history = self._layers.setdefault((name, line, facts.units), _History(name))
            history.add(event.step, facts)
            if self._dead(history, facts):
                bad.append(history)
        if bad:
            yield self._tell(event, bad)

    def _dead(self, history: _History, facts: DeadFacts) -> bool:
        recent = list(history.shares.values())[-self.steps_needed :]
        if len(recent) < self.steps_needed or min(recent) < self.share or recent[-1] < min(recent[:-1]):
            return False
        if min(recent) == 1.0:
            return bool(facts.layer) or self._gradients
        return bool(facts.layer) and facts.samples >= facts.units

    def _tell(self, event: ForwardObserved, bad: list[_History]) -> Finding:
        worst = max(bad, key=lambda history: history.share)
        first = next(iter(worst.shares.values()))
        others = [history.name for history in bad if history is not worst]
        born_dead = first >= self.share
        facts = worst.last
        return self.finding(
            event,
            f"{facts.dead} of {facts.units} units of {worst.name} are zero on all {facts.samples} samples at step "
            f"{event.step}, in {len(worst.shares)} steps looked at{_also(others)}",
            severity="error" if worst.share == 1.0 else "warning",
            cause=_cause(born_dead),
            fix=_fix(born_dead),
            layer=worst.name,
            units=facts.units,
            dead=facts.dead,
            samples=facts.samples,
            first_share=round(first, 4),
            layers=len(bad),
        )


class _History:
    """One activation over the steps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shares: dict[int, float] = {}  # step -> share of dead units
        self.last = DeadFacts()

    def add(self, step: int, facts: DeadFacts) -> None:
        self.last = facts
        self.shares[step] = facts.dead / facts.units

    @property
    def share(self) -> float:
        """At the last step."""
        return next(reversed(self.shares.values()))


def _also(others: list[str]) -> str:
    return f"; the same in {', '.join(others)}" if others else ""


def _cause(born_dead: bool) -> str:
    stuck = "a ReLU with a negative input for every sample has gradient 0 and never comes back"
    if born_dead:
        return f"{stuck}; these were dead when first seen: biases, initialisation or input scale put them there"
    return f"{stuck}; these died in training, pushed over by steps that were too large"


def _fix(born_dead: bool) -> str:
    other = "and use nn.LeakyReLU, nn.GELU or nn.SiLU, which keep a gradient"
    if born_dead:
        return (
            f"start biases at 0 and weights with nn.init.kaiming_normal_, scale inputs to mean 0, deviation 1, {other}"
        )
    return f"divide the learning rate by 10 (or warm it up), {other}"
