"""W3."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from flatline.events import (
    ActivationsSampled,
    Event,
    FirstCrossEntropy,
    LayerActivations,
    LossComputed,
    LossesRead,
    NumbersSampled,
    RunEnded,
)
from flatline.findings import Finding
from flatline.history import Course, History, median
from flatline.rules import Rule


class ActivationScaleWithDepth(Rule):
    """Activations grow or shrink by the same factor at every layer of an untrained network.

    Symptom
    -------
    The first loss is in the thousands and runs to nan, or the loss does not move at all: the output is the same for
    every input.

    Root cause
    ----------
    A linear layer multiplies the size of what it is given by the rms of its weight times √fan_in, and ReLU
    takes a factor of √2 away. Weights drawn with std 1 multiply by √fan_in at every layer, with std 0.01 they
    divide; over ten layers that is many orders of magnitude, forward and backward.

    Fix
    ---
    Draw weights with std √(2/fan_in) before ReLU (nn.init.kaiming_normal_) or 1/√fan_in before tanh
    (nn.init.xavier_normal_), or put normalisation layers or residual connections between the layers.

    Example
    -------
    ::

        for layer in linears:
            nn.init.normal_(layer.weight, std=1.0)

    Use instead
    -----------
    ::

        for layer in linears:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    Healthy look-alikes
    -------------------
    Residual and normalised networks, where the outputs of the layers have no trend over depth; torch's default
    initialisation, whose factor of 0.58 is held up by the biases; a narrow middle or a small last layer, which
    is one step and not a trend; large raw inputs, which shrink to an ordinary size; layers that shrink and a loss that
    falls.

    References
    ----------
    - He, Zhang, Ren and Sun, Delving Deep into Rectifiers, https://arxiv.org/abs/1502.01852
    - Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, 2010
    - Mishkin and Matas, All you need is a good init, https://arxiv.org/abs/1511.06422
    """

    code = "W3"
    severity = "warning"
    each_training = True
    trial_dependent = True
    consequences = ("G1", "G2", "W4", "W6", "O25", "O7", "O22", "C1", "C2", "C3", "C5")

    layers_needed: int = 6  # fewer say nothing about depth
    ratio: float = 1e3  # last over first, or first over last; measured: healthy networks stay within 30
    ratio_off: float = 100.0  # the same where the first loss shows what it did to the scores
    ratio_alike: float = 30.0  # the same between layers of one place in every block; what healthy networks stay within
    loss_off: float = 10.0  # first cross entropy over ln(classes); W4 has 3 for one layer, 1.5 is mild there
    error_off: float = 10.0  # root of the first mean square error, or another error, over the largest target
    reaching: float = 10.0  # rms of what the last layer is given there; about 1 where a normalisation came between
    same_direction: float = 0.8  # share of neighbours that go the same way
    largest_jump: float = 0.4  # share of the whole change that one pair of neighbours may make up
    gain_high: float = 2.0  # rms of a weight × √fan_in; Kaiming's is 1.4
    gain_far: float = 4.0  # twice that, for few layers: torch.randn makes 11 with 128 inputs
    few_layers: int = 5  # of them, where the first loss shows what they do
    few_known: int = 3  # of these, whose weights can be told
    gain_low: float = 0.5  # torch's default is 0.58
    gain_sum: float = 1.2  # for a deep network of residual sums, which grow from 1.0 on; Kaiming's is 1.4
    deep: int = 12  # layers of it
    ratio_sum: float = 1e4  # last over first there; 16 blocks of two layers by Kaiming give 4e3
    steps_needed: int = 5  # the activations are still as small then
    recovered: float = 10.0  # times what they differed before the first step
    rounding: float = 1e-6  # of the numbers: samples that differ by less do so by float32's rounding (1.2e-7)
    losses_needed: int = 20  # of sampled steps, to take medians of the first and the newest
    passed_on: float = 0.85  # of what samples differ by, from layer to layer; with Kaiming before ReLU about 0.97
    let_through: float = 0.4  # that over the gain: 0.7 for ReLU, 0.5 for GELU; a sigmoid, 0.25, is at fault itself
    steps_standing: int = 300  # as for G2: 14 layers as drawn by PyTorch may begin to learn after a hundred under Adam
    as_drawn: float = 0.05  # of their size, all updates of the typical layer of such a network together
    faint: float = 1e-3  # gradient over weight of the typical layer, whatever the rate; healthy: 1e-2 and more at first
    fallen: float = 0.8  # of the first loss, and something was learned; a last bias alone takes off a few percent

    def __init__(self) -> None:
        self._shrunk: dict[str, _Shrunk] = {}
        self._losses = History()
        self._courses: dict[int, Course] = {}  # of each optimizer
        self._updates, self._gradients = History(), History()  # of the typical weight matrix, over its size; plain SGD
        self._grown: dict[str, _Shrunk] = {}
        self._largest = 0.0  # target of the first step's regression
        self._squared = True  # its error

    def on_activations_sampled(self, event: ActivationsSampled) -> Iterator[Finding]:
        """The outputs of the layers of one kind, in order."""
        if not event.untrained:
            self._follow(event)
            return
        for kind in dict.fromkeys(layer.kind for layer in event.layers if layer.gain is not None):
            whole = _chain(event.layers, kind)
            trends = [(each, self._trend(each)) for each in (whole, whole[:-1])]  # a head is often built otherwise
            alike = [(each, trend) for each in _alike(whole) if (trend := self._trend(each))]
            chain, grows = next((found for found in (*trends, *alike) if found[1] is not None), (whole, None))
            if grows:
                yield self._tell(event, chain, event)
            elif grows is not None:
                self._shrunk[event.model] = _Shrunk(event, chain)
            elif chain := next((each for each in (whole, whole[:-1]) if self._fades(each)), []):
                self._shrunk[event.model] = _Shrunk(event, chain, by_signal=True)
            elif chain := next((each for each in (whole, whole[:-1]) if self._trend(each, self.ratio_off)), []):
                self._grown[event.model] = _Shrunk(event, chain)
            elif chain := next(
                (each for each in _alike(whole) if (self._change(each, self.ratio_alike) or 0.0) > 0), []
            ):
                self._grown[event.model] = _Shrunk(event, chain)  # what lies between the layers may do it
            elif self._far_too_large(whole, [layer.std for layer in event.layers if layer.kind == kind]):
                self._grown[event.model] = _Shrunk(event, whole)

    def on_first_cross_entropy(self, event: FirstCrossEntropy) -> Iterator[Finding]:
        """Activations that grew less, and scores at the end of them that are far too large all the same."""
        equal = math.log(max(2, event.classes))
        if not self.loss_off * equal <= event.value < math.inf or (event.input_rms or 0.0) < self.reaching:
            return
        for grown in self._grown.values():
            if event.layer in [layer.layer for layer in grown.first.layers]:
                told = f"; the first cross entropy is {event.value:.3g}, and ln {event.classes} is {equal:.3g}"
                yield self._tell(event, grown.chain, grown.first, told)

    def on_loss_computed(self, event: LossComputed) -> None:
        """How large the targets of a regression are."""
        low, high = event.target.low, event.target.high
        if event.step == 1 and event.kind in ERRORS and event.reduction == "mean":
            self._largest = max(self._largest, *(abs(each) for each in (low, high) if each is not None), 0.0)
            self._squared = event.kind in SQUARED

    def on_losses_read(self, event: LossesRead) -> None:
        """The loss of every step."""
        self._courses.setdefault(event.optimizer.key, Course()).extend(event.losses, event.rates)

    def _follow(self, event: ActivationsSampled) -> None:
        """A network whose activations recover is no longer looked at."""
        shrunk = self._shrunk.get(event.model)
        if shrunk is None:
            return
        now = {layer.layer: layer for layer in event.layers}
        inner = shrunk.chain[-2]
        shrunk.step = event.step
        if self._recovers(now.get(inner.layer), inner.signal or 0.0):
            del self._shrunk[event.model]

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """One batch's loss says little of where the loss is; but the first one of a regression may be far off its targets."""
        if event.loss is None:
            return
        self._losses.add(event.index, event.loss)
        matrices = [
            each for each in event.layers if each.matrix and each.update_ratio is not None and each.weight_rms > 0
        ]
        if matrices and not event.optimizer.adaptive:
            self._updates.add(event.index, median(each.update_ratio or 0.0 for each in matrices))
            self._gradients.add(event.index, median(each.gradient_rms / each.weight_rms for each in matrices))
        largest, self._largest = self._largest, 0.0
        error = math.sqrt(abs(event.loss)) if self._squared else event.loss
        if event.step > 1 or not largest or not self.error_off * largest <= error < math.inf:
            return
        for grown in self._grown.values():
            if grown.chain[-1].std >= self.reaching:
                what = "mean square error" if self._squared else "error"
                told = f"; the first {what} is {event.loss:.3g}, and no target is larger than {largest:.3g}"
                yield self._tell(event, grown.chain, grown.first, told)

    def _learned(self, last: float, first: float) -> bool:
        if self._losses.count >= self.losses_needed:
            first, last = self._losses.first, self._losses.last
        return not last > self.fallen * first

    def _recovers(self, now: LayerActivations | None, before: float) -> bool:
        """Samples differ more than they did, and by more than the numbers are exact to."""
        if now is None or now.signal is None or not math.isfinite(now.signal):
            return True
        return now.signal > max(self.recovered * before, self.rounding * (abs(now.mean) + now.std))

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """Shrunk to the end, and nothing learned: many small networks recover within some dozen steps."""
        if event.loss is None or event.first_loss is None or self._learned(event.loss, event.first_loss):
            return
        for shrunk in self._shrunk.values():
            if shrunk.step >= self.steps_needed and (not shrunk.by_signal or self._stands(event)):
                yield (
                    self._tell_signal(event, shrunk)
                    if shrunk.by_signal
                    else self._tell(event, shrunk.chain, shrunk.first)
                )

    def _stands(self, event: RunEnded) -> bool:
        """The loss stood all the time, and the weights are as drawn: under Adam many deep networks begin to learn late."""
        if event.step < self.steps_standing or not self._updates.count or len(self._courses) != 1:
            return False
        (course,) = self._courses.values()
        as_drawn = max(self._updates.values) * event.step <= self.as_drawn and self._gradients.location <= self.faint
        return as_drawn and course.stood

    def _far_too_large(self, chain: list[LayerActivations], sizes: list[float]) -> bool:
        """Few layers, of which the first and the last may have no gain, but weights that no initialiser draws so large."""
        if len(chain) < self.few_known or _gain(chain) < self.gain_far or not 0 < min(sizes) <= max(sizes) < math.inf:
            return False
        return (
            len(sizes) >= self.few_layers
            and all(a < b for a, b in pairwise(sizes))
            and sizes[-1] >= self.ratio_off * sizes[0]
        )

    def _fades(self, chain: list[LayerActivations]) -> bool:
        """Biases hold the activations up, but what tells the samples apart shrinks at every layer, by the weights' doing."""
        signals = [layer.signal or 0.0 for layer in chain]
        if min(signals, default=0.0) <= 0 or (self._change_of(signals, self.ratio) or 0.0) >= 0:
            return False
        factor = _factor(signals)
        return factor <= self.passed_on and factor >= self.let_through * _gain(chain)

    def _change(self, chain: list[LayerActivations], ratio: float) -> float | None:
        """By how many powers of ten the activations grow, or shrink, all the way; None for neither."""
        return self._change_of([layer.std for layer in chain], ratio)

    def _change_of(self, sizes: list[float], ratio: float) -> float | None:
        if len(sizes) < self.layers_needed:
            return None
        logs = [math.log10(size) for size in sizes]
        change = logs[-1] - max(0.0, logs[0]) if logs[-1] > logs[0] else logs[-1] - min(0.0, logs[0])
        jumps = [later - earlier for earlier, later in pairwise(logs)]
        along = sum(jump * change > 0 for jump in jumps)
        if abs(change) < math.log10(ratio) or along < self.same_direction * len(jumps):
            return None
        return change if max(map(abs, jumps)) <= self.largest_jump * abs(logs[-1] - logs[0]) else None

    def _trend(self, chain: list[LayerActivations], ratio: float | None = None) -> bool | None:
        """Whether the activations grow (True) or shrink (False) all the way, by the weights' doing; None for neither."""
        change = self._change(chain, ratio or self.ratio)
        if change is None:
            return None
        gain = _gain(chain)
        proven = gain > self.gain_high if change > 0 else gain < self.gain_low
        summed = len(chain) >= self.deep and change >= math.log10(self.ratio_sum) and gain >= self.gain_sum
        proven = proven or summed
        return change > 0 if proven else None

    def _tell(self, event: Event, chain: list[LayerActivations], seen: ActivationsSampled, told: str = "") -> Finding:
        first, last = chain[0], chain[-1]
        factor = _factor([layer.std for layer in chain])
        gain, fan_in = _gain(chain), int(median(layer.fan_in for layer in chain))
        by_sums = self.gain_low <= gain <= self.gain_high  # the weights alone are in order
        stuck = told if last.std > first.std else "; the loss has not fallen"
        return self.finding(
            event,
            f"before the first step the activations {'grow' if factor > 1 else 'shrink'} {factor:.2g} × per layer: std "
            f"{first.std:.2g} at {first.layer}, {last.std:.2g} at {last.layer}, over {len(chain)} {first.kind} layers{stuck}",
            where=seen.where,
            cause=SUMS.format(gain=gain) if by_sums else _cause(gain, fan_in),
            fix=FIX_SUMS if by_sums else FIX,
            first=first.std,
            last=last.std,
            factor=factor,
            gain=gain,
            layers=len(chain),
        )

    def _tell_signal(self, event: Event, shrunk: _Shrunk) -> Finding:
        chain = shrunk.chain
        signals = [layer.signal or 0.0 for layer in chain]
        factor, gain = _factor(signals), _gain(chain)
        return self.finding(
            event,
            f"before the first step what tells the samples apart shrinks {factor:.2g} × per layer: they differ by "
            f"{signals[0]:.2g} at {chain[0].layer}, by {signals[-1]:.2g} at {chain[-1].layer}, over {len(chain)} {chain[0].kind} "
            f"layers; the loss has stood at {self._losses.last:.4g}",
            where=shrunk.first.where,
            cause=f"the weights have an rms × √fan_in of about {gain:.2g}, of which the activation function leaves {factor:.2g}: "
            "too small an initialisation for that many layers without normalisation or residual connections; the scores are the "
            "same for all samples, and so little gradient comes back that the weights stayed as drawn",
            fix=FIX,
            first=signals[0],
            last=signals[-1],
            factor=factor,
            gain=gain,
            layers=len(chain),
        )


