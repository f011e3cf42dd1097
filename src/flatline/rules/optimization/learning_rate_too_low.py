"""O7."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from flatline.events import (
    CurvesUpdated,
    FirstCrossEntropy,
    LossesRead,
    NumbersSampled,
    OptimizerStepped,
    PairingProbed,
    ParametersAudited,
    RatesSwept,
    RunEnded,
    TrainingBegan,
)
from flatline.findings import Finding
from flatline.history import Course, Stretch, median
from flatline.rules import Rule
from flatline.trends import drift, falling_is_due, main, trend

ENDS_EARLY = "each step goes where the last one went, and the run ends while the loss falls as fast as in its middle"
STILL_WARMING = (
    "the warm-up is longer than the run: the rate rises to the last step, and the loss falls as fast as ever"
)
SHORTER = "let the warm-up take a tenth of the steps of this run at most, and count it in optimizer steps"
OWN_RATE = 1e-3  # of the highest rate: groups under it are slow by a rate of their own, which is O22
FEW = 64  # elements; the size of a smaller matrix may be near zero by chance
FINE = 10  # times the ratio called slow, once: the rate is not to blame


class LearningRateTooLow(Rule):
    """The updates are too small to change the weights.

    Symptom
    -------
    The loss is flat, or falls so slowly that it makes no difference. No error, no nan, healthy gradients.

    Root cause
    ----------
    The learning rate lies far under the productive band. A step should move a weight by about a thousandth of its
    size. Near 1e-7 the update is also lost to float32, whose rounding is 6e-8 of the weight.

    Fix
    ---
    Run a learning-rate range test, and start from 1e-3 for Adam and 1e-2 to 1e-1 for SGD.

    Example
    -------
    ::

        optimizer = torch.optim.Adam(model.parameters(), lr=1e-8)

    Use instead
    -----------
    ::

        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    Healthy look-alikes
    -------------------
    Warm-up, where the rate still rises; the end of a decay; fine-tuning with a small rate and a falling loss;
    gradients that are tiny themselves, which is another defect; a model that was trained before and stands at its best.

    References
    ----------
    - https://cs231n.github.io/neural-networks-3/#ratio
    - Smith, Cyclical Learning Rates for Training Neural Networks, 2015, https://arxiv.org/abs/1506.01186
    """

    code = "O7"
    severity = "warning"
    each_training = True
    trial_dependent = True
    consequences = ("O22", "C2", "C3", "C5")

    update_ratio: float = 1e-6  # median update over weight; a thousandth of the healthy 1e-3 (CS231n)
    samples_needed: int = 4  # sampled steps, all of them
    first_index: int = 12  # step from which on it is judged
    slow_ratio: float = 3e-5  # the same for long; the lowest of 97 healthy public scripts was 8.8e-4
    slow_plain: float = 1e-5  # of optimizers that do not scale the gradient: a public tutorial that learns had 2.5e-5
    slow_samples: int = 20  # sampled steps, the typical one of them
    slow_index: int = 80  # step from which on that is judged
    crawl_ratio: float = 1e-4  # in a straight line, at the loss of guessing; a ninth of that lowest healthy one
    crawl_index: int = 200  # step from which on that is judged: 200 such steps are 2 % of the weights
    straight: float = 0.99  # cosine of one update and the next; measured: 0.92 to 0.98 at usual rates, 0.999 at 3e-6
    lag_ratio: float = 2e-4  # at guessing, where a simple rule tells the targets; a quarter of that lowest healthy one
    told_by_line: float = 0.7  # correlation of held-out targets with a linear fit: half of their variance
    told_by_means: float = 0.2  # share of held-out labels that the nearest class mean tells above the commonest class
    first_losses: int = 5  # whose median is the start
    guessed: float = 0.8  # first cross entropy over ln(classes): nothing was learned before, by another road either
    gradient: float = 1e-8  # gradients under this are themselves the defect
    gradient_ratio: float = 1e-4  # gradient over weight, the lower end of the healthy band 1e-4 to 1e-1
    strong_gradient: float = 1e-2  # gradient over weight, in the middle of the healthy band: nothing vanishes
    fallen: float = 0.02  # a loss that fell by more is learning
    fallen_little: float = 0.1  # for a whole run from guessing; SGD at 1e-5 lost 4 % of ln(classes) in 300 steps
    held_straight: float = 0.985  # cosine of one update and the next, to the end of a run that is over too early
    unfinished: float = 0.35  # share of the first loss: the most that such a run came down
    undiminished: float = 0.6  # fall of the second half over that of the first
    undiminished_plain: float = 0.3  # the same where all steps together are shorter than whole_path; converged: 0
    healthy: float = 1e-3  # change in one step (CS231n), of the matrix that moves most
    apart: float = 100.0  # times the typical matrix's, which the same rate moves less
    course: int = 200  # steps of a run whose schedule is judged
    floor: float = 0.02  # of the highest rate
    at_floor: float = 0.75  # share of the run that lies there; step decays come down to it in the last third
    left: float = 0.05  # of the first loss: one under it had come to its end before the rate did
    warming: float = 0.1  # first rate over the last one, in a warm-up that outlasts the run
    linear: float = 0.15  # how far the rate in the middle of such a run may be from half of the last one
    divided: float = 0.02  # what the loss was multiplied with: accumulation over 50 micro-batches, added up again, is 1
    whole_path: float = 0.01  # of their size, that weights moved in a whole run; the quickstart of PyTorch makes 5 %
    short_path: float = 0.03  # the same from guessing, for Adam's steps or a low rate of SGD; the quickstart makes 5 %
    plain_rate: float = 1e-4  # of SGD, all along: a hundredth of where it begins; PyTorch's quickstart takes 1e-3
    near: float = 1.25  # times the last loss of the training before: its weights went on
    decayed: float = 0.01  # rate over its peak at the end of a decay
    rising: float = 1.05  # rate over the first one seen, in warm-up
    hopeless: float = 1e-8  # logged rate all along; the gentlest recipes (DPO) begin at 5e-7
    factor: float = 0.1  # the most that a LambdaLR multiplies with; healthy: 1 at its peak
    swept: float = 1000.0  # times the highest rate the loss falls fastest at; fine-tuning takes a hundredth
    points_needed: int = 50  # of the logged rate and loss; fewer may be a warm-up

    def __init__(self) -> None:
        self._samples: dict[int, list[_Sample]] = {}
        self._fine: set[int] = set()
        self._guesses = False
        self._easy: PairingProbed | None = None  # a simple rule told the targets where the model did not
        self._idle: tuple[NumbersSampled, list[_Sample]] | None = None
        self._newest: dict[int, NumbersSampled] = {}
        self._lately: dict[int, deque[float]] = {}  # updates of the newest samples
        self._courses: dict[int, Course] = {}
        self._pretrained: set[int] = set()  # optimizers of weights that were trained before
        self._resumed: set[int] = set()  # those that hold nothing else
        self._left_at: float | None = None  # loss at the end of the training before
        self._factors: dict[int, float] = {}  # what stands before the loss in all backwards of a step together

    def on_parameters_audited(self, event: ParametersAudited) -> None:
        """Whose weights come from a checkpoint, or from training before."""
        known = [p for p in event.parameters if p.loaded or p.trained_before]
        self._pretrained.update(key for p in known for key in p.optimizers)
        self._resumed |= event.resumed()

    def on_training_began(self, event: TrainingBegan) -> None:
        """After another one, whose weights it may go on with, averaged or put in by hand."""
        self._left_at = event.last_loss

    def on_first_cross_entropy(self, event: FirstCrossEntropy) -> None:
        """Whether training began with guesses, on weights of no checkpoint."""
        self._guesses = event.value >= self.guessed * math.log(max(2, event.classes))

    def on_pairing_probed(self, event: PairingProbed) -> None:
        """What simple rules make of the batches that the model makes nothing of."""
        lead = (
            event.by_line - self.told_by_line
            if not event.classes
            else event.by_means - event.commonest - self.told_by_means
        )
        self._easy = event if lead >= 0 else None

    def on_numbers_sampled(self, event: NumbersSampled) -> Iterator[Finding]:
        """Updates, gradients and rate at one step."""
        key = event.optimizer.key
        sample = _measure(event)
        if sample is None or event.optimizer.by_hand:
            return
        self._newest[key] = event
        self._lately.setdefault(key, deque(maxlen=self.samples_needed)).append(sample.update)
        if key in self._fine:
            return
        if sample.update >= FINE * self.slow_ratio:
            self._fine.add(key)
            return
        samples = self._samples.setdefault(key, [])
        samples.append(sample)
        lags = self._lags(event, samples)
        small = lags or self._small(event, [each.update for each in samples]) or self._crawls(event, samples)
        self._idle = (event, samples) if self._idles(event, samples) and not self._uneven(samples) else None
        if small and not self._uneven(samples) and self._too_low(event, samples):
            yield self._tell(event, samples, told=_told(self._easy) if lags and self._easy is not None else "")

    def on_optimizer_stepped(self, event: OptimizerStepped) -> None:
        """What the loss was multiplied with, before backward."""
        alone = len({each.where for each in event.backwards}) == 1 and not event.rescaled_by_hand
        plain = alone and all(each.plain and each.factor > 0 for each in event.backwards)
        self._factors[event.optimizer.key] = sum(each.factor for each in event.backwards) if plain else 1.0

    def on_losses_read(self, event: LossesRead) -> None:
        """Loss and rate of every step."""
        self._courses.setdefault(event.optimizer.key, Course()).extend(event.losses, event.rates)

    def on_run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """A whole run in which large gradients moved the weights by next to nothing: only then is it known how long it is."""
        if event.how != "finished":
            return
        for key, newest in self._newest.items():
            course = self._courses.get(key, Course())
            if self._uneven(self._samples.get(key, [])):
                continue
            if self._was_divided(newest):
                yield self._tell_divided(newest)
            elif course.steps >= self.course:
                yield from self._by_course(newest, course)
        if self._idle is None or event.loss is None or event.first_loss is None:
            return
        last, samples = self._idle
        path = max(last.index, event.step) * median(each.update for each in samples)
        if path < self.whole_path and event.first_loss - event.loss <= self.fallen_little * abs(event.first_loss):
            yield self._tell(last, samples, why=f"the whole run moves the weights by {path:.2%} of their size")

    def on_curves_updated(self, event: CurvesUpdated) -> Iterator[Finding]:
        """The logged rate all along, and a loss that does not fall."""
        rate, loss = main(event, "learning_rate"), main(event, "train_loss")
        found = trend(loss)
        if rate is None or loss is None or found is None or min(rate.count, loss.count) < self.points_needed:
            return
        peak = max(rate.values, default=1.0)
        moved = abs(drift(found.levels)) > max(self.fallen * found.size, 3 * found.noise) or found.falls()
        if not 0 <= peak <= self.hopeless or rate.values[-1] > self.rising * rate.values[0] or moved:
            return
        yield self.finding(
            event,
            f"{rate.name} is at most {peak:g} at all {rate.count:,} points, and {loss.name} stands at {found.last:.4g}",
            severity="warning" if peak > 0 and falling_is_due(event) else "hint",
            cause="the learning rate is far too low: no step changes anything" if peak else "a rate of 0 moves nothing",
            fix="raise lr to about 1e-3 for Adam or 1e-2 for SGD, or find it with a learning-rate range test",
            key="logged",
            peak=peak,
            loss=found.last,
        )

    def on_rates_swept(self, event: RatesSwept) -> Iterator[Finding]:
        """A LambdaLR whose function returns rates: they are multiplied with the optimizer's own."""
        if event.factor is None or not 0 < event.factor <= self.factor:
            return
        highest = event.factor * event.configured
        if highest * self.swept >= event.steepest:
            return
        yield self.finding(
            event,
            f"LambdaLR multiplies lr={event.configured:g} with at most {event.factor:.2g} at any step, so the rate of "
            f"{event.optimizer} never exceeds {highest:.1e}; raised step by step, the loss falls fastest at {event.steepest:.1e}",
            cause="the function of a LambdaLR returns a factor, not a rate: what it returns is multiplied with the lr of the group",
            fix="build the optimizer with lr=1.0, or divide what the function returns by its peak",
            key="factor",
            factor=event.factor,
            highest=highest,
            falls_fastest_at=event.steepest,
        )

    def _uneven(self, samples: list[_Sample]) -> bool:
        """At the same rate one matrix learns as it should: what differs is what gradient arrives at the others."""
        fastest = median([each.fastest for each in samples] or [0.0])
        return fastest >= self.healthy and self.apart * median(each.update for each in samples) <= fastest

    def _small(self, event: NumbersSampled, updates: list[float]) -> bool:
        if len(updates) >= self.samples_needed and event.index >= self.first_index and max(updates) < self.update_ratio:
            return True
        long = len(updates) >= self.slow_samples and event.index >= self.slow_index
        goes_on = self._left_at is not None and (event.first_loss or 0.0) <= self.near * self._left_at
        long = long and event.optimizer.key not in self._resumed and not goes_on
        slow = self.slow_ratio if event.optimizer.adaptive else self.slow_plain
        return long and median(updates[-self.slow_samples :]) < slow

    def _crawls(self, event: NumbersSampled, samples: list[_Sample]) -> bool:
        """Every step goes on where the last one went, and gets nowhere."""
        newest = samples[-self.slow_samples :]
        turns = [each.turn for each in newest if each.turn is not None]
        if event.index < self.crawl_index or len(newest) < self.slow_samples or 4 * len(turns) < len(newest):
            return False
        slow = median(each.update for each in newest) < self.crawl_ratio and median(turns) >= self.straight
        return slow and event.optimizer.adaptive and self._guesses

    def _lags(self, event: NumbersSampled, samples: list[_Sample]) -> bool:
        """Small steps, and a loss that stands where it began, on data that a simple rule makes something of."""
        newest = samples[-self.slow_samples :]
        pushed = event.optimizer.adaptive or median(each.gradient_ratio for each in newest) > self.strong_gradient
        if self._easy is None or not pushed or event.index < self.crawl_index:
            return False
        losses = [each.loss for each in samples if each.loss is not None]
        if len(newest) < self.slow_samples or len(losses) < self.slow_samples:
            return False
        start, now = median(losses[: self.first_losses]), median(losses[-self.slow_samples :])
        small = self._small_step(event)
        return median(each.update for each in newest) < small and start - now <= self.fallen_little * abs(start)

    def _was_divided(self, event: NumbersSampled) -> bool:
        """Small steps of an optimizer that does not scale gradients, from a loss of which a small part went backward."""
        key, samples = event.optimizer.key, self._samples.get(event.optimizer.key, [])
        if self._factors.get(key, 1.0) > self.divided or event.optimizer.adaptive or key in self._pretrained:
            return False
        losses = [each.loss for each in samples if each.loss is not None]
        if event.index < self.crawl_index or len(losses) < self.slow_samples or key in self._fine:
            return False
        start, now = median(losses[: self.first_losses]), median(losses[-self.slow_samples :])
        return start - now <= self.fallen_little * abs(start) and self._steps_are_small(samples, self.lag_ratio)

    def _tell_divided(self, event: NumbersSampled) -> Finding:
        samples, times = self._samples[event.optimizer.key], 1 / self._factors[event.optimizer.key]
        return self._tell(
            event,
            samples,
            told=f"; the loss is divided by {times:,.4g} before backward",
            why=f"{event.optimizer.name} takes steps in proportion to the gradient, and so divides them, too: in effect lr is "
            f"{event.lr / times:.2g}",
            fix="send the mean over the batch backward as it is, and divide a copy for the log: `(loss / n).item()`",
        )

    def _by_course(self, event: NumbersSampled, course: Course) -> Iterator[Finding]:
        """What the schedule made of the run."""
        key = event.optimizer.key
        samples = self._samples.get(key, [])
        tail = course.from_floor(self.floor)
        if self._rests(event, course, tail):
            yield self._tell_floor(event, course, tail)
        elif key in self._fine or len(samples) < self.slow_samples:
            return
        elif self._still_warming(event, course, samples):
            yield self._tell(event, samples[-self.samples_needed :], why=STILL_WARMING, fix=SHORTER)
        elif key not in self._pretrained and (
            why := self._unfinished(event, course, samples) or self._leaves_guessing(event, course, samples)
        ):
            yield self._tell(event, samples, why=why)
        elif key not in self._pretrained and self._stood(course, samples):
            moved = f"the whole run moves the weights by {_path(course, samples):.2%} of their size"
            yield self._tell(event, samples[-self.samples_needed :], why=moved)

    def _rests(self, event: NumbersSampled, course: Course, tail: list[Stretch]) -> bool:
        """Nearly all of the run lies at the floor of its schedule, where the weights do not move."""
        steps = sum(each.steps for each in tail)
        update = median(self._lately[event.optimizer.key])
        slow = self.slow_ratio if event.optimizer.adaptive else self.slow_plain
        first = course.stretches[0].loss
        idle = update < slow and steps * update < self.whole_path
        return idle and steps >= self.at_floor * course.steps and 0 < self.left * first < tail[-1].loss

    def _tell_floor(self, event: NumbersSampled, course: Course, tail: list[Stretch]) -> Finding:
        steps = sum(each.steps for each in tail)
        update = median(self._lately[event.optimizer.key])
        down = f"from {course.peak:.2g} down to {tail[-1].rate:.2g} in the first {course.steps - steps:,} steps"
        return self.finding(
            event,
            f"lr came {down}, and stays there for "
            f"the other {steps / course.steps:.0%} of the run: those steps move the weights by {steps * update:.2%} of their size "
            f"in all, and the loss goes from {tail[0].loss:.4g} to {tail[-1].loss:.4g}",
            cause="the schedule is made for a run of fewer steps than this one has: epochs were meant, or other batches",
            fix=f"give the schedule the number of optimizer steps of the whole run, about {course.steps:,}",
            where=event.optimizer.where or event.where,
            key="floor",
            peak=course.peak,
            lr=tail[-1].rate,
            update_ratio=update,
            loss=tail[-1].loss,
        )

    def _still_warming(self, event: NumbersSampled, course: Course, samples: list[_Sample]) -> bool:
        """The rate rises in a line to the last step, and the loss falls as fast as ever."""
        rates, losses = [each.rate for each in course.stretches], [each.loss for each in course.stretches]
        rises = all(a < b for a, b in pairwise(rates)) and rates[0] <= self.warming * rates[-1]
        if not rises or abs(rates[len(rates) // 2] / rates[-1] - 0.5) > self.linear:
            return False
        half, late = losses[len(losses) // 2], losses[3 * len(losses) // 4]
        falls = losses[-1] < late < half and late - losses[-1] >= self.undiminished * (half - late)
        return falls and self._steps_are_small(samples, self._small_step(event))

    def _unfinished(self, event: NumbersSampled, course: Course, samples: list[_Sample]) -> str:
        """Small steps of one way, or of next to no length in all, and a loss that falls with the sum of the rates to the end."""
        if not self._steps_are_small(samples, self._small_step(event)):
            return ""
        first, (early, late) = course.level(0.0, 0.1), course.falls()
        if not self.fallen * first < early + late < self.unfinished * first:
            return ""
        path = _path(course, samples)
        if path < self.whole_path:
            return _still_falls(path) if late >= self.undiminished_plain * early else ""
        if not event.optimizer.adaptive:
            return ""
        if path < self.short_path and self._guesses and late >= self.undiminished * early:
            return _still_falls(path)
        turns = [each.turn for each in samples[-self.slow_samples :] if each.turn is not None]
        enough = 4 * len(turns) >= self.slow_samples and late >= self.undiminished * early
        return ENDS_EARLY if enough and median(turns) >= self.held_straight else ""

    def _leaves_guessing(self, event: NumbersSampled, course: Course, samples: list[_Sample]) -> str:
        """A rate far under where SGD begins, by which a loss comes down from guessing in a line, and not far by the end."""
        path, (early, late) = _path(course, samples), course.falls()
        low = not event.optimizer.adaptive and 0 < course.peak <= self.plain_rate and self._guesses
        little = early + late <= self.fallen_little * course.level(0.0, 0.1) and late >= self.undiminished * early > 0
        small = path < self.short_path and self._steps_are_small(samples, self.lag_ratio)
        return _still_falls(path) if low and little and small else ""

    def _stood(self, course: Course, samples: list[_Sample]) -> bool:
        """From guessing to guessing, by steps of next to no length in all; a warm-up hides that while it lasts."""
        first, last = course.level(0.0, 0.2), course.level(0.8, 1.0)
        pushed = median(each.gradient_ratio for each in samples) > self.strong_gradient
        short = _path(course, samples) < self.whole_path and self._steps_are_small(samples, self.slow_ratio)
        return self._guesses and pushed and short and abs(first - last) <= self.fallen * abs(first)

    def _small_step(self, event: NumbersSampled) -> float:
        return self.lag_ratio if event.optimizer.adaptive else self.slow_ratio

    def _steps_are_small(self, samples: list[_Sample], most: float) -> bool:
        """Nine in ten of all that were looked at."""
        updates = sorted(each.update for each in samples)
        return updates[9 * len(updates) // 10] < most

    def _idles(self, event: NumbersSampled, samples: list[_Sample]) -> bool:
        """Large gradients, of which a rate of plain SGD leaves next to nothing."""
        newest = samples[-self.slow_samples :]
        if event.optimizer.adaptive or event.index < self.crawl_index or len(newest) < self.slow_samples:
            return False
        strong = median(each.gradient_ratio for each in newest) > self.strong_gradient
        return strong and self._guesses and median(each.update for each in newest) < self.slow_ratio

    def _too_low(self, event: NumbersSampled, samples: list[_Sample]) -> bool:
        gradient, ratio = median(s.gradient for s in samples), median(s.gradient_ratio for s in samples)
        warming = event.lr > self.rising * samples[-self.slow_samples :][0].lr
        decayed = event.peak_lr > 0 and event.lr < self.decayed * event.peak_lr
        return (
            gradient > self.gradient and ratio > self.gradient_ratio and not (warming or decayed or self._learns(event))
        )

    def _learns(self, event: NumbersSampled) -> bool:
        if event.loss is None or event.first_loss is None:
            return False
        return event.first_loss - event.loss > self.fallen * abs(event.first_loss)

    def _tell(
        self, event: NumbersSampled, samples: list[_Sample], told: str = "", why: str = "", fix: str = ""
    ) -> Finding:
        update = median(s.update for s in samples)
        rate = max(event.lr, event.peak_lr) if why and not fix else event.lr
        name = event.optimizer.name
        usual = 1e-3 if event.optimizer.adaptive else 1e-2
        better = f"{usual:.0e}".replace("e-0", "e-") if 2 * rate < usual else f"{10 * rate:.1g}"
        return self.finding(
            event,
            f"at lr={rate:.3g} a step of {name} changes the weights by {update:.1e} of their size "
            f"(healthy: about 1e-3), over {len(samples)} sampled steps; {_loss(event)}{told}",
            cause=f"the learning rate is far too low: the gradients are healthy (rms {samples[-1].gradient:.1e}), but "
            + (
                "a rate of 0 moves nothing"
                if event.lr == 0
                else "an update near 6e-8 of the weight is lost to float32 rounding"
                if update < self.update_ratio
                else why or "step by step hardly gets anywhere"
            ),
            fix=fix
            or f"raise lr from {rate:.3g} to about {better} for {name}, or find it with a learning-rate range test",
            where=event.optimizer.where or event.where,
            lr=event.lr,
            update_ratio=update,
            gradient_rms=samples[-1].gradient,
            loss=event.loss,
            first_loss=event.first_loss,
        )


@dataclass(frozen=True, slots=True)
class _Sample:
    lr: float
    update: float
    fastest: float
    gradient: float
    gradient_ratio: float
    turn: float | None
    loss: float | None


def _path(course: Course, samples: list[_Sample]) -> float:
    """Weights' sizes that all steps would make if they went one way; a step is in proportion to its rate."""
    rates = sum(each.steps * each.rate for each in course.stretches)
    return rates * median(each.update / each.lr if each.lr else 0.0 for each in samples)


def _still_falls(path: float) -> str:
    return f"all steps together move the weights by {path:.1%} of their size, and the loss still falls"


def _measure(event: NumbersSampled) -> _Sample | None:
    """Medians over the weight matrices that got a gradient; most rows of an embedding rest at any one step of SGD."""
    layers = [each for each in event.layers if each.matrix and each.gradient_rms > 0 and each.weight_rms > 0]
    layers = [each for each in layers if event.optimizer.adaptive or "Embedding" not in each.kind]
    highest = max((each.learning_rate for each in layers), default=0.0)
    layers = [each for each in layers if each.learning_rate >= OWN_RATE * highest]
    updates = [each.update_ratio for each in layers if each.update_ratio is not None]
    if not updates:
        return None
    return _Sample(
        lr=event.lr,
        update=median(updates),
        fastest=max((each.update_ratio or 0.0 for each in layers if each.elements >= FEW), default=0.0),
        gradient=median(each.gradient_rms for each in layers),
        gradient_ratio=median(each.gradient_rms / each.weight_rms for each in layers),
        turn=event.turn,
        loss=event.loss,
    )


def _told(probe: PairingProbed) -> str:
    """What a simple rule tells of the same batches."""
    if not probe.classes:
        return f", where a linear fit to the same batches correlates {probe.by_line:.2f} with held-out targets"
    shares = f"{probe.by_means:.0%} of held-out labels (the commonest class: {probe.commonest:.0%})"
    return f", where the nearest class mean of the same batches tells {shares}"


def _loss(event: NumbersSampled) -> str:
    if event.loss is None or event.first_loss is None:
        return f"seen until step {event.step}"
    return f"the loss went from {event.first_loss:.4g} to {event.loss:.4g} in {event.index} steps"
