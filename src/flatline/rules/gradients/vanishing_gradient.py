"""G2."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from flatline.events import (
    ActivationsSampled,
    Event,
    LayerNumbers,
    LossComputed,
    LossesRead,
    NumbersSampled,
    RecurrentGradientsSampled,
    RunEnded,
)
from flatline.findings import Finding
from flatline.history import Course, History, fmean, median
from flatline.rules import Rule


class VanishingGradient(Rule):
    """Gradients die out layer by layer on the way to the input, or position by position on the way to the first one.

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
    with a small gradient, such as an embedding of which few rows were used, is no decay over depth. A gradient that
    is a thousand times smaller at the first layer is told only where the loss stands, and under Adam, which evens the steps
    out, only where the activation functions squeeze the samples, too, until the scores are the same for all of them.
    A state that fades where the last positions are all that is asked for: the loss falls.

    References
    ----------
    - Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, 2010
    - https://docs.pytorch.org/docs/stable/nn.init.html
    """

    code = "G2"
    severity = "warning"
    each_training = True
    trial_dependent = True
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
    patience: int = 30  # step up to which Adam may mend it: 13 healthy GELU layers went from 4e-7 to 1e-4 in 12
    hopeless: float = 1e-9  # first over last, which no step mends; 13 sigmoid layers make 8e-13
    rising: float = 0.75  # share of neighbours where the deeper layer has the larger gradient
    ordered: float = 0.9  # or of all pairs: in a block one layer may always have less than the next
    largest_jump: float = 0.6  # share of the whole decay that one pair of neighbours may make up

    at_first: float = 1e-2  # first over last before training; from here on depth alone is not at fault
    thrown: float = 0.02  # typical update of a first step, that may saturate the units; twice what is usual
    early: int = 30  # steps that count as first ones

    floor_standing: float = 1e-3  # the same where the loss never moves: five sigmoid layers of nn.Linear make 1e-4
    shares: float = 0.9  # of the sampled steps, for that
    samples_needed: int = 20  # of them
    steps_standing: int = 300  # of the whole run
    shares_adaptive: float = 0.5  # of the sampled steps under Adam, which raises the first layers' gradients by and by
    squeezed: float = 0.4  # of what the gain makes of the samples: a sigmoid leaves 0.25, GELU 0.5, ReLU 0.7
    alike: float = 1e-3  # what samples differ by in the last layer over the first one; six sigmoid layers make 5e-4

    unmoved: float = 0.985  # of the first losses at the end: not even the last positions help
    by_chance: float = 2.0  # standard errors that they may be lower by
    at_chance: float = 0.998  # of ln C: the loss is that of guessing, whatever large scores added to it at first
    lost: float = 1e-7  # first position over last: float32 rounds it away where both are added up for one weight
    each: float = 0.4  # at most, for each position on the way back; nn.Linear draws weights that make 0.58, a gate 0.5
    looks_needed: int = 3  # at the positions, and never one that is better

    def __init__(self) -> None:
        self._classes = 1  # of a cross entropy
        self._courses: dict[int, Course] = {}
        self._positions: dict[tuple[str, tuple[int, ...]], list[RecurrentGradientsSampled]] = {}  # all looks
        self._seen: dict[int, int] = {}
        self._faded: dict[int, int] = {}  # samples with the milder decay, for each optimizer
        self._waiting: dict[int, tuple[NumbersSampled, list[LayerNumbers]]] = {}  # of each optimizer, not told yet
        self._losses = History()
        self._newest: tuple[NumbersSampled, list[LayerNumbers]] | None = None
        self._forward: list[float] = []  # what the samples differed by at each layer before training, if it faded
        self._first: dict[
            int, float
        ] = {}  # of each optimizer: first layer's gradient over the last one's, when first seen
        self._updates: dict[int, list[float]] = {}  # and the typical updates of its first steps

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """The gradient of each weight matrix, in order of depth."""
        layers = [each for each in event.layers if each.matrix and each.depth >= 0 and _positive(each.gradient_rms)]
        key = event.optimizer.key
        self._seen[key] = self._seen.get(key, 0) + 1 if self._decays(layers, self.floor) else 0
        self._remember(event, layers)
        self._look_back(event, layers)
        self._waiting.pop(key, None)
        if self._seen[key] >= self.steps_needed:
            if self._may_mend_itself(event, layers):
                self._waiting[key] = event, layers
            else:
                yield self._tell(event, layers, **self._by_steps(event, layers))

    def on_activations_sampled(self, event: ActivationsSampled) -> None:
        """How much of what tells the samples apart comes through to the last layer."""
        layers = [each for each in event.layers if each.gain is not None and each.signal is not None]
        signals = [each.signal or 0.0 for each in layers]
        if event.untrained and self._rise(signals[::-1], self.alike):
            gain = median(each.gain or 0.0 for each in layers)
            by_activation = (signals[-1] / signals[0]) ** (1 / (len(signals) - 1)) < self.squeezed * gain
            self._forward = signals if by_activation else []

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """A run that was over too soon to wait; a milder decay, in a run that never got anywhere."""
        for waiting, layers in self._waiting.values() if event.how == "finished" else ():
            yield self._tell(waiting, layers, **self._by_steps(waiting, layers))
        yield from self._over_positions(event)
        if self._newest is None or len(self._faded) != 1:
            return
        sampled, layers = self._newest
        adaptive = sampled.optimizer.adaptive
        share = self.shares_adaptive if adaptive else self.shares
        often = sum(self._faded.values()) >= share * self._losses.count >= share * self.samples_needed
        lasting = event.step >= self.steps_standing and (not adaptive or sampled.index >= self.patience)
        if often and lasting and self._losses.stood and (self._forward or not adaptive):
            more = self._of_samples() if adaptive else f"; at lr={sampled.lr:g} the first layers hardly move"
            stands = f"{more}, and the loss stands at {self._losses.last:.4g}"
            yield self._tell(event, layers, stands, where=sampled.where)

    def on_loss_computed(self, event: LossComputed) -> None:
        """How many classes there are to guess among."""
        if event.kind == "cross_entropy" and event.reduction == "mean":
            self._classes = event.classes or 1

    def on_losses_read(self, event: LossesRead) -> None:
        """Loss and rate of every step."""
        self._courses.setdefault(event.optimizer.key, Course()).extend(event.losses, event.rates)

    def on_recurrent_gradients_sampled(self, event: RecurrentGradientsSampled) -> None:
        """The gradient at the positions of a network that is written as a loop."""
        self._positions.setdefault((event.weight, event.shape), []).append(event)

    def _over_positions(self, event: RunEnded) -> Iterator[Finding]:
        """Whenever it was looked at, nothing came back to the first positions; and the loss never moved."""
        courses = list(self._courses.values())
        if event.how != "finished" or event.step < self.steps_standing or len(courses) != 1:
            return
        kept = list(self._positions.values())
        fades = [len(looks) >= self.looks_needed and all(map(self._fades, looks)) for looks in kept]
        if fades and all(fades) and self._never_moved(courses[0]):
            yield self._tell_positions(event, kept[0][-1], courses[0].level(0.8, 1.0))

    def _never_moved(self, course: Course) -> bool:
        """The last losses are the first ones, but for the noise of their batches."""
        losses = [each.loss for each in course.stretches]
        if len(losses) < self.samples_needed:
            return False
        head, tail = losses[: len(losses) // 10], losses[-len(losses) // 5 :]
        start, end = fmean(head), fmean(tail)
        noise = fmean((loss - end) ** 2 for loss in tail) * (1 / len(head) + 1 / len(tail))
        unmoved = end >= max(self.unmoved * start, start - self.by_chance * noise**0.5) > 0
        return bool(unmoved or end >= self.at_chance * math.log(self._classes) > 0)

    def _fades(self, event: RecurrentGradientsSampled) -> bool:
        """By a factor at every position, all the way from the last."""
        sizes = event.gradients
        if len(sizes) < self.layers_needed or not 0 < sizes[-1] < math.inf:
            return False
        most = self.each ** ((event.positions - 1) / (len(sizes) - 1))
        return sizes[0] < self.lost * sizes[-1] and all(one <= most * two for one, two in pairwise(sizes))

    def _tell_positions(self, event: RunEnded, seen: RecurrentGradientsSampled, loss: float) -> Finding:
        sizes = [each for each in seen.gradients if each > 0]
        apart = (seen.positions - 1) / (len(seen.gradients) - 1) * (len(sizes) - 1)
        factor = (sizes[0] / sizes[-1]) ** (1 / apart) if apart else 0.0
        name = seen.weight or f"a weight of {' × '.join(map(str, seen.shape))}"
        return self.finding(
            event,
            f"{name} is applied to its own result at {seen.positions} positions, and the gradient shrinks on its way back from "
            f"rms {seen.gradients[-1]:.2g} at the last to {seen.gradients[0]:.2g} at the first, {factor:.2g} × at each; the "
            f"loss stands at {loss:.4g}",
            where=seen.where,
            cause="the state is forgotten within a few positions (a forget gate near 0, weights of the state that are too "
            "small, units that saturate), so that what came earlier has no influence and cannot be learned",
            fix="let the state pass: begin with a forget gate near 1 (a bias of +1 to +3, added before the sigmoid), with "
            "nn.init.orthogonal_ for the weight of the state, or use nn.LSTM or nn.GRU",
            key="positions",
            factor=factor,
            first=seen.gradients[0],
            last=seen.gradients[-1],
            positions=seen.positions,
            loss=loss,
        )

    def _of_samples(self) -> str:
        return (
            f"; so do the samples on their way forward: before the first step they differed by {self._forward[0]:.2g} at the "
            f"first layer, by {self._forward[-1]:.2g} at the last one"
        )

    def _may_mend_itself(self, event: NumbersSampled, layers: list[LayerNumbers]) -> bool:
        """An adaptive optimizer moves the first layers as far as the last ones, however small their gradients are."""
        ratio = layers[0].gradient_rms / layers[-1].gradient_rms
        return event.optimizer.adaptive and event.index < self.patience and ratio >= self.hopeless

    def _remember(self, event: NumbersSampled, layers: list[LayerNumbers]) -> None:
        if event.loss is None:
            return
        key = event.optimizer.key
        self._faded.setdefault(key, 0)
        self._losses.add(event.index, event.loss)
        if self._decays(layers, self.floor_standing):
            self._faded[key] += 1
            self._newest = event, layers

    def _look_back(self, event: NumbersSampled, layers: list[LayerNumbers]) -> None:
        """How it began: a network that is thrown into saturation passed its gradients on at first."""
        if layers and event.index <= self.early:
            key, updates = event.optimizer.key, [each.update_ratio for each in layers if each.update_ratio is not None]
            self._first.setdefault(key, layers[0].gradient_rms / layers[-1].gradient_rms)
            self._updates.setdefault(key, []).extend([median(updates)] if updates else [])

    def _by_steps(self, event: NumbersSampled, layers: list[LayerNumbers]) -> dict[str, str]:
        """Another cause and fix, where large first steps made the gradient fade."""
        first, updates = self._first.get(event.optimizer.key, 0.0), self._updates.get(event.optimizer.key, [])
        if first < self.at_first or not updates or fmean(updates) < self.thrown:
            return {}
        return {
            "cause": f"the first steps, which changed the weights by {fmean(updates):.1%} each (healthy: about 0.1 %), threw the "
            f"network to where little gradient comes through (units at their limits, features alike for all samples): "
            f"before them {layers[0].name} had {first:.2g} times the gradient of {layers[-1].name}",
            "fix": f"divide lr by ten, from {event.lr:.3g} to {event.lr / 10:.3g}; and where several losses go backward for one "
            "step, divide each by their number",
        }

    def _tell(self, event: Event, layers: list[LayerNumbers], more: str = "", **given: Any) -> Finding:
        first, last = layers[0], layers[-1]
        return self.finding(
            event,
            f"the gradient fades with depth: rms {first.gradient_rms:.2g} at {first.name or 'the first layer'} against "
            f"{last.gradient_rms:.2g} at {last.name or 'the last layer'}, over {len(layers)} weight matrices "
            f"({(first.gradient_rms / last.gradient_rms) ** (1 / (len(layers) - 1)):.2g} × per layer){more}",
            first=first.gradient_rms,
            last=last.gradient_rms,
            ratio=first.gradient_rms / last.gradient_rms,
            layers=len(layers),
            **given,
        )

    def _decays(self, layers: list[LayerNumbers], floor: float) -> bool:
        """Small at the first layer, and by many small losses along the depth."""
        return self._rise([layer.gradient_rms for layer in layers], floor)

    def _rise(self, numbers: Sequence[float], floor: float) -> bool:
        """From a small share of the last of them, all the way and not by one jump."""
        positive = len(numbers) >= self.layers_needed and all(map(_positive, numbers))
        if not positive or numbers[0] / numbers[-1] >= floor:
            return False
        logs = [math.log10(number) for number in numbers]
        jumps = [later - earlier for earlier, later in pairwise(logs)]
        gradual = max(jumps) <= self.largest_jump * (logs[-1] - logs[0])
        pairs = [(a, b) for i, a in enumerate(logs) for b in logs[i + 1 :]]
        along = sum(jump > 0 for jump in jumps) >= self.rising * len(jumps)
        return gradual and (along or sum(b > a for a, b in pairs) >= self.ordered * len(pairs))


def _positive(number: float) -> bool:
    return 0.0 < number < math.inf
