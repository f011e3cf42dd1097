"""W1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from flatline.events import LayerNumbers, NumbersSampled, PenaltySubtracted, RunEnded
from flatline.findings import Finding
from flatline.history import History, median
from flatline.rules import Rule

LATE = 0.4  # of the run so far: the part whose growth is judged
EARLIEST = 0.1  # the same, where too few samples lie in that part


class WeightNormRunaway(Rule):
    """The weights grow without bound.

    Symptom
    -------
    Weight norms rise tenfold and more and do not level off. The loss stops falling, turns up, or goes to minus infinity.

    Root cause
    ----------
    A feedback loop pays for larger weights: a loss that has no minimum, a decay or penalty with the wrong sign, a
    softmax that saturates. Nothing pulls the weights back.

    Fix
    ---
    Find the term that rewards size (a sign, a missing bound), and pull back: ``weight_decay=0.01`` with AdamW, a
    normalisation layer, a lower rate.

    Example
    -------
    ::

        loss = criterion(logits, targets) - 0.1 * sum(p.pow(2).sum() for p in model.parameters())

    Use instead
    -----------
    ::

        loss = criterion(logits, targets) + 1e-4 * sum(p.pow(2).sum() for p in model.parameters())

    Healthy look-alikes
    -------------------
    Tensors that begin at or near zero, such as LoRA's B; parameters that are no layer's weights, such as an image that is
    optimised; weights before a normalisation layer, which drift upwards slowly;
    growth that levels off, as where a last layer comes to the size of its targets; a loss that keeps falling to its floor.

    References
    ----------
    - Takase et al., Spike No More: Stabilizing the Pre-training of Large Language Models, 2023
    - https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
    """

    code = "W1"
    severity = "warning"
    each_training = True
    trial_dependent = True
    consequences = ("N1", "N2", "G8", "O22", "C1", "C3", "C6")
    whatever = ("G1", "G2", "W5", "O7", "O25", "C2", "C5")  # besides, where it is proven what grows them

    growth: float = 10.0  # weight now over weight when first seen; 1.8 is usual (docs/thresholds.md)
    large: float = 1.0  # root mean square; layers are initialised at 0.02 to 0.5
    smallest: float = 1e-3  # weights that begin smaller are allowed to grow
    samples_needed: int = 25  # fewer say nothing about a trend
    first_index: int = 30  # step from which on it is judged
    lasting: float = 4.0  # times the step at which it was first so; what grows to the size of targets slows down
    steady: float = 0.97  # share of pairs of samples where the later weight is larger
    share: float = 0.003  # growth of each step, in its logarithm: tenfold in 770 steps
    unslowed: float = 0.8  # growth of the later half beside that of the earlier one
    lately: float = 1.02  # still growing between the newest samples
    turned_growth: float = 0.35  # logarithm, in the later half of the samples: 1.4-fold; healthy decay shrinks
    turned_band: float = 0.2  # growth over lr * weight_decay, and how far from 1: measured 0.94 with the sign turned
    turned_least: float = 0.3  # the same for every matrix: gradients pull some back

    pace: float = 0.9  # growth per step of the newest quarter over that of the one before; Adam's drift slows to 0.7
    abreast: float = 0.4  # slowest matrix's pace over the typical one's; measured with the sign turned: 0.5 to 1
    same: float = 0.01  # how far two paces may be apart; measured where the loop multiplies two tables: 0.004
    together: float = 0.05  # the same for all matrices of an optimizer; measured: 0.04
    doubled: float = 0.7  # logarithm of the growth, for those
    farther: float = 0.9  # the same, where paces are only near each other, or there are two; healthy, at one pace: 0.5
    raised: float = 1.05  # rate over what it was at the start of that growth: a sweep makes all grow faster
    lost: float = 1.3  # loss over its lowest, meanwhile

    def __init__(self) -> None:
        self._weights: dict[tuple[int, str], History] = {}
        self._losses: dict[int, History] = {}
        self._rates: dict[int, History] = {}
        self._subtracted = False  # the loss pays for larger weights
        self._growing: dict[int, tuple[int, Finding]] = {}  # since which step, and what it came to

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """The size of each weight matrix over the steps."""
        if self._subtracted:
            return  # what makes them grow is told
        losses = self._losses.setdefault(event.optimizer.key, History())
        if event.loss is not None:
            losses.add(event.index, event.loss)
        self._rates.setdefault(event.optimizer.key, History(64)).add(event.index, event.lr)
        grown = [layer for layer in event.layers if layer.matrix and self._runs_away(event, layer)]
        if grown and self._raised(event):
            grown = []
        if self._turned(event):
            yield self._tell_turned(event, losses)
        elif (pace := self._all_alike(event, losses)) is not None:
            yield self._tell_alike(event, losses, pace)
        elif grown and losses.count and (not self._learns(event, losses) or self._geometric(event, grown[0])):
            found = self._tell(event, grown, losses)
            since, _ = self._growing.get(event.optimizer.key, (event.index, found))
            self._growing[event.optimizer.key] = since, found
            if event.index >= self.lasting * since:
                yield found
        else:
            self._growing.pop(event.optimizer.key, None)

    def on_penalty_subtracted(self, event: PenaltySubtracted) -> Iterator[Finding]:
        """Weight decay within the loss, with the wrong sign."""
        if event.kind == "weights":
            self._subtracted = True
            self._growing.clear()
            first = f" ({', '.join(event.names[:3])}{', …' if len(event.names) > 3 else ''})" if event.names else ""
            found = self.finding(
                event,
                f"the loss subtracts squares or norms of {event.tensors} weight tensors{first}: the larger they are, the lower the "
                "loss, without end",
                cause="the penalty on the weights has the wrong sign, so it pays for what it should hold back",
                fix="add the penalty, or leave it to the optimizer: torch.optim.AdamW(..., weight_decay=0.01)",
                key="sign",
                tensors=event.tensors,
            )
            yield self._explains_more(found)

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """The run is over while they grow."""
        yield from (found for _, found in self._growing.values())

    def _runs_away(self, event: NumbersSampled, layer: LayerNumbers) -> bool:
        past = self._weights.setdefault((event.optimizer.key, layer.name), History(64))
        past.add(event.index, layer.weight_rms)
        if past.count < self.samples_needed or event.index < self.first_index or past.early[0] < self.smallest:
            return False
        if past.last < max(self.large, self.growth * past.early[0]) or layer.depth < 0:
            return False
        recent = list(past.values)[-10:]
        return recent[-1] > self.lately * recent[0] and past.rising() >= self.steady

    def _turned(self, event: NumbersSampled) -> bool:
        """The matrices grow by what weight decay should take from them, and go on doing so."""
        pasts = [(each, self._weights.get((event.optimizer.key, each.name))) for each in event.layers if each.matrix]
        known = [
            (each, past) for each, past in pasts if past is not None and each.learning_rate * each.weight_decay > 0
        ]
        if len(known) < 2 or any(past.count < self.samples_needed for _, past in known):
            return False
        rows = [_shares_of_decay(layer, past) for layer, past in known]
        if median(grown for grown, _, _ in rows) < self.turned_growth:
            return False
        steady = all(abs(median(row[part] for row in rows) - 1) <= self.turned_band for part in (1, 2))
        return steady and min(min(row[1:]) for row in rows) >= self.turned_least

    def _tell_turned(self, event: NumbersSampled, losses: History) -> Finding:
        layer = next(each for each in event.layers if each.matrix and each.weight_decay > 0)
        taken = layer.learning_rate * layer.weight_decay
        found = self.finding(
            event,
            f"the weights grow by the {taken:.2%} a step that weight decay should take from them (lr {layer.learning_rate:g} × "
            f"weight_decay {layer.weight_decay:g}): {layer.name or 'a layer'} grew {self._factor(event, layer):.3g}-fold in "
            f"{event.index} steps, while the loss went from {losses.first:.4g} to {losses.last:.4g}",
            cause="the decay in the optimizer's step has the wrong sign",
            fix="shrink the weights, `p.mul_(1 - lr * weight_decay)`, or use torch.optim.AdamW or SGD",
            where=event.optimizer.where or event.where,
            layer=layer.name,
            growth=self._factor(event, layer),
            weight_decay=layer.weight_decay,
        )
        return self._explains_more(found)

    def _all_alike(self, event: NumbersSampled, losses: History) -> float | None:
        """The share of themselves that all matrices grow by at each step, without slowing, while the loss goes up."""
        pasts = [self._weights.get((event.optimizer.key, each.name)) for each in event.layers if each.matrix]
        known = [past for past in pasts if past is not None and past.first >= self.smallest]
        if len(known) < 2 or len(known) < len(pasts) or losses.count < self.samples_needed:
            return None
        if not any(past.values[-1] > math.exp(self.turned_growth) * min(past.values) for past in known):
            return None  # the cheap question first: a model may have a thousand of them
        if self._raised(event):
            return None
        told = [each for past in known if (each := _paces(past)) is not None]
        if len(told) == len(known) and self._in_step(told):
            return median(late for _, late, _ in told)
        if not losses.last >= self.lost * losses.lowest > 0:
            return None
        same = self._the_same(told)
        if same is not None:
            return same
        if len(told) < len(known) or any(late < self.pace * early or early <= 0 for early, late, _ in told):
            return None
        typical = median(late for _, late, _ in told)
        alike = min(late for _, late, _ in told) >= self.abreast * typical
        alike = alike and not self._walked(event, typical)
        return typical if alike and median(far for _, _, far in told) >= self.farther else None

    def _walked(self, event: NumbersSampled, pace: float) -> bool:
        """Steps of that size, one like the other for as long as momentum lasts, take the weights so far by themselves."""
        known = [each for each in event.layers if each.matrix and each.update_ratio is not None]
        lasting = max((each.momentum for each in known), default=0.0)
        steps = [(each.update_ratio or 0.0) ** 2 / 2 * (1 + lasting) / max(1 - lasting, 0.01) for each in known]
        between = any(each.scaled is not None and abs(each.scaled - 1) > pace / 2 for each in known)
        return bool(steps) and median(steps) >= pace and not between and not event.optimizer.own

    def _raised(self, event: NumbersSampled) -> bool:
        """The rate went up meanwhile: a sweep, or a warm-up."""
        past = self._rates[event.optimizer.key]
        rates = [rate for step, rate in zip(past.steps, past.values, strict=True) if step >= LATE * event.index]
        return max(rates) > self.raised * rates[0]

    def _in_step(self, told: list[tuple[float, float, float]]) -> bool:
        """All of them keep one and the same pace: no gradient does that, whatever the loss shows."""
        steady = all(early > 0 and abs(late / early - 1) <= self.together for early, late, _ in told)
        paces, enough = [late for _, late, _ in told], self.doubled if len(told) > 2 else self.farther
        return steady and max(paces) <= (1 + self.together) * min(paces) and min(far for *_, far in told) >= enough

    def _the_same(self, told: list[tuple[float, float, float]]) -> float | None:
        """The pace of two matrices or more that keep it, and that no gradient would make the same."""
        steady = sorted(late for early, late, far in told if self._is_near(late, early) and far >= self.doubled)
        pairs = [each for each, following in pairwise(steady) if self._is_near(following, each)]
        return pairs[0] if pairs else None

    def _is_near(self, one: float, other: float) -> bool:
        return other > 0 and abs(one / other - 1) <= self.same

    def _tell_alike(self, event: NumbersSampled, losses: History, pace: float) -> Finding:
        matrices = [each for each in event.layers if each.matrix]
        layer = max(matrices, key=lambda each: self._factor(event, each))
        growing = [each for each in matrices if self._factor(event, each) > 1]
        which = f"all {len(matrices)}" if len(growing) == len(matrices) else f"{len(growing)} of {len(matrices)}"
        found = self.finding(
            event,
            f"{which} weight matrices grow by about {pace:.2g} of their size at every step, and do not slow down: "
            f"{layer.name or 'the first'} grew {self._factor(event, layer):.3g}-fold in {event.index} steps, while the loss went "
            f"from {losses.lowest:.4g} to {losses.last:.4g}",
            cause="something adds a share of the weights to the weights at every step, as a decay with the wrong sign does; no "
            "gradient of a loss grows them alike",
            fix="shrink the weights, `p.mul_(1 - lr * weight_decay)`, or use torch.optim.AdamW or SGD",
            where=event.optimizer.where or event.where,
            layer=layer.name,
            growth=self._factor(event, layer),
            pace=pace,
        )
        return self._explains_more(found)

    def _explains_more(self, found: Finding) -> Finding:
        """Units die, scores saturate, gradients explode or vanish under weights that grow whatever the loss says."""
        return replace(found, consequences=self.consequences + self.whatever)

    def _geometric(self, event: NumbersSampled, layer: LayerNumbers) -> bool:
        """The same share at every step, without slowing: no gradient of a loss that settles does that."""
        past = self._weights[event.optimizer.key, layer.name]
        steps, values = list(past.steps), list(past.values)
        middle, far = len(values) // 2, values[-1] >= self.growth * values[0]
        earlier = math.log(values[middle] / values[0]) / (steps[middle] - steps[0])
        later = math.log(values[-1] / values[middle]) / (steps[-1] - steps[middle])
        return far and later >= self.share and later >= self.unslowed * earlier

    def _learns(self, event: NumbersSampled, losses: History) -> bool:
        """The loss falls towards a floor: it is positive, and lower than at first."""
        return 0 <= losses.last < 0.9 * (event.first_loss if event.first_loss is not None else losses.first)

    def _tell(self, event: NumbersSampled, grown: list[LayerNumbers], losses: History) -> Finding:
        factors = {layer.name: self._factor(event, layer) for layer in grown}
        name = max(factors, key=lambda each: factors[each])
        return self.finding(
            event,
            f"the weights of {name or 'a layer'} grew {factors[name]:.3g}-fold in {event.index} steps and go on growing "
            f"({len(grown)} of {sum(layer.matrix for layer in event.layers)} weight matrices more than {self.growth:g}-fold), "
            f"while the loss went from {losses.first:.4g} to {losses.last:.4g}",
            cause="something pays for larger weights (a loss without a minimum, a penalty with the wrong sign), and nothing pulls "
            "them back",
            fix="look for the term of the loss that rewards size, and its sign; then add weight decay (AdamW, weight_decay=0.01) "
            "or lower lr",
            layer=name,
            growth=factors[name],
            grown=len(grown),
            weight_decay=max(layer.weight_decay for layer in grown),
        )

    def _factor(self, event: NumbersSampled, layer: LayerNumbers) -> float:
        past = self._weights[event.optimizer.key, layer.name]
        return past.last / past.early[0]


def _shares_of_decay(layer: LayerNumbers, past: History) -> tuple[float, float, float]:
    """Growth in the later half of the samples, as a logarithm; and that of each part of it over what decay takes."""
    steps, values = list(past.steps), [max(value, 1e-30) for value in past.values]
    first, middle, last = len(values) // 2, 3 * len(values) // 4, len(values) - 1
    taken = layer.learning_rate * layer.weight_decay
    shares = [
        math.log(values[b] / values[a]) / (taken * (steps[b] - steps[a])) for a, b in ((first, middle), (middle, last))
    ]
    return math.log(values[last] / values[first]), shares[0], shares[1]


def _paces(past: History) -> tuple[float, float, float] | None:
    """Growth of each step in the earlier half of the newer part of a run, and in the later one; and all that of both."""
    steps, sizes = list(past.steps), list(past.values)
    first = next(at for at, step in enumerate(steps) if step >= LATE * steps[-1])
    middle = _halfway(steps, first)
    while middle is None and first and steps[first - 1] >= EARLIEST * steps[-1]:
        first -= 1
        middle = _halfway(steps, first)
    if middle is None or min(sizes[first], sizes[middle], sizes[-1]) <= 0:
        return None
    early = math.log(sizes[middle] / sizes[first]) / (steps[middle] - steps[first])
    late = math.log(sizes[-1] / sizes[middle]) / (steps[-1] - steps[middle])
    return early, late, math.log(sizes[-1] / sizes[first])


def _halfway(steps: list[int], first: int) -> int | None:
    """A sample about in the middle of the time since the first one."""
    spent = max(1, steps[-1] - steps[first])
    inner = [at for at in range(first, len(steps)) if 0.25 <= (steps[at] - steps[first]) / spent <= 0.75]
    return inner[len(inner) // 2] if inner and steps[first] <= 0.6 * steps[-1] else None
