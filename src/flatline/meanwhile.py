"""The curves of a script that runs, shown to the rules now and then; the sibling of afterwards.py.

The losses of all steps, and what the script logs itself, are thinned as readers thin a log. Each look judges the curves
anew: what the newest one finds is what counts, and is told when the one before it found the same.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

from flatline.engine import Engine, watched
from flatline.events import (
    BackwardFacts,
    Curve,
    CurvesUpdated,
    Event,
    LinePrinted,
    LossComputed,
    LossesRead,
    OptimizerStepped,
    PassEnded,
    ScalarsLogged,
    ValidationTold,
)
from flatline.findings import Finding
from flatline.readers._log import RunLog
from flatline.readers._roles import ACCURACY, LOSS, LOSSES, PLAIN, TRAIN, VALIDATION, role_of, words_of
from flatline.readers._thinning import Thinner
from flatline.readers.text_log import pairs
from flatline.rules import Rule
from flatline.trends import told_by_name

MOST = 512  # stretches of a curve
MOST_NAMES = 2000  # of curves
FIRST_LOOK = 256  # steps
FURTHER = 1.5  # times the steps of the look before
SHARE = 0.25  # of the budget, for looks
A_LOOK = 0.03  # seconds, until one was timed
WAITING = 256  # rows of the script's own log
EVERY = 1.0  # seconds between two readings of the journal
LABELLED = ("cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits")
FITTED = ("mse_loss", "smooth_l1_loss", "huber_loss")  # over a data set that is gone through; an agent uses them, too
COMPOSED = "the loss is more than one loss function of torch"
ALIKE = 1e-5  # relative distance of factors that are one
BESIDE = {
    "epochs", "ep", "steps", "it", "iters", "iteration", "iterations", "s", "sec", "secs", "seconds", "ms", "min",
    "time", "elapsed", "eta", "lr", "learning", "best", "final", "auc", "auroc", "ppl", "perplexity", "iou", "miou",
    "dice", "recall", "precision", "err", "error", "grad", "gradient", "norm", "on", "set", "at", "after", "of",
    "and", "saved", "saving", "checkpoint", "new", "improved", "patience", "early", "stopping", "info", "nan", "inf",
    "mb", "gb", "mem", "memory", "gpu",
}  # fmt: skip
UNDERSTOOD = (PLAIN | TRAIN | VALIDATION | LOSS | LOSSES | ACCURACY | BESIDE) - {"total", "all"}  # of a printed line
TRAINED = ("train", "trn", "training", "tr")  # names of nothing in particular
VALIDATED = ("val", "valid", "validation", "test", "dev", "eval")
NEAR = 0.1  # of the mean loss since the line before, that a printed number is off; the curve of losses is thinned
FEWEST_LINES, MOST_LINES = 5, 0.8  # lines, and the share of them that must be as near
PRINTED = ("val_loss", "val_accuracy")  # the losses of training are read at every step


class Proof:
    """Whether what backward is called on is one loss over given labels, as far as graph and loop show it."""

    def __init__(self) -> None:
        self.why = "no loss was read"
        self.backwards = 0
        self.classes: int | None = None
        self._form: BackwardFacts | None = None
        self._spoilt = ""
        self._outputs: set[tuple[str, int | None]] = set()
        self._passes = False

    def stepped(self, event: OptimizerStepped) -> None:
        """Each backward beside the first one."""
        for facts in event.backwards:
            self.backwards += 1
            self._form = self._form or facts
            if not facts.whole or not facts.factor:
                self._spoil(COMPOSED)
            elif not _alike(facts, self._form):
                self._spoil("there is more than one loss, or its weight changes")
            elif facts.one_target:
                self._spoil("all targets of a batch are equal, as with adversaries and contrasts")

    def computed(self, event: LossComputed) -> None:
        """The kind of loss, and its classes."""
        self._outputs.add((event.kind, event.classes))
        target, classes = event.target, event.classes
        pairs = classes and target.total == classes and (target.low, target.high) == (0, classes - 1)
        if pairs and event.kind == "cross_entropy":
            self._spoil("it contrasts the samples of a batch")
        if len(self._outputs) > 1:
            self._spoil("there is more than one loss")
        plain = event.kind == "cross_entropy" and event.reduction == "mean"
        self.classes = classes if plain else None

    def passed(self, event: PassEnded) -> None:
        """A data set of known length is gone through again and again."""
        self._passes = self._passes or event.length is not None

    def _spoil(self, why: str) -> None:
        self._spoilt = self._spoilt or why

    @property
    def spoilt(self) -> str:
        """What speaks against one loss alone, or nothing."""
        return self._spoilt or ("" if self.backwards else "no backward was looked at")

    def missing(self) -> str:
        """What speaks against it, or nothing."""
        kind = next(iter(self._outputs), ("", None))[0]
        if self.spoilt:
            return self.spoilt
        fitted = kind in FITTED and self._passes
        return "" if kind in LABELLED or fitted else "an agent that makes its own data has such a loss, too"

    @property
    def chance(self) -> int | None:
        """The number of classes, if guessing among them costs its logarithm."""
        plain = self._form is not None and abs(self._form.factor - 1) < ALIKE
        return self.classes if plain and not self.missing() else None


class Bare:
    """Lines that say ``train 0.52 | val 0.61``: of losses, where the first number is the loss of the steps before."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, float, float]] = []

    def take(self, step: int, told: Sequence[tuple[str, float, float | None]]) -> None:
        """A line that was printed at a step."""
        numbers = {name.lower(): value for name, value, of in told if not of}
        train = [value for name, value in numbers.items() if name in TRAINED]
        other = [value for name, value in numbers.items() if name in VALIDATED]
        if len(train) == len(other) == 1 and len(self._lines) < MOST:
            self._lines.append((step, train[0], other[0]))

    def curve(self, loss: Curve) -> Curve | None:
        """Of the validation, if nearly all of the lines tell the mean loss."""
        hits, before = 0, 0
        for step, train, _ in self._lines:
            between = [value for at, value in zip(loss.steps, loss.values, strict=True) if before <= at < step]
            mean = sum(between) / len(between) if between else math.nan
            hits, before = hits + (abs(train - mean) <= NEAR * mean), step
        if len(self._lines) < FEWEST_LINES or hits < MOST_LINES * len(self._lines):
            return None
        steps, values = zip(*((float(step), value) for step, _, value in self._lines), strict=True)
        return Curve(name="val", role="val_loss", steps=steps, values=values, count=len(steps))


