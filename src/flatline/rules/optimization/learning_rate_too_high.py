"""O28."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flatline.events import (
    AnswersBeyond,
    FirstCrossEntropy,
    ForwardObserved,
    LossesRead,
    LossNotFinite,
    NumbersSampled,
    OptimizerFacts,
    RatesSwept,
    RunEnded,
)
from flatline.findings import Finding
from flatline.history import Course, History, fmean, median
from flatline.rules import Rule


class LearningRateTooHigh(Rule):
    """Every step throws the weights farther than the loss can follow.

    Symptom
    -------
    The loss explodes in the first steps, oscillates, diverges, or stays above where it began. It may end in nan.

    Root cause
    ----------
    A step changes the weights by a large share of their own size, where a thousandth is usual. What the initial
    weights or the checkpoint knew is wiped out, and each step leaps over the minimum that the gradient points to.

    Fix
    ---
    Divide the learning rate by ten until the loss falls, or find it with a range test. Adam begins at 1e-3, and at
    1e-4 to 3e-4 for transformers, with warm-up; SGD at 1e-2 to 1e-1.

    Example
    -------
    ::

        optimizer = torch.optim.Adam(model.parameters(), lr=1.0)

    Use instead
    -----------
    ::

        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    Healthy look-alikes
    -------------------
    A high rate under which the loss falls, and a schedule through such a rate, from which it comes back; losses of GANs
    and of reinforcement learning, which may rise while all is well, as where bootstrapped targets grow from 0; large
    steps of tensors that begin at zero; an exploding gradient at an ordinary rate, which is G1.

    References
    ----------
    - https://cs231n.github.io/neural-networks-3/#ratio
    - Smith, Cyclical Learning Rates for Training Neural Networks, 2015, https://arxiv.org/abs/1506.01186
    """

    code = "O28"
    severity = "warning"
    each_training = True
    trial_dependent = True
    cause = "the learning rate is far too high: each step leaps over the minimum that the gradient points to"
    consequences = ("N1", "N2", "G1", "G2", "G8", "W1", "W5", "O22", "O25", "D7", "D9", "C1", "C2", "C3", "C6", "C11")

    path: float = 1.5  # weights' sizes travelled in the first steps; 0.1 is usual (docs/thresholds.md)
    wiped_out: float = 7.0  # the same, twice the most of 116 healthy scripts, where the loss shot up, too
    shot_up: float = 20.0  # worst loss over the first one, then
    half_back: float = 0.5  # of the first loss: one that comes below has got over it
    blown_up: float = 5.0  # growth of the typical matrix by then; after a run over 4 in 3 of 173 healthy ones
    blown_index: int = 30  # the step by which; a warm-up of a few steps is over
    still_thrown: float = 0.01  # change in one step after that; what is usual (docs/thresholds.md), on weights as large
    shrunk: float = 0.5  # the same: steps that leave less of the weights decay them, and carry them nowhere
    early: int = 5  # steps that count as the first
    sustained: float = 0.1  # typical change in one step, for long; CS231n calls 1e-2 high
    fast: float = 0.03  # change in one step under which a rising loss has other reasons
    samples_needed: int = 20  # fewer say nothing about a trend
    first_index: int = 30  # step from which on it is judged: warm-up and the first jumps are over
    path_at_chance: float = 0.5  # the same where the loss came to ln(classes) and stayed; 0.1 is usual
    at_chance: float = 0.05  # of ln(classes): how far above it
    informed: float = 0.02  # the same below it: classes as frequent as 40 to 60; clicks are told by 5 %
    worse: float = 1.2  # recent loss over the first one; at first many a healthy loss stands still
    late: int = 100  # step from which on standing still is enough
    learned: float = 1.0  # a loss under this share of the first one is falling, if slowly
    grown: float = 3.0  # recent loss over the first and over the best one
    lasting: float = 2.0  # times the step at which it was first so; a learner whose targets grow comes down by then
    beyond: float = 10.0  # times the rate at which a sweep diverges, which comes to it after a warm-up (measured: < 4)
    fall: float = 0.2  # of the first loss: what was learned before a rising rate took it away
    after: int = 6  # stretches of 16 steps since the loss was lowest
    gone: float = 0.5  # share of that which is lost at the end of the run
    lost_again: float = 0.25  # the same where the steps were large from the first one on (noisy labels: 0.16)
    risen: float = 2.0  # times the rate at which the loss was lowest
    carried: float = 0.02  # change in one step under the risen rate; twice what is usual (docs/thresholds.md)
    killed: float = 0.9  # of the units of a layer, as for O25
    units_needed: int = 8  # a handful of units may well be zero together
    looks_needed: int = 3  # one batch may miss a unit by chance
    looked_at: int = 96  # samples, for the same reason
    silenced: float = 1e-4  # of the largest step: gradients that came through dead units are exactly 0 or rounding
    lifeless: int = 6  # newest samples, all of them
    jumps_needed: int = 2  # at which the answers lay beyond all targets; one may be an accident
    cycle: float = 2.0  # times the highest rate of the cycles before; and that over the rate where the loss was lowest
    erased: float = 0.15  # typical change in one step of an adaptive optimizer; a few such leave nothing of what was
    few_such: int = 2  # of these steps
    ordinary: float = 0.3  # rms times the root of the inputs; a default layer has 0.58, less is small on purpose
    outgrown: float = 4.0  # typical matrix over its initial size; three of 173 healthy runs (docs/thresholds.md)
    stays: float = 0.25  # of ln(classes): what the loss stands at, at least
    flat: float = 0.95  # last quarter of the losses over the second one, then
    restless: float = 0.2  # of the loss, its typical distance from its level; 0.09 at a rate under which it settles
    course_needed: int = 32  # stretches of the course: from here on its quarters are even
    gradient_ratio: float = 1.0  # gradient over weight of plain SGD from which on the gradient is at fault (seed: > 1)

    def __init__(self) -> None:
        self._tracks: dict[int, _Track] = {}
        self._courses: dict[int, _Course] = {}
        self._whole: dict[int, Course] = {}
        self._told: set[int] = set()  # optimizers, while the run went on
        self._newest: dict[int, tuple[NumbersSampled, _Track]] = {}
        self._alive: dict[tuple[str, int], int] = {}  # units of a layer when it was first seen
        self._chance: float | None = None  # what guessing costs
        self._guessed_at = 0  # step of the first cross entropy that told it
        self._beyond: list[AnswersBeyond] = []
        self._grown: dict[
            int, tuple[NumbersSampled, str]
        ] = {}  # where the loss is far above its first one, and since when

    def on_first_cross_entropy(self, event: FirstCrossEntropy) -> None:
        """How many classes there are, if one loss tells."""
        later = event.step > self._guessed_at + self.early  # another training, and no second head
        self._chance = math.log(event.classes) if event.classes > 1 and (self._chance is None or later) else 0.0
        self._guessed_at = event.step

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """The size of the steps beside what the loss does."""
        track = self._tracks.setdefault(event.optimizer.key, _Track())
        track.outgrown = track.grown(event, self.ordinary)
        if event.index <= self.blown_index:
            track.growth = track.outgrown
        added = track.add(event, self.early)
        self._newest[event.optimizer.key] = event, track
        if not added or not self._ripe(event, track):
            return
        first, recent, best = event.first_loss or 0.0, track.losses.last, min(track.losses.values)
        stuck = recent >= (self.worse if event.index < self.late else self.learned) * first
        lately = median(list(track.updates.values)[-self.samples_needed :])
        if (track.path >= self.path and stuck) or self._wiped_out(event, track, first):
            what = f"its first {self.early} steps carried the weights {track.travelled} times their own size"
        elif lately >= self.sustained and stuck:
            what = f"every step changes the weights by {lately:.0%} of their size"
        elif (
            track.path >= self.path_at_chance
            and track.growth >= self.shrunk
            and event.index >= self.late
            and self._guesses(track)
        ):
            what = (
                f"its first {self.early} steps carried the weights {track.travelled} times their own size, and since then the "
                f"loss is what guessing costs, {self._chance:.4g}"
            )
        elif self._killed(event, track):
            what = (
                f"its steps changed the weights by up to {track.fastest(0):.0%} of their size; by step {event.index:,} they change "
                f"by {track.updates.last:.1g}: no gradient is left, and the loss is what guessing costs, {self._chance:.4g}"
            )
        elif self._blown_up(event, track, first, lately):
            what = (
                f"its first {self.blown_index} steps blew the typical weight matrix up to {track.growth:.3g} times its initial "
                f"size, and a step still changes it by {lately:.1%}"
            )
        else:
            yield from self._diverging(event, track, recent >= self.grown * max(first, best))
            return
        yield self._tell(event, track, what)

    def _diverging(self, event: NumbersSampled, track: _Track, grown: bool) -> Iterator[Finding]:
        """A loss far above its first and its best one, that stays there."""
        key = event.optimizer.key
        if not grown or track.updates.last < self.fast:
            if not grown:
                self._grown.pop(key, None)
            return
        what = f"a step changes the weights by {track.updates.last:.1%} of their size"
        since, _ = self._grown.setdefault(key, (event, what))
        if event.index >= self.lasting * since.index:
            yield self._tell(event, track, what)

    def on_forward_observed(self, event: ForwardObserved) -> Iterator[Finding]:
        """ReLU units that were alive before the first steps, and are zero on everything after them."""
        for place, facts in enumerate(event.dead):
            key = facts.layer or str(place), facts.units
            self._alive.setdefault(key, facts.units - facts.dead)
            killed = facts.kind == "ReLU" and (facts.lasting or 0) >= self.killed * facts.units >= self.units_needed
            enough = facts.looks >= self.looks_needed and facts.total >= self.looked_at
            if not killed or not enough or event.step > self.late or 2 * self._alive[key] < facts.units:
                continue
            for newest, track in self._newest.values():
                if track.path >= self.path:
                    yield self._tell(
                        newest,
                        track,
                        f"its first {self.early} steps carried the weights {track.travelled} times their own size, and "
                        f"{facts.lasting} of {facts.units} units of the ReLU {facts.layer} that were alive before are zero since",
                    )

    def on_loss_not_finite(self, event: LossNotFinite) -> Iterator[Finding]:
        """The first steps left nothing of the initial weights, the loss shot up, and then it was no number any more."""
        shot = (event.largest or 0.0) >= self.shot_up * abs(event.first_finite or math.inf)
        for newest, track in self._newest.values() if shot else ():
            tamed = newest.optimizer.adaptive or track.gradient_ratio < self.gradient_ratio
            if tamed and track.path >= self.wiped_out and newest.index <= self.early:
                far = f"its first steps carried the weights {track.travelled} times their own size"
                yield self._tell(newest, track, f"{far}; the loss is {event.value} since")

    def on_losses_read(self, event: LossesRead) -> None:
        """Where the loss was lowest, and at what rate."""
        course = self._courses.setdefault(event.optimizer.key, _Course())
        course.extend(event.steps, event.losses, event.rates)
        self._whole.setdefault(event.optimizer.key, Course()).extend(event.losses, event.rates)

    def on_answers_beyond(self, event: AnswersBeyond) -> None:
        """The loss jumped, and the batch was as any other."""
        self._beyond.append(event)

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """The run is over while the loss is as far up, or as far back."""
        for key, (since, what) in self._grown.items():
            track = self._tracks[key]
            if track.losses.last >= self.grown * max(since.first_loss or 0.0, min(track.losses.values)):
                yield self._tell(since, track, what)
        if len(self._courses) == 1 and not self._grown:
            ((key, course),) = self._courses.items()
            told = key in self._told  # at a step, and once is enough
            if key in self._tracks and not told and course.best is not None and len(course.newest) >= self.after:
                lost = list(self._lost(event, self._tracks[key], course, course.best))
                lost = lost or list(self._lost_from_the_start(event, self._tracks[key], course, course.best))
                lost = lost or list(self._thrown_beyond(event, self._tracks[key], course, course.best))
                lost = lost or list(self._erased(event, self._tracks[key], self._whole[key]))
                yield from lost or self._scattered(event, self._tracks[key], self._whole[key])

    def _thrown_beyond(self, event: RunEnded, track: _Track, course: _Course, best: _Level) -> Iterator[Finding]:
        """Large steps, answers beyond all targets, and a loss that stays far above what it was."""
        last, first, optimizer = median(each.loss for each in course.newest), course.first or 0.0, track.optimizer
        far = last >= self.grown * max(first, best.loss) > 0 and len(self._beyond) >= self.jumps_needed
        tamed = optimizer is not None and (optimizer.adaptive or track.gradient_ratio < self.gradient_ratio)
        if optimizer is None or not far or not tamed or track.updates.location < self.carried:
            return
        update, rate = track.updates.location, course.newest[-1].rate
        worst = max(self._beyond, key=lambda each: each.off / (each.high - each.low))
        yield self.finding(
            event,
            f"at lr={rate:.3g} {optimizer.name} overshoots: a step typically changed the weights by {update:.1%} of their "
            f"size (healthy: about 0.1 %), and the loss went from {first:.4g} by way of {best.loss:.4g} to {last:.4g}: at step "
            f"{worst.step:,} the answers were {worst.off:.3g} off, where all targets lie from {worst.low:.3g} to {worst.high:.3g}",
            fix=f"divide lr by ten, from {rate:.3g} to {rate / 10:.3g}, and again until the loss falls; flatline lr-find finds it",
            where=optimizer.where,
            key="beyond",
            lr=rate,
            update_ratio=update,
            first_loss=first,
            lowest_loss=best.loss,
            loss=last,
        )

    def _lost(self, event: RunEnded, track: _Track, course: _Course, best: _Level) -> Iterator[Finding]:
        """What was learned went as the rate rose, and did not come back."""
        newest, optimizer = course.newest, track.optimizer
        first, low, last = course.first or 0.0, best.loss, median(each.loss for each in newest)
        fell = low <= (1 - self.fall) * first
        lost = fell and min(last, newest[-1].loss) >= low + self.gone * (first - low)
        update = track.fastest(best.step)
        risen = course.highest >= self.risen * best.rate  # of a rate on a device nothing is known: nan
        if not self._chance:  # a loss that may grow with its targets
            risen = course.before >= self.cycle * best.rate and course.highest >= self.cycle * course.before
        if optimizer is None or not lost or not risen or update < self.carried:
            return
        name, rate = optimizer.name, course.highest
        keep = best.rate / 2 if self._chance else course.before
        yield self.finding(
            event,
            f"{name} overshoots: the loss had come from {first:.4g} to {low:.4g} at step {best.step:,}, at lr={best.rate:.2g}; "
            f"as lr went on to {rate:.2g}, where a step changes the weights by {update:.1%} of their size (healthy: about 0.1 %), "
            f"it went up, and is {last:.4g} at the end",
            cause="the schedule goes on to a rate that is far too high: each step leaps over what the loss had come down to",
            fix=f"keep the highest rate of the schedule at {keep:.1g} or below; flatline lr-find finds it",
            where=optimizer.where,
            key="risen",
            lr=rate,
            update_ratio=update,
            first_loss=first,
            lowest_loss=low,
            loss=last,
        )

    def _lost_from_the_start(self, event: RunEnded, track: _Track, course: _Course, best: _Level) -> Iterator[Finding]:
        """Steps as large as the weights from the first one on, and most of what was learned is lost again."""
        first, low, optimizer = course.first or 0.0, best.loss, track.optimizer
        last, typical = course.newest[-1].loss, median(each.loss for each in course.newest)
        fell = low <= (1 - self.fall) * first and min(last, typical) >= self.grown * low
        gone = fell and typical >= low + self.lost_again * (first - low)
        if optimizer is None or not optimizer.adaptive or not gone or track.path < self.path or not self._chance:
            return
        rate = course.newest[-1].rate
        yield self.finding(
            event,
            f"at lr={rate:.3g} {optimizer.name} overshoots: its first {self.early} steps carried the weights {track.travelled} "
            f"times their own size (healthy: about 0.1 % a step); the loss had come from {first:.4g} to {low:.4g} at step "
            f"{best.step:,}, and is {last:.4g} at the end",
            fix=f"divide lr by ten, from {rate:.3g} to {rate / 10:.3g}, and again until the loss stays down; flatline lr-find "
            "finds it",
            where=optimizer.where,
            key="lost",
            lr=rate,
            path=track.path,
            first_loss=first,
            lowest_loss=low,
            loss=last,
        )

    def _erased(self, event: RunEnded, track: _Track, course: Course) -> Iterator[Finding]:
        """Steps as large as the weights left nothing of the initial ones, and the loss stood still early and far up."""
        each, optimizer = course.stretches, track.optimizer
        if optimizer is None or not optimizer.adaptive or not self._chance or len(each) < self.course_needed:
            return
        quarter = len(each) // 4
        first, early, last = (
            fmean(s.loss for s in part) for part in (each[:1], each[quarter : 2 * quarter], each[-quarter:])
        )
        stands = last >= max(self.stays * self._chance, self.flat * early)
        large = [fast for fast in track.fastest_steps if fast[1] >= self.erased]
        if not stands or len(large) < self.few_such or track.outgrown < self.outgrown:
            return
        step, update = large[0]
        rate = course.peak
        yield self.finding(
            event,
            f"at lr={rate:.3g} {optimizer.name} overshoots: at step {step:,} it changed the weights by {update:.0%} of their own "
            f"size (healthy: about 0.1 %), the typical weight matrix is {track.outgrown:.3g} times what it began as, and the loss "
            f"has stood still since early on: {early:.4g} in the second quarter of the run, {last:.4g} in the last one",
            fix=f"divide lr by ten, from {rate:.3g} to {rate / 10:.3g}, and again until the loss falls; flatline lr-find finds it",
            where=optimizer.where,
            key="erased",
            lr=rate,
            update_ratio=update,
            growth=track.outgrown,
            first_loss=first,
            loss=last,
        )

    def _scattered(self, event: RunEnded, track: _Track, course: Course) -> Iterator[Finding]:
        """The first steps threw the loss far above where it began; it came down, and goes up and down without getting lower."""
        optimizer, first, each = track.optimizer, event.first_loss or 0.0, [s.loss for s in course.stretches]
        if optimizer is None or not optimizer.adaptive or first <= 0 or len(each) < self.course_needed:
            return
        worst, quarter = track.worst, len(each) // 4
        early, last = median(each[quarter : 2 * quarter]), median(each[-quarter:])
        scatter = median(abs(loss - last) for loss in each[-2 * quarter :])
        thrown = track.path >= self.path and worst >= self.shot_up * first and track.outgrown >= self.outgrown
        if not thrown or last < self.flat * early or scatter < self.restless * last:
            return
        rate = course.peak
        yield self.finding(
            event,
            f"at lr={rate:.3g} {optimizer.name} overshoots: its first {self.early} steps carried the weights {track.travelled} "
            f"times their own size (healthy: about 0.1 % a step), and the loss went from {first:.4g} to {worst:.4g}; by the second "
            f"quarter of the run it was {early:.4g}, and from there it goes up and down, {last:.4g} in the last one",
            fix=f"divide lr by ten, from {rate:.3g} to {rate / 10:.3g}, and again until the loss falls; flatline lr-find finds it",
            where=optimizer.where,
            key="scattered",
            lr=rate,
            path=track.path,
            growth=track.outgrown,
            worst_loss=worst,
            first_loss=first,
            loss=last,
        )

    def on_rates_swept(self, event: RatesSwept) -> Iterator[Finding]:
        """The rate that was set lies far inside what makes the loss diverge."""
        if event.diverges is None or event.configured < self.beyond * event.diverges:
            return
        yield self.finding(
            event,
            f"with the rate raised step by step, the loss of {event.optimizer} diverges from lr={event.diverges:.2g} on, and "
            f"falls fastest at {event.steepest:.2g}; the script sets {event.configured:.2g}",
            fix=f"begin at lr={event.steepest / 10:.1g}, a tenth of the rate at which the loss falls fastest",
            lr=event.configured,
            diverges_at=event.diverges,
            falls_fastest_at=event.steepest,
            first_loss=event.first_loss,
            loss=event.lowest_loss,
        )

    def _ripe(self, event: NumbersSampled, track: _Track) -> bool:
        if track.updates.count < self.samples_needed or event.index < self.first_index:
            return False
        if event.first_loss is None or event.first_loss <= 0 or not track.losses.count:
            return False
        return event.optimizer.adaptive or track.gradient_ratio < self.gradient_ratio

    def _wiped_out(self, event: NumbersSampled, track: _Track, first: float) -> bool:
        """Nothing of the initial weights was left, and what came after is no better than them."""
        shot = track.path >= self.wiped_out and max(track.losses.values) >= self.shot_up * first
        return shot and event.index >= self.late and track.losses.last >= self.half_back * first

    def _blown_up(self, event: NumbersSampled, track: _Track, first: float, lately: float) -> bool:
        """What the weights began as is lost in what the first steps made of them, and the loss stays far up."""
        grown = event.optimizer.adaptive and track.growth >= self.blown_up and lately >= self.still_thrown
        return grown and event.index >= self.late and track.losses.last >= self.half_back * first

    def _guesses(self, track: _Track) -> bool:
        """The loss has stood at ln(classes) for long."""
        chance, recent = self._chance or 0.0, median(list(track.losses.values)[-self.samples_needed :])
        return chance > 0 and (1 - self.informed) * chance <= recent <= (1 + self.at_chance) * chance

    def _killed(self, event: NumbersSampled, track: _Track) -> bool:
        """Large steps, after which no gradient comes through any more, though the rate is not near its end."""
        fastest, newest = track.fastest(0), list(track.updates.values)[-self.lifeless :]
        silent = max(newest) <= self.silenced * fastest and fastest >= self.carried
        return silent and event.index >= self.late and 4 * event.lr >= event.peak_lr and self._guesses(track)

    def _tell(self, event: NumbersSampled, track: _Track, what: str) -> Finding:
        self._told.add(event.optimizer.key)
        name, first = event.optimizer.name, event.first_loss or 0.0
        by_hand = event.optimizer.by_hand  # its rate is not known
        lower = "the rate by ten" if by_hand else f"lr by ten, from {event.lr:.3g} to {event.lr / 10:.3g}"
        return self.finding(
            event,
            f"{'' if by_hand else f'at lr={event.lr:.3g} '}{name} overshoots: {what} (healthy: about 0.1 % a step), "
            f"and the loss went from {first:.4g} to {track.losses.last:.4g} (worst {max(track.losses.values):.4g})",
            fix=f"divide {lower}, and again until the loss falls "
            f"({'Adam begins at 1e-3' if event.optimizer.adaptive else 'SGD begins at 1e-2'}); flatline lr-find finds it",
            where=event.optimizer.where or event.where,
            lr=None if by_hand else event.lr,
            path=track.path,
            update_ratio=track.updates.location,
            turn=event.turn,
            first_loss=event.first_loss,
            loss=track.losses.last,
        )


class _Track:
    """What one optimizer did so far."""

    def __init__(self) -> None:
        self.updates, self.losses = History(), History()
        self.optimizer: OptimizerFacts | None = None
        self.fastest_steps: list[
            tuple[int, float]
        ] = []  # steps at which the typical update was larger than at any later one
        self.path = 0.0
        self.worst = 0.0  # loss
        self.growth = 1.0  # of the typical weight matrix in the first steps
        self.outgrown = 1.0  # the same by now
        self.gradient_ratio = 0.0
        self._initial: dict[str, float] = {}

    def add(self, event: NumbersSampled, early: int) -> bool:
        """Medians over the weight matrices that moved."""
        layers = [each for each in event.layers if each.matrix and each.weight_rms > 0 and each.update_ratio]
        layers = [each for each in layers if "Embedding" not in each.kind and each.depth >= 0]
        if not layers:
            return False
        update = median(each.update_ratio or 0.0 for each in layers)
        if not self.updates.count:
            self.gradient_ratio = median(each.gradient_rms / each.weight_rms for each in layers)
        if event.index <= early:
            self.path += update
        self.updates.add(event.index, update)
        self.optimizer, typical = event.optimizer, min(list(self.updates.values)[-2:])  # samples come in pairs
        self.fastest_steps = [each for each in self.fastest_steps if each[1] > typical] + [(event.step, typical)]
        if event.loss is not None:
            self.losses.add(event.index, event.loss)
            self.worst = max(self.worst, event.loss)
        return True

    @property
    def travelled(self) -> str:
        """The path in words."""
        return f"{self.path:.1f}" if self.path < 1_000 else f"{self.path:.1g}"

    def grown(self, event: NumbersSampled, ordinary: float) -> float:
        """Size of the typical weight matrix over what it began as, or over ``ordinary`` by the root of its inputs, if more."""
        growths = []
        for each in event.layers:
            if each.matrix and each.depth >= 0 and each.weight_rms > 0:
                turned = math.hypot(1.0, each.update_ratio or 0.0)  # a step as good as at right angles
                began = self._initial.setdefault(each.name, each.weight_rms / turned)
                usual = max(began, ordinary / each.elements**0.25)  # of a square one that is the root of its inputs
                growths.append(each.weight_rms / min(max(each.weight_rms, began), usual))
        return median(growths) if growths else 1.0

    def fastest(self, since: int) -> float:
        """The largest typical update after a step."""
        return max((update for step, update in self.fastest_steps if step > since), default=0.0)


@dataclass(frozen=True, slots=True)
class _Level:
    step: int
    loss: float
    rate: float


class _Course:
    """The losses of one optimizer, by stretches."""

    def __init__(self, stretch: int = 16, newest: int = 8) -> None:
        self.first: float | None = None
        self.best: _Level | None = None
        self.before, self.highest = 0.0, 0.0  # rates up to the best stretch, and since then
        self.newest: deque[_Level] = deque(maxlen=newest)
        self._stretch = stretch
        self._losses: list[float] = []  # of the stretch that is not full
        self._rates: list[float] = []

    def extend(self, steps: Sequence[int], losses: Sequence[float], rates: Sequence[float]) -> None:
        """Some more steps."""
        if self.first is None and losses:
            self.first = losses[0]
        at = 0
        while at < len(steps):
            end = at + self._stretch - len(self._losses)
            self._losses += losses[at:end]
            self._rates += rates[at:end]
            if len(self._losses) == self._stretch:
                self._close(steps[end - 1])
            at = end

    def _close(self, step: int) -> None:
        level = _Level(step, median(self._losses), median(self._rates))
        self._losses, self._rates = [], []
        if self.best is None or level.loss < self.best.loss:
            self.before = max(self.before, self.highest, level.rate)
            self.best, self.highest = level, 0.0
            self.newest.clear()
        self.highest = max(self.highest, level.rate)
        self.newest.append(level)
