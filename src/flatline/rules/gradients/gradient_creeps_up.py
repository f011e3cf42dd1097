"""G8."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, takewhile

from flatline.events import (
    CurvesUpdated,
    Event,
    LossComputed,
    LossesRead,
    LossNotFinite,
    NumbersSampled,
    RunEnded,
    TermsWeighed,
    Where,
)
from flatline.findings import Finding
from flatline.history import Course, History, fmean, median
from flatline.rules import Rule
from flatline.trends import falling_is_due, kendall, main, trend


class GradientCreepsUp(Rule):
    """The gradient grows steadily, and the loss does not fall, or falls ever faster to minus infinity.

    Symptom
    -------
    The gradient norm rises over hundreds of steps while the loss stands still or rises, or is negative and falls faster
    and faster. Sooner or later it diverges.

    Root cause
    ----------
    Something feeds on itself: weights, logits or activations grow, and with them the gradient, until a step is too large to
    come back from. A rate at the edge of stability, missing weight decay or an unbounded loss term are the usual reasons;
    so are a temperature that is lowered without end, as scores and gradients are divided by it, and the weight of a
    penalty that is raised at every step without an end: it drowns the rest of the loss.

    Fix
    ---
    Lower the learning rate, clip the norm, and bound what grows: weight decay, a normalisation layer, z-loss on logits, a
    floor for the temperature, an upper bound for the weight of a penalty.

    Example
    -------
    ::

        loss = criterion(logits, targets) - 0.1 * logits.pow(2).mean()

    Use instead
    -----------
    ::

        loss = criterion(logits, targets) + 1e-4 * torch.logsumexp(logits, -1).pow(2).mean()

    Healthy look-alikes
    -------------------
    Gradients that grow while the loss falls, as they do from a small initialisation; warm-up; adversarial losses, where one
    side's gradient grows with the other side's skill; a gradient that was near zero when it began; a log-likelihood or a
    similarity, whose negative falls below zero and settles; an image made to please a network; a temperature that is lowered
    to a floor, or while the loss goes on falling; the weight of a term that is raised up to a bound, along a line or
    from round to round (KL annealing, consistency ramps, augmented Lagrangians), or while the loss falls.

    References
    ----------
    - Chowdhery et al., PaLM, 2022, section 5, https://arxiv.org/abs/2204.02311
    """

    code = "G8"
    severity = "warning"
    each_training = True
    trial_dependent = True
    consequences = ("N1", "N2", "C1", "C3", "C6")
    of_weight = ("C2", "O28", "W1")  # besides, where a term of the loss weighs more and more
    of_factor = ("W1", "C2", "O28")  # besides, where scores are multiplied with more and more

    samples_needed: int = 40  # fewer say nothing about a trend
    growth: float = 30.0  # median gradient now over that of the beginning; over what the loss grew: targets may grow
    rising: float = 0.85  # share of pairs of samples where the later gradient is larger; 0.5 without a trend
    small: float = 1e-7  # gradients that begin under this were vanishing, not healthy
    lately: int = 24  # newest samples whose trend counts
    first_index: int = 100  # step from which on it is judged
    lasts: float = 1.3  # times the step at which it was first so: a healthy ReLU recurrence was back after 50 more
    bottomless: float = 30.0  # loss below minus that (times the first one, if that is larger); a similarity ends at -1
    faster: float = 10.0  # its fall for each step, beside that before; near a floor it slows down

    sharpened: float = 20.0  # factor of the scores now over the first one seen; CLIP's goes from 14 to 100 at most
    sharpest: float = 100.0  # factor; CLIP holds its own under that
    with_it: float = 5.0  # growth of the gradient since it was lowest
    lost: float = 3.0  # loss over its lowest, since then
    still: float = 0.25  # of the first loss: one that is lower has learned, whatever its noise

    weight_grown: float = 10.0  # weight of a term over what it was at first
    weight_last: float = 1.0  # its size at least: under that it does not drown the others
    weight_looks: int = 10  # each higher than the one before, also from a step to the next: no schedule of rounds
    even: float = 0.5  # growth for each step in the later looks, as a share of that in the earlier; a line slows down
    lasting: float = 0.5  # of the run, up to the last look
    following: float = 0.5  # growth of the loss over that of the weight, in the last fifth of the run
    loss_rose: float = 2.0  # loss at the end over its lowest
    grown_since: float = 2.0  # gradient at the end over its lowest

    points_needed: int = 100  # of a logged norm
    steady: float = 5.0  # Mann and Kendall's z of the logged norm

    def __init__(self) -> None:
        self._gradients: dict[int, History] = {}
        self._losses: dict[int, History] = {}
        self._rates: dict[int, float] = {}
        self._factors = History()  # of the scores, while it only grows
        self._weights: list[tuple[int, tuple[float, ...]]] = []  # step, and what stands before the terms of the loss
        self._weighed_at: Where | None = None
        self._pending: NumbersSampled | None = None  # the first look at which the gradient had grown so far
        self._told = False  # of one of them
        self._courses: dict[int, Course] = {}

    def on_loss_computed(self, event: LossComputed) -> None:
        """A constant that multiplies the scores of a cross entropy, and grows from look to look."""
        if event.kind != "cross_entropy" or event.factor <= 0:
            return
        if self._factors.count and event.factor < self._factors.values[-1]:
            self._factors = History()
        self._factors.add(event.step, event.factor)

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """The typical gradient of the weight matrices, beside the loss."""
        layers = [each.gradient_rms for each in event.layers if each.matrix and each.gradient_rms > 0]
        if not layers or event.loss is None or event.optimizer.by_hand:  # a rate that is not known may rise
            return
        key = event.optimizer.key
        gradients = self._gradients.setdefault(key, History())
        losses = self._losses.setdefault(key, History())
        gradients.add(event.index, median(layers))
        losses.add(event.index, event.loss)
        self._rates.setdefault(key, event.lr)
        if losses.last < losses.first:
            self._pending = None  # it came back, as that of a recurrence that leaps once
        alone = len(self._gradients) == 1  # of two players one makes the other's gradient
        ripe = alone and gradients.count >= self.samples_needed and event.index >= self.first_index
        if ripe and self._sharpened(event, gradients, losses):
            yield self._tell_sharpened(event, gradients, losses)
            return
        usual = min(gradients.first, gradients.location)
        if not ripe or event.lr > self._rates[key] or not self._grows(gradients):
            return
        if self._runs_down(losses) and all(each.depth >= 0 for each in event.layers if each.matrix):
            yield self._tell_bottomless(event, gradients, losses)
        elif self._no_better(losses) and gradients.last >= self.growth * usual * losses.last / losses.first:
            weights = self._raised()
            self._pending = self._pending or event
            if weights:
                yield self._tell_weight(event, weights)
            elif event.index >= self.lasts * self._pending.index:
                yield self._tell_grown(event)

    def on_loss_not_finite(self, event: LossNotFinite) -> Iterator[Finding]:
        """It led to this."""
        if self._pending is not None and not self._told:
            yield self._tell_grown(self._pending)

    def _tell_grown(self, event: NumbersSampled) -> Finding:
        gradients, losses = self._gradients[event.optimizer.key], self._losses[event.optimizer.key]
        usual, self._told = min(gradients.first, gradients.location), True
        return self.finding(
            event,
            f"the gradient grew {gradients.last / usual:.0f}-fold (rms {usual:.2g} to "
            f"{gradients.last:.2g}), steadily, while the loss went from {losses.first:.4g} to {losses.last:.4g}",
            cause="something feeds on itself: weights or activations grow, and the gradient grows with them",
            fix="lower lr, clip with clip_grad_norm_(model.parameters(), 1.0), and bound what grows: weight decay, a "
            "normalisation layer, z-loss on the logits",
            usual=usual,
            last=gradients.last,
            rising=gradients.rising(self.lately),
        )

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """The logged norm over the run, beside the loss and the rate."""
        curve, rate = main(event, "gradient_norm"), main(event, "learning_rate")
        norm, loss = trend(curve), trend(main(event, "train_loss"))
        if (
            curve is None
            or norm is None
            or loss is None
            or curve.count < self.points_needed
            or not falling_is_due(event)
        ):
            return
        begin, end = median(norm.levels[: len(norm.levels) // 4]), median(norm.levels[-3:])
        higher = rate is not None and bool(rate.values) and rate.values[-1] > 1.05 * rate.values[0]
        learns = loss.last < loss.start or loss.falls(len(loss.levels) // 2)
        if 0 < self.growth * begin <= end and kendall(norm.levels) >= self.steady and not learns and not higher:
            yield self.finding(
                event,
                f"{curve.name} grew {end / begin:.0f}-fold, from {begin:.3g} to {end:.3g}, steadily over {curve.count:,} points, "
                f"while the loss went from {loss.start:.4g} to {loss.last:.4g}",
                cause="something feeds on itself: weights or activations grow, and the gradient grows with them",
                fix="lower lr, clip with clip_grad_norm_(model.parameters(), 1.0), and bound what grows: weight decay, a "
                "normalisation layer, z-loss on the logits",
                key="logged",
                begin=begin,
                last=end,
            )

    def on_losses_read(self, event: LossesRead) -> None:
        """Loss and rate of every step."""
        self._courses.setdefault(event.optimizer.key, Course()).extend(event.losses, event.rates)

    def on_terms_weighed(self, event: TermsWeighed) -> None:
        """Weights of the terms, while there are equally many and one is looked at in every step."""
        if self._weights and len(self._weights[-1][1]) != len(event.weights):
            self._weights = []
        if not self._weights or event.step > self._weights[-1][0]:
            self._weights.append((event.step, event.weights))
            self._weighed_at = event.where

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """The weight of a term grew at every look, by the same share for each step, and the loss went up with it."""
        if self._pending is not None and not self._told and event.how in ("finished", "non-finite"):
            yield self._tell_grown(self._pending)
            return
        courses, gradients = list(self._courses.values()), list(self._gradients.values())
        alone = not self._told and len(courses) == len(gradients) == 1
        if event.how not in ("finished", "non-finite") or not alone or not self._rises_to_the_end(courses[0]):
            return
        weights = self._raised() if self._weights and self._weights[-1][0] >= self.lasting * event.step else ()
        follows = weights and self._follows(courses[0], weights)
        if follows and gradients[0].last >= self.grown_since * gradients[0].lowest > 0:
            yield self._tell_weight(event, weights)

    def _follows(self, course: Course, weights: tuple[float, ...]) -> bool:
        """The loss grows as the weight does: what is weighted does not come down for it, as in a penalty method."""
        steps = [step for step, _ in self._weights]
        rate = math.log(weights[-1] / weights[0]) / (steps[-1] - steps[0])
        before, end = course.level(0.7, 0.8), course.level(0.9, 1.0)
        return before > 0 and math.log(end / before) >= self.following * rate * 0.2 * course.steps

    def _raised(self) -> tuple[float, ...]:
        """The one weight that grows without an end, as it was at each look."""
        if len(self._weights) < self.weight_looks:
            return ()
        kept = zip(*(weights for _, weights in self._weights), strict=True)
        grown = [weights for weights in kept if self._without_end([step for step, _ in self._weights], weights)]
        return grown[0] if len(grown) == 1 else ()

    def _rises_to_the_end(self, course: Course) -> bool:
        losses = list(takewhile(math.isfinite, (each.loss for each in course.stretches)))
        if len(losses) < self.lately:
            return False
        part = len(losses) // 8
        levels = [fmean(losses[at : at + part]) for at in range(len(losses) - part + 1)]
        lowest, before, end = min(levels), levels[-1 - 2 * part], levels[-1]
        return bool(end >= self.loss_rose * lowest > 0 and end > before > lowest)

    def _without_end(self, steps: list[int], weights: tuple[float, ...]) -> bool:
        """Higher at each look, and by about the same share for each step."""
        rising = all(0 < earlier < later for earlier, later in pairwise(weights))
        if not rising or weights[-1] < max(self.weight_last, self.weight_grown * weights[0]):
            return False
        logs = [math.log(weight) for weight in weights]
        middle = next(at for at, step in enumerate(steps) if 2 * step >= steps[-1])
        early = (logs[middle] - logs[0]) / (steps[middle] - steps[0])
        late = (logs[-1] - logs[middle]) / max(1, steps[-1] - steps[middle])
        return late >= self.even * early

    def _tell_weight(self, event: Event, weights: tuple[float, ...]) -> Finding:
        self._told, steps = True, [step for step, _ in self._weights]
        (losses,), (gradients,) = self._losses.values(), self._gradients.values()
        each = (weights[-1] / weights[0]) ** (1 / (steps[-1] - steps[0])) - 1
        found = self.finding(
            event,
            f"a term of the loss is multiplied with a number that grew by {each:.2%} at every step, from "
            f"{weights[0]:.3g} (step {steps[0]:,}) to {weights[-1]:.3g} (step {steps[-1]:,}); the gradient grew "
            f"{gradients.last / gradients.lowest:.2g}-fold since it was lowest, and the loss from {losses.lowest:.4g} to "
            f"{losses.last:.4g}",
            where=self._weighed_at,
            cause="the weight of a penalty has no upper bound: in the end the rest of the loss counts for nothing beside it",
            fix="bound it, weight = min(weight * growth, most), or raise it only while the penalty is too large",
            key="weight",
            weight=weights[-1],
            first=weights[0],
            loss=losses.last,
        )
        return replace(found, consequences=self.consequences + self.of_weight)

    def _sharpened(self, event: NumbersSampled, gradients: History, losses: History) -> bool:
        """The scores' factor grew from look to look, to far over what is useful, and gradient and loss grow with it."""
        factors = list(self._factors.values)
        if event.lr > self._rates[event.optimizer.key] or not factors or factors[-1] < self.sharpest:
            return False
        high = losses.last >= max(self.lost * losses.lowest, self.still * (event.first_loss or losses.first)) > 0
        steeper = gradients.last >= self.with_it * gradients.lowest
        return factors[-1] >= self.sharpened * factors[0] and high and steeper

    def _tell_sharpened(self, event: NumbersSampled, gradients: History, losses: History) -> Finding:
        factors = self._factors
        found = self.finding(
            event,
            f"the scores are multiplied with a number that grew from {factors.values[0]:.3g} (step {factors.steps[0]:,}) to "
            f"{factors.values[-1]:.3g} (step {factors.steps[-1]:,}); with it the gradient grew "
            f"{gradients.last / gradients.lowest:.0f}-fold, and the loss rose from {losses.lowest:.4g} to {losses.last:.4g}",
            cause=f"a temperature that is lowered without a floor, now {1 / factors.values[-1]:.2g}: gradients are divided by it",
            fix="give it a floor, max(temperature, 0.05), or let it be learned and clamped as CLIP's is, at 0.01",
            key="factor",
            factor=factors.values[-1],
            loss=losses.last,
        )
        return replace(found, consequences=self.consequences + self.of_factor)

    def _grows(self, gradients: History) -> bool:
        usual = min(gradients.first, gradients.location)
        if usual < self.small or gradients.last < self.growth * usual:
            return False
        return gradients.rising(self.lately) >= self.rising

    def _no_better(self, losses: History) -> bool:
        return losses.last >= losses.first > 0 and losses.last >= min(losses.first, losses.location)

    def _runs_down(self, losses: History) -> bool:
        """Far below zero, and falling faster than before: there is no floor that it nears."""
        steps, values = list(losses.steps)[-self.lately :], list(losses.values)[-self.lately :]
        if not losses.last < -self.bottomless * max(1.0, abs(losses.first)):
            return False
        middle, before = median(values[:5]), list(losses.values)[: -self.lately + 5]
        late = (middle - losses.last) / (steps[-3] - steps[2])
        early = (median(before[:5]) - middle) / max(1, steps[2] - losses.steps[0])
        return late > self.faster * max(early, 0.0)

    def _tell_bottomless(self, event: NumbersSampled, gradients: History, losses: History) -> Finding:
        usual = min(gradients.first, gradients.location)
        return self.finding(
            event,
            f"the gradient grew {gradients.last / usual:.0f}-fold (rms {usual:.2g} to {gradients.last:.2g}), steadily, and the "
            f"loss falls ever faster below zero: {losses.first:.4g} at first, {losses.last:.4g} now",
            cause="the loss has no minimum: larger weights make it smaller, and the larger they are, the faster",
            fix="bound the loss: a penalty on the size of scores or gradients, a normalised density or a margin, a spectral "
            "norm on the layers; weight decay slows it down only",
            usual=usual,
            last=gradients.last,
            loss=losses.last,
        )