SQUARED = ("mse_loss", "squared error")
ERRORS = (*SQUARED, "smooth_l1_loss", "huber_loss", "l1_loss")  # far from the targets these grow as the distance does
SUMS = (
    "weights with rms × √fan_in of about {gain:.2g} keep the scale only where a ReLU takes half of it away, and no residual "
    "connection and no sum over neighbours adds to it: here every block is larger than the last, and nothing normalises them"
)
FIX = (
    "nn.init.kaiming_normal_(layer.weight, nonlinearity='relu') for every layer before a ReLU, nn.init.xavier_normal_ before "
    "tanh; or normalisation layers between them"
)
FIX_SUMS = (
    "put a normalisation layer into every block, or take the mean over neighbours in place of the sum, or begin the last "
    "layer of each block at 0 (nn.init.zeros_), or divide it by the square root of their number"
)


def _cause(gain: float, fan_in: int) -> str:
    return (
        f"the weights have an rms of about {gain / math.sqrt(fan_in):.2g} with {fan_in} inputs, which multiplies "
        f"the size of the activations by {gain:.2g} at every layer (before the activation function); "
        f"√(2/{fan_in}) = {math.sqrt(2 / fan_in):.2g} keeps it under ReLU"
    )


def _alike(chain: list[LayerActivations]) -> list[list[LayerActivations]]:
    """Layers of the same name in each block, where the names are more than numbers: blocks.0.b, blocks.1.b."""
    groups: dict[tuple[str, int], list[LayerActivations]] = {}
    for layer in chain:
        groups.setdefault((layer.layer.rpartition(".")[2], layer.fan_in), []).append(layer)
    return [group for group in groups.values() if len(group) < len(chain)]


class _Shrunk:
    """A network whose activations shrank, or grew, before the first step."""

    def __init__(self, first: ActivationsSampled, chain: list[LayerActivations], *, by_signal: bool = False) -> None:
        self.first, self.chain, self.by_signal = first, chain, by_signal
        self.step = 0  # when they were last seen, still as small


def _chain(layers: tuple[LayerActivations, ...], kind: str) -> list[LayerActivations]:
    """The layers of one kind that made something, each at its first call."""
    found: dict[str, LayerActivations] = {}
    for layer in layers:
        if layer.kind == kind and layer.gain is not None and 0.0 < layer.std < math.inf:
            found.setdefault(layer.layer, layer)
    return list(found.values())


def _factor(sizes: list[float]) -> float:
    """What every layer multiplies by."""
    return math.pow(sizes[-1] / sizes[0], 1 / (len(sizes) - 1))


def _gain(chain: list[LayerActivations]) -> float:
    return median(layer.gain for layer in chain if layer.gain is not None)
