"""G1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from flatline.events import (
    CurvesUpdated,
    LayerNumbers,
    LossesRead,
    NumbersSampled,
    RecurrenceSampled,
    RecurrentGradientsSampled,
    RunEnded,
)
from flatline.findings import Finding
from flatline.history import Course, History, median
from flatline.rules import Rule
from flatline.trends import falling_is_due, main, shown, trend


class ExplodingGradient(Rule):
    """Gradients grow out of all proportion, layer by layer or from one step to the next.

    Symptom
    -------
    The loss shoots up or becomes nan within some steps. Gradient norms reach thousands and millions.

    Root cause
    ----------
    Backward multiplies by every layer's weights, and in a recurrent network by the same ones at every position. With
    weights that are too large the product grows with depth; one such gradient throws all weights far away.

    Fix
    ---
    Clip the norm: ``torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)`` between backward and step. Where it grows
    with depth, initialise to match the activation, and add residual connections or a normalisation layer.

    Example
    -------
    ::

        loss.backward()
        optimizer.step()

    Use instead
    -----------
    ::

        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()

    Healthy look-alikes
    -------------------
    A large gradient of a regression whose first loss is large, and that falls; one outlier batch; gradients
    under clipping; losses that are sums; gradients under Adam, which divides by their size; a state that adds up over the
    positions, or settles; a gradient that grows over the positions of a network that learns all the same; a large first
    gradient that comes down as the loss does.

    References
    ----------
    - Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, 2013
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    """

    code = "G1"
    severity = "warning"
    each_training = True
    trial_dependent = True
    consequences = ("N1", "N2", "G8", "W1", "O22", "O25", "C1", "C2", "C3", "C5", "C6", "C11")
    of_positions = ("W4",)  # besides, where it is a state that grew

    layers_needed: int = 5  # fewer layers say nothing about depth
    ceiling: float = 1e4  # first layer over last; healthy networks stay within two or three orders of magnitude
    steps_needed: int = 3  # samples in a row
    rising: float = 0.75  # share of neighbours where the earlier layer has the larger gradient
    gradient_ratio: float = 1.0  # gradient over weight; larger is unstable (seed: > 1)
    thrown: float = 0.5  # change of the weights in one step
    jump: float = 1e3  # gradient over its own median so far
    past_needed: int = 15  # samples that make a past
    loss_grown: float = 10.0  # loss over the median of its past

    sweep: float = 100.0  # rate over the lowest so far, and rising: a range test goes over 4 to 7 orders of magnitude
    near_zero: float = 1e-3  # weights under this begin at zero, or nearly: their gradient is large beside them
    beyond: float = 100.0  # gradient over weight, and over a loss above 1; 8 is the most of 97 healthy scripts
    beyond_samples: int = 20  # sampled steps, the typical one of them
    beyond_index: int = 200  # step from which on that is judged
    stands: float = 0.95  # loss over that in the middle of the steps so far

    state_grown: float = 1e3  # last state of a recurrence over the first, as W3 has it for layers
    state_half: float = 20.0  # the same over the second half of the positions: what adds up only doubles there
    state_each: float = 1.2  # at least, from each point looked at to the next
    looks_needed: int = 3  # at gradients that grow so on their way back, under a state that is bounded
    steps_standing: int = 300  # of the whole run, for that

    hardly: float = 0.65  # of the first losses: the spread of fresh outputs is soon gone; measured at gain 2: 0.75

    flung: float = 30.0  # weight over what it was before training, within the first steps, and from there to the end
    first_steps: int = 20  # of an optimizer that takes a gradient at its size
    steps_flung: int = 200  # of the whole run, for that

    overshot: float = 5.0  # last state over the first before training, beside a gradient that grows as well
    at_start: float = 30.0  # first loss over that after the first tenth of the run
    outlier: float = 100.0  # first gradient over what may stand beside the typical one in a running mean of squares
    curvature: float = 1e4  # squared gradient over loss at first, beside later ones; a quadratic loss keeps it
    remembered: int = 3000  # steps: after them Adam's mean of squares (0.999) has nearly lost the first one
    improved: float = 0.1  # loss at the end over that after the first tenth: less, and the run got somewhere
    starved: float = 0.02  # typical change of a weight over the rate, while Adam makes 0.1 to 1 of steady gradients

    points_needed: int = 40  # of a logged norm

    def __init__(self) -> None:
        self._deep: dict[int, int] = {}
        self._rates: dict[int, tuple[float, float]] = {}  # the lowest and the newest
        self._past: dict[int, tuple[History, History]] = {}
        self._wild: dict[int, int] = {}
        self._sizes: dict[int, tuple[History, History]] = {}  # gradient over weight, and the loss
        self._courses: dict[int, Course] = {}
        self._backward: dict[tuple[str, tuple[int, ...]], list[RecurrentGradientsSampled]] = {}  # those that grow
        self._exploded: RecurrentGradientsSampled | None = None  # the worst look at a gradient that grows so
        self._built: dict[tuple[int, str], float] = {}  # sizes of weights before the first step of their optimizer
        self._flung: dict[tuple[int, str], tuple[LayerNumbers, int]] = {}  # weights that its first steps threw far away
        self._overshot: set[tuple[str, tuple[int, ...]]] = (
            set()
        )  # weights under whose first states were larger and larger
        self._leap: RecurrentGradientsSampled | None = None  # the first gradient of such a weight
        self._began: dict[int, tuple[float, float]] = {}  # gradient and loss of each optimizer's first step
        self._later: dict[int, History] = {}  # gradients after that
        self._shares: dict[int, History] = {}  # changes of the weights over the rate

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """Gradients over depth, over the steps, and beside the weights."""
        layers = [each for each in event.layers if each.matrix and 0.0 < each.gradient_rms < math.inf]
        if not layers:
            return
        yield from self._over_depth(event, [each for each in layers if each.depth >= 0])
        found = [
            *self._over_steps(event, median(each.gradient_rms for each in layers)),
            *self._beside_weights(event, layers),
            *self._out_of_proportion(event, layers),
        ]
        self._remember(event, layers)
        self._measure(event)
        yield from () if self._swept(event) else found

    def _swept(self, event: NumbersSampled) -> bool:
        """The rate is raised from step to step, for the sake of the point where this happens."""
        lowest, newest = self._rates.get(event.optimizer.key, (event.lr, event.lr))
        self._rates[event.optimizer.key] = min(lowest, event.lr), event.lr
        return event.lr > max(newest, self.sweep * lowest) > 0

    def on_recurrence_sampled(self, event: RecurrenceSampled) -> Iterator[Finding]:
        """Forward, the state grows by a factor at every position; backward, the gradient does by the same weight."""
        sizes = event.sizes
        if len(sizes) < self.layers_needed or not sizes[0] > 0:
            return
        if event.loss is None and sizes[-1] >= self.overshot * sizes[0]:
            self._overshot.add((event.weight, event.shape))
        each = min(later / earlier for earlier, later in pairwise(sizes))
        half = sizes[-1] / sizes[len(sizes) // 2]
        if sizes[-1] / sizes[0] < self.state_grown or half < self.state_half or each < self.state_each:
            return
        self._overshot.clear()  # told right now, and not once more at the end
        factor = half ** (2 / event.positions)
        name = event.weight or f"a weight of {' × '.join(map(str, event.shape))}"
        found = self.finding(
            event,
            f"{name} is applied to its own result at {event.positions} positions, and the state grows from rms "
            f"{sizes[0]:.2g} to {sizes[-1]:.2g}, {factor:.3g} × at each: so does the gradient on its way back",
            cause="the weight multiplies by more than 1 at every position (its spectral radius is too large for the "
            "activation), and nothing bounds the product",
            fix="begin with nn.init.orthogonal_ or nn.init.eye_ for the weight of the state, use tanh, an LSTM or a GRU; and "
            "clip between backward and step: torch.nn.utils.clip_grad_norm_(parameters, max_norm=1.0)",
            key="recurrence",
            factor=factor,
            first=sizes[0],
            last=sizes[-1],
            positions=event.positions,
        )
        yield replace(found, consequences=self.consequences + self.of_positions)

    def on_recurrent_gradients_sampled(self, event: RecurrentGradientsSampled) -> None:
        """Whether the gradient grows at every position on its way back to the first; told only where it does harm."""
        sizes, looks = event.gradients, self._backward.setdefault((event.weight, event.shape), [])
        self._look_at_first(event)
        if len(sizes) < self.layers_needed or not (sizes[-1] > 0 and sizes[0] < math.inf):
            return
        each = min(earlier / later if later > 0 else 0.0 for earlier, later in pairwise(sizes))
        if sizes[0] >= self.state_grown * sizes[-1] and each >= self.state_each:
            looks.append(event)
            self._exploded = max(self._exploded or event, event, key=_growth)
        else:
            looks.clear()

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """The gradient grew over the positions whenever it was looked at, and the loss came to a stand soon after the start."""
        grown = [looks[-1] for looks in self._backward.values() if len(looks) >= self.looks_needed]
        courses = list(self._courses.values())
        yield from self._ends_starved(event, courses)
        yield from self._ends_flung(event, courses)
        if not grown or len(courses) != 1 or event.step < self.steps_standing or not self._stood(courses[0]):
            return
        loss = courses[0].level(0.8, 1.0)
        worst = max(grown, key=_growth)
        first, last = worst.gradients[0], worst.gradients[-1]
        factor = (first / last) ** (1 / (worst.positions - 1))
        name = worst.weight or f"a weight of {' × '.join(map(str, worst.shape))}"
        yield self.finding(
            event,
            f"{name} is applied to its own result at {worst.positions} positions, and the gradient grows on its way back from "
            f"rms {last:.2g} at the last to {first:.2g} at the first, {factor:.3g} × at each; the loss stands at {loss:.4g}",
            where=worst.where,
            cause="the weight multiplies by more than 1 at every position (its spectral radius is too large for the "
            "activation): the gradient is made of the first positions alone, and one batch says nothing about the next",
            fix="begin with nn.init.orthogonal_ or nn.init.eye_ for the weight of the state, or use an LSTM or a GRU; and "
            "clip between backward and step: torch.nn.utils.clip_grad_norm_(parameters, max_norm=1.0)",
            key="positions",
            factor=factor,
            first=first,
            last=last,
            positions=worst.positions,
            loss=loss,
        )

    def _look_at_first(self, event: RecurrentGradientsSampled) -> None:
        """Before training: larger than where a loss at every position adds up on the way back, under a state that grew."""
        sizes, first = event.gradients, self._leap is None and not self._began
        if first and len(sizes) >= self.layers_needed and (event.weight, event.shape) in self._overshot:
            if 2 * event.positions * sizes[-1] <= sizes[0] < math.inf:
                self._leap = event

    def _remember(self, event: NumbersSampled, layers: list[LayerNumbers]) -> None:
        """How an adaptive optimizer began, and how far it moves the weights after that."""
        key, gradient = event.optimizer.key, median(each.gradient_rms for each in layers)
        if not event.optimizer.adaptive or event.loss is None:
            return
        if event.index == 1:
            self._began[key] = gradient, event.loss
            return
        self._later.setdefault(key, History()).add(event.index, gradient)
        moved = [
            (each.update_ratio or 0.0) * each.weight_rms / each.learning_rate for each in layers if each.learning_rate
        ]
        if moved:
            self._shares.setdefault(key, History()).add(event.index, median(moved))

    def _measure(self, event: NumbersSampled) -> None:
        """Weights under which a gradient grew over the positions, and that SGD's first steps with it left far larger."""
        if event.optimizer.adaptive:
            return
        for each in event.layers:
            place = event.optimizer.key, each.name
            if not each.matrix or each.update_ratio is None:
                continue
            if event.index == 1:
                self._built[place] = each.weight_rms / math.hypot(1.0, each.update_ratio)
            built = self._built.get(place, 0.0)
            far = built > self.near_zero and self.flung * built <= each.weight_rms < math.inf
            if far and event.index <= self.first_steps:
                self._flung[place] = each, event.index
            elif not far:
                self._flung.pop(place, None)

    def _ends_flung(self, event: RunEnded, courses: list[Course]) -> Iterator[Finding]:
        """They are there still, and the loss stands: what is squashed by tanh is at its limits for good."""
        worst = self._exploded
        if worst is None or not self._flung or len(courses) != 1 or event.step < self.steps_flung:
            return
        if not self._stood(courses[0]):
            return
        place, (layer, index) = max(self._flung.items(), key=lambda item: item[1][0].weight_rms / self._built[item[0]])
        built, loss = self._built[place], courses[0].level(0.8, 1.0)
        yield self.finding(
            event,
            f"the first {index} steps threw {layer.name or 'a weight'} from rms {built:.2g} to {layer.weight_rms:.2g}, with a "
            f"gradient that grows on its way back through {worst.positions} positions from rms {worst.gradients[-1]:.2g} to "
            f"{worst.gradients[0]:.2g}; it never came back, and the loss stands at {loss:.4g}",
            where=worst.where,
            cause="the weight of the state multiplies by more than 1 at every position, nothing bounds the gradient, and one "
            "step with it leaves every unit at the limit of its activation",
            fix="clip between backward and step: torch.nn.utils.clip_grad_norm_(parameters, max_norm=1.0); and begin with "
            "nn.init.orthogonal_ or nn.init.eye_ for the weight of the state, or use an LSTM or a GRU",
            key="flung",
            first=built,
            last=layer.weight_rms,
            positions=worst.positions,
            loss=loss,
        )

    def _ends_starved(self, event: RunEnded, courses: list[Course]) -> Iterator[Finding]:
        """The first gradient was out of all proportion, and an adaptive optimizer divides by it until the end."""
        leap, alone = self._leap, len(courses) == len(self._began) == len(self._later) == len(self._shares) == 1
        if leap is None or not alone or event.how != "finished" or event.step < self.beyond_index:
            return
        (first, loss), (later,), (share,) = *self._began.values(), self._later.values(), self._shares.values()
        early, end = courses[0].level(0.1, 0.2), courses[0].level(0.8, 1.0)
        hurts = loss >= self.at_start * early > 0 and end >= self.improved * early and share.last <= self.starved
        steeper = first**2 * end >= self.curvature * later.last**2 * loss
        lasts = later.steps[-1] <= self.remembered and first >= self.outlier * later.steps[-1] ** 0.5 * later.last
        if hurts and steeper and lasts:
            yield self._tell_starved(event, leap, begin=(first, loss), end=(later.last, end, share.last))

    def _tell_starved(
        self, event: RunEnded, leap: RecurrentGradientsSampled, *, begin: tuple[float, float], end: tuple[float, ...]
    ) -> Finding:
        name = leap.weight or f"a weight of {' × '.join(map(str, leap.shape))}"
        found = self.finding(
            event,
            f"{name} is applied to its own result {leap.positions} times in a loop, and the first gradient grew on its way back "
            f"{leap.gradients[0] / leap.gradients[-1]:.0f}-fold: rms {begin[0]:.2g} at a loss of {begin[1]:.4g}, against "
            f"{end[0]:.2g} at the end, with a loss of {end[1]:.4g}. The optimizer still divides by it, and moves the weights by "
            f"{end[2]:.1%} of its rate",
            severity="hint",  # a loss at the noise of its targets looks the same
            where=leap.where,
            cause="each pass through the loop adds or multiplies too much (a step without its dt, a residual branch that is not "
            "scaled, weights that are too large), so that state and gradient run away over the positions",
            fix="scale what one pass adds: state + dt * f(state), or a last layer of f that begins near zero; and clip between "
            "backward and step: torch.nn.utils.clip_grad_norm_(parameters, max_norm=1.0)",
            key="starved",
            first=begin[0],
            last=end[0],
            positions=leap.positions,
            share=end[2],
            loss=end[1],
        )
        return replace(found, consequences=())  # advice explains nothing

    def on_losses_read(self, event: LossesRead) -> None:
        """Loss and rate of every step."""
        self._courses.setdefault(event.optimizer.key, Course()).extend(event.losses, event.rates)

    def _stood(self, course: Course) -> bool:
        """No lower at the end than in the middle, and that hardly lower than the start."""
        start, middle, end = (course.level(*part) for part in ((0.0, 0.05), (0.3, 0.6), (0.8, 1.0)))
        return end >= max(self.stands * middle, self.hardly * start) > 0

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """The last logged norms beside those of the first half, and a loss that rose."""
        norm, loss = main(event, "gradient_norm"), trend(main(event, "train_loss"))
        if norm is None or loss is None or norm.count < self.points_needed or not falling_is_due(event):
            return
        last = sorted(norm.values[-max(5, len(norm.values) // 32) :])
        usual, now = median(norm.values[: len(norm.values) // 2] or [0.0]), last[len(last) // 5] if last else 0.0
        worse = loss.levels[-1] > loss.start and loss.levels[-1] - loss.levels[loss.best] > 8 * loss.noise
        if 0 < self.jump * usual <= now and worse:
            yield self.finding(
                event,
                f"{norm.name} grew from {usual:.3g}, its median over the first half, to {now:.3g} at step {shown(norm.steps[-1])}, "
                f"and the loss from {loss.levels[loss.best]:.4g} to {loss.levels[-1]:.4g}",
                cause="nothing bounds the gradient: backward multiplied it up, and one step with it throws the weights far away",
                fix="clip between backward and step: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0); lower lr",
                key="logged",
                usual=usual,
                last=now,
            )

    def _over_depth(self, event: NumbersSampled, layers: list[LayerNumbers]) -> Iterator[Finding]:
        key = event.optimizer.key
        self._deep[key] = self._deep.get(key, 0) + 1 if self._grows(layers) else 0
        if self._deep[key] >= self.steps_needed:
            first, last = layers[0], layers[-1]
            yield self.finding(
                event,
                f"the gradient grows with depth: rms {first.gradient_rms:.2g} at {first.name or 'the first layer'} against "
                f"{last.gradient_rms:.2g} at {last.name or 'the last layer'}, over {len(layers)} weight matrices",
                cause="backward multiplies by each layer's weights, which are too large: the gradient grows from layer to layer",
                fix="initialise to match the activation (nn.init.kaiming_normal_ for ReLU, nn.init.xavier_normal_ for tanh), add "
                "residual connections or a normalisation layer, and clip: clip_grad_norm_(model.parameters(), 1.0)",
                first=first.gradient_rms,
                last=last.gradient_rms,
                layers=len(layers),
            )

    def _grows(self, layers: list[LayerNumbers]) -> bool:
        if len(layers) < self.layers_needed or layers[0].gradient_rms / layers[-1].gradient_rms < self.ceiling:
            return False
        logs = [math.log10(layer.gradient_rms) for layer in layers]
        jumps = [earlier - later for earlier, later in pairwise(logs)]
        gradual = max(jumps) <= 0.6 * (logs[0] - logs[-1])
        return gradual and sum(jump > 0 for jump in jumps) >= self.rising * len(jumps)

    def _over_steps(self, event: NumbersSampled, gradient: float) -> Iterator[Finding]:
        gradients, losses = self._past.setdefault(event.optimizer.key, (History(), History()))
        loss = event.loss
        if gradients.count >= self.past_needed and losses.count >= self.past_needed and loss is not None:
            usual, usual_loss = gradients.location, losses.location
            if (
                gradient > self.jump * usual
                and usual_loss > 0
                and loss > self.loss_grown * usual_loss
                and self._moves(event)
            ):
                yield self._tell(
                    event,
                    f"the gradient jumped to {gradient / usual:.0f} times its usual size (rms {gradient:.2g} against {usual:.2g}), "
                    f"and the loss from {usual_loss:.4g} to {loss:.4g}",
                    gradient=gradient,
                    usual=usual,
                )
                return
        gradients.add(event.index, gradient)
        if loss is not None:
            losses.add(event.index, loss)

    def _moves(self, event: NumbersSampled) -> bool:
        """Nothing tamed the gradient: the step moved the weights a lot."""
        updates = [each.update_ratio for each in event.layers if each.matrix and each.update_ratio]
        return bool(updates) and max(updates) >= self.thrown

    def _beside_weights(self, event: NumbersSampled, layers: list[LayerNumbers]) -> Iterator[Finding]:
        """Plain SGD at an ordinary rate: a gradient larger than the weights throws them away."""
        ratios = [each.gradient_rms / each.weight_rms for each in layers if each.weight_rms > 0]
        updates = [each.update_ratio for each in layers if each.update_ratio]
        wild = bool(ratios) and bool(updates) and not event.optimizer.adaptive and self._worse(event)
        wild = wild and median(ratios) >= self.gradient_ratio and median(updates) >= self.thrown
        key = event.optimizer.key
        self._wild[key] = self._wild.get(key, 0) + 1 if wild else 0
        if self._wild[key] >= self.steps_needed:
            yield self._tell(
                event,
                f"the gradient is {median(ratios):.3g} times as large as the weights, and each step{_rate(event)} "
                f"changes them by {median(updates):.0%} of their size",
                gradient_ratio=median(ratios),
                update_ratio=median(updates),
            )

    def _out_of_proportion(self, event: NumbersSampled, layers: list[LayerNumbers]) -> Iterator[Finding]:
        """For long a hundred times as large as the weights, whatever the optimizer makes of it, and nothing is learned."""
        sized = [each for each in layers if each.weight_rms > self.near_zero]
        if not sized or event.loss is None or event.loss <= 0:
            return
        sizes, losses = self._sizes.setdefault(event.optimizer.key, (History(), History()))
        sizes.add(event.index, median(each.gradient_rms / each.weight_rms for each in sized) / max(1.0, event.loss))
        losses.add(event.index, event.loss)
        typical = median(list(sizes.values)[-self.beyond_samples :])
        ripe = sizes.count >= self.beyond_samples and event.index >= self.beyond_index and len(self._sizes) == 1
        if not ripe or typical < self.beyond or not self._stands(event, losses):
            return
        largest = max(sized, key=lambda each: each.gradient_rms / each.weight_rms)
        yield self.finding(
            event,
            f"the gradient is typically {typical * max(1.0, losses.last):.3g} times as large as the weights (healthy: under 8), "
            f"most of all at {largest.name or 'one layer'} (rms {largest.gradient_rms:.2g}, weights {largest.weight_rms:.2g}), "
            f"at a loss that stands at {losses.last:.4g}",
            cause="backward multiplies the gradient up on its way, through layers or positions: one batch says nothing about "
            "the next, and an optimizer that divides by its size is left with noise",
            fix="begin with smaller weights where one is applied again and again (nn.init.orthogonal_ at gain 1, LSTM or GRU), "
            "add a normalisation, and clip: torch.nn.utils.clip_grad_norm_(parameters, max_norm=1.0)",
            key="proportion",
            gradient_ratio=typical,
            loss=losses.last,
        )

    def _stands(self, event: NumbersSampled, losses: History) -> bool:
        pairs = zip(losses.steps, losses.values, strict=True)
        middle = [loss for step, loss in pairs if 0.4 * event.index <= step <= 0.6 * event.index]
        return bool(middle) and losses.last >= self.stands * median(middle)

    def _worse(self, event: NumbersSampled) -> bool:
        return event.loss is not None and event.first_loss is not None and event.loss > event.first_loss > 0

    def _tell(self, event: NumbersSampled, message: str, **evidence: Any) -> Finding:
        return self.finding(
            event,
            message,
            cause="nothing bounds the gradient: backward multiplied it up, and one step with it throws the weights far away",
            fix="clip between backward and step: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0); then lower lr",
            **evidence,
        )


def _growth(event: RecurrentGradientsSampled) -> float:
    """Of a gradient, from the last position to the first."""
    return event.gradients[0] / event.gradients[-1]


def _rate(event: NumbersSampled) -> str:
    optimizer = event.optimizer
    return " that is taken by hand" if optimizer.by_hand else f" of {optimizer.name} at lr={event.lr:g}"