def _alike(one: BackwardFacts, other: BackwardFacts) -> bool:
    same = (one.losses, one.where) == (other.losses, other.where)
    return same and abs(one.factor - other.factor) <= ALIKE * abs(other.factor)


class Curves:
    """Takes events, and judges when it is asked to look."""

    def __init__(self, rules: Sequence[Rule], *, budget: float, on_broken: Callable[[str, Exception], None]) -> None:
        self.rules = [rule for rule in rules if [e for e in watched(rule) if e.live] == [CurvesUpdated]]
        self.findings: list[Finding] = []
        self.unchecked = {rule.code: "no loss was read" for rule in self.rules}
        self.unproven = ""  # why the loss of backward is no curve that ought to fall
        self._on_broken, self._budget = on_broken, budget
        self._broken: dict[str, str] = {}
        self._started, self._spent, self._took = time.monotonic(), 0.0, A_LOOK
        self._next = float(FIRST_LOOK)
        self._before: set[tuple[str, str]] = set()
        self._proof = Proof()
        self._log = RunLog()
        self._bare = Bare()
        self._rows: list[tuple[int, tuple[tuple[str, float], ...]]] = []
        self._sums: dict[int, tuple[int, float]] = {}  # of each optimizer: losses, and their sum
        self._kept: dict[str, bool] = {}  # names that the script logged, and whether a rule may judge them
        self._epochs: dict[int, int] = {}  # of each loader
        self._handlers: dict[type[Event], Callable[..., None]] = {
            LossesRead: self._losses,
            ScalarsLogged: self._logged,
            OptimizerStepped: self._proof.stepped,
            LossComputed: self._proof.computed,
            PassEnded: self._passed,
        }

    def wants(self, event: type[Event]) -> bool:
        """Whether anything is made of this event."""
        return bool(self.rules) and (event in self._handlers or event is LinePrinted)

    def scalars_in(self, event: LinePrinted) -> ScalarsLogged | None:
        """What a printed line tells of the validation; one with a word that is not understood may be of anything."""
        if not all(word in UNDERSTOOD for word in words_of(event.text) if word.isalpha()):
            return None
        told = list(pairs(event.text))
        self._bare.take(event.step, told)
        known = [(name, value, of, role) for name, value, of in told if (role := role_of(name)) in PRINTED]
        values = tuple((name, value / of if of and role == PRINTED[1] else value) for name, value, of, role in known)
        return ScalarsLogged(step=event.step, values=values) if values else None

    def take(self, event: Event) -> None:
        """Keep what there is to keep."""
        if self.rules and (handler := self._handlers.get(type(event))) is not None:
            handler(event)

    # ------------------------------------------------------------------ what comes in

    def _losses(self, event: LossesRead) -> None:
        key, steps = event.optimizer.key, [float(step) for step in event.steps]
        self._thinner(_loss(key), MOST).extend(steps, steps, event.losses)
        count, total = self._sums.get(key, (0, 0.0))
        self._sums[key] = count + len(steps), total + sum(event.losses)
        if len(self._sums) == 1:
            known = [(s, rate) for s, rate in zip(steps, event.rates, strict=True) if not math.isnan(rate)]
            at = [step for step, _ in known]
            self._thinner(_rate(key), MOST).extend(at, at, [rate for _, rate in known])

    def _thinner(self, name: str, most: int) -> Thinner:
        return self._log.curves.setdefault(name, Thinner(most))

    def _logged(self, event: ScalarsLogged) -> None:
        self._rows.append((event.step, event.values))
        if len(self._rows) >= WAITING:
            self._take_rows()

    def _take_rows(self) -> None:
        """Rows of the same names together. Of a curve that nobody can judge only the name is kept."""
        rows, self._rows = self._rows, []
        columns: dict[str, tuple[list[float], list[float]]] = {}
        for step, values in rows:
            for name, value in values:
                kept = self._kept.get(name)
                if kept is False:
                    continue
                if kept is None:
                    self._meet(name)
                steps, numbers = columns.setdefault(name, ([], []))
                steps.append(float(step))
                numbers.append(value)
        for name, (steps, numbers) in columns.items():
            if name in self._log.curves:
                self._log.curves[name].extend(steps, steps, numbers)

    def _meet(self, name: str) -> None:
        """A name that was not logged before."""
        room = len(self._log.curves) < MOST_NAMES
        self._kept[name] = room and (bool(role_of(name)) or told_by_name(name))
        if room:
            self._thinner(name, MOST if self._kept[name] else 1)

    def _passed(self, event: PassEnded) -> None:
        self._proof.passed(event)
        count = self._epochs[event.loader] = self._epochs.get(event.loader, 0) + 1
        if next(iter(self._epochs)) == event.loader:
            thinner, first = self._thinner("epoch", MOST), (0.0,)
            if count == 1:
                thinner.extend(first, first, first)
            at = (float(event.step + 1),)
            thinner.extend(at, at, (float(count),))

    # ------------------------------------------------------------------ looking

    @property
    def due(self) -> float:
        """When to read the journal next."""
        return time.monotonic() + EVERY if self.rules else float("inf")

    def look(self, steps: int) -> list[Finding]:
        """Judge if it is time to; what two looks agree on and was not told yet."""
        elapsed = time.monotonic() - self._started
        if not self.rules or steps < self._next or self._spent + self._took > SHARE * self._budget * elapsed:
            return []
        self._next = steps * FURTHER
        return self._judge(steps, ended=False)

    def validation(self, steps: int) -> ValidationTold | None:
        """All validation losses that were logged or printed."""
        told = next((curve.values for curve in self._read().curves if curve.role == "val_loss"), ())
        return ValidationTold(step=steps, losses=told) if told else None

    def finish(self, steps: int, *, ended: bool) -> None:
        """The last look."""
        if self.rules and steps:
            self._judge(steps, ended=ended)

    def _judge(self, steps: int, *, ended: bool) -> list[Finding]:
        began = time.monotonic()
        event = self._event(steps, ended=ended)
        rules = [rule for rule in self.rules if rule.code not in self._broken]
        engine = Engine(rules, on_finding=lambda finding: None, on_broken=self._fail)
        engine.emit(event)
        self.findings = engine.findings
        self.unchecked = {rule.code: why for rule in rules if (why := rule.lacks(event))} | self._broken
        agreed = [finding for finding in self.findings if (finding.code, finding.key) in self._before]
        self._before = {(finding.code, finding.key) for finding in self.findings}
        self._took = time.monotonic() - began
        self._spent += self._took
        return agreed

    def _fail(self, code: str, error: Exception) -> None:
        self._broken[code] = f"the rule failed: {type(error).__name__}: {error}"
        self._on_broken(code, error)

    # ------------------------------------------------------------------ the curves

    def _event(self, steps: int, *, ended: bool) -> CurvesUpdated:
        event = self._read()
        why = self.unproven = self._unproven(event)
        curves = [self._with_role(curve, event, why) for curve in event.curves]
        known = any(curve.role == "train_loss" for curve in curves)
        classes = self._proof.chance if not why else None
        return dataclasses.replace(
            event, step=steps, curves=tuple(curves), classes=classes, ended=ended, note="" if known else why
        )

    def _read(self) -> CurvesUpdated:
        """Everything that was read, with the losses of validation that were printed under no name."""
        self._take_rows()
        event = self._log.event()
        loss = next((curve for curve in event.curves if curve.name == _loss(next(iter(self._sums), 0))), None)
        bare = self._bare.curve(loss) if loss is not None and not _has(event, "val_loss") else None
        return dataclasses.replace(event, curves=(*event.curves, bare)) if bare is not None else event

    def _unproven(self, event: CurvesUpdated) -> str:
        """Why the loss of backward is no curve that ought to fall, or nothing."""
        if not self._sums:
            return "no loss was read"
        if len(set(self._sums.values())) > 1:
            return "several optimizers trained, each on losses of its own"
        return "there is a reward" if _has(event, "reward") else self._proof.missing()

    def _with_role(self, curve: Curve, event: CurvesUpdated, why: str) -> Curve:
        key = next(iter(self._sums), 0)
        if curve.name == _loss(key) and not why and not _has(event, "train_loss"):
            return dataclasses.replace(curve, name="the loss", role="train_loss")
        if curve.name == _rate(key) and not _has(event, "learning_rate"):
            return dataclasses.replace(curve, role="learning_rate")
        apart = len(set(self._sums.values())) > 1 and curve.role in ("train_loss", "val_loss")
        return dataclasses.replace(curve, role="") if apart else curve


def _has(event: CurvesUpdated, role: str) -> bool:
    return any(curve.role == role for curve in event.curves)


def _loss(key: int) -> str:
    """A name that means nothing to those who guess roles."""
    return f"loss under backward #{key}"


def _rate(key: int) -> str:
    return f"rate at step #{key}"
