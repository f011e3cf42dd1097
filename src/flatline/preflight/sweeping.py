"""The learning rate swept from far too small to far too large over the script's own optimizer (Smith 2017, arXiv 1506.01186)."""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from flatline.events import Event, OptimizerStepped, RatesSwept, Where
from flatline.preflight.likely import misplaced
from flatline.preflight.serving import Loaders
from flatline.preflight.stages import Answer, Steered, configured
from flatline.sensors.sources import tree_of
from flatline.toolbox.learning_rates import Smoothed

LOWEST, HIGHEST = 1e-7, 10.0
SMOOTHING = 0.9  # of the loss, over steps
DIVERGED = 4.0  # times the best smoothed loss: the sweep ends (as in fast.ai's and torch-lr-finder's)
FEWEST = 20  # steps of a curve that is worth reading
AROUND = 8  # steps on either side of a rate that tell how the loss falls there: half a decade
SKIPPED = 10  # first steps, before the mean has a past (as in torch-lr-finder)
DOUBTS = {
    "": "",
    "beyond": "the configured rate lies in what diverged",
    "below": "the configured rate is far below what makes the loss fall",
}
FALL = 0.02  # of the first loss: less is no fall
TIMES = [0, *(round(1.25**at) for at in range(60))]  # steps up to half a million at which a schedule is asked


class Sweeping(Steered):
    """Multiplies the rates of all groups by one factor that grows with every step."""

    name: ClassVar[str] = "rates"
    steps: ClassVar[int] = 120

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(Loaders(lambda: None), *args, **kwargs)
        self._own: dict[int, list[float]] = {}
        self.rates: list[float] = []
        self._name = ""
        self._where: Where | None = None
        self._functions: list[Callable[[int], float]] = []  # of LambdaLR schedules
        self._schedules: set[int] = set()

    def attach(self) -> None:
        """Learn of schedules that multiply the rate with what a function returns."""
        super().attach()
        building, beginning = LambdaLR.__init__, LRScheduler.__init__

        def built(schedule: LambdaLR, *args: Any, **kwargs: Any) -> None:
            building(schedule, *args, **kwargs)
            self._functions += schedule.lr_lambdas

        def begun(schedule: LRScheduler, *args: Any, **kwargs: Any) -> None:
            self._schedules.add(id(schedule))
            beginning(schedule, *args, **kwargs)

        LambdaLR.__init__ = built  # type: ignore[method-assign, assignment]
        LRScheduler.__init__ = begun  # type: ignore[method-assign, assignment]

    def heard(self, event: Event) -> None:
        """Where the optimizer was built."""
        super().heard(event)
        if isinstance(event, OptimizerStepped):
            self._name, self._where = event.optimizer.name, event.optimizer.where

    def before_step(self, optimizer: Any) -> None:
        """Set the rate of this step."""
        super().before_step(optimizer)
        own = self._own.setdefault(id(optimizer), [float(configured(group)) for group in optimizer.param_groups])
        rate = LOWEST * (HIGHEST / LOWEST) ** (self.steps_done / max(1, self.limit - 1))
        for group, rate_of_group in zip(optimizer.param_groups, own, strict=False):
            group["lr"] = rate * (rate_of_group / own[0] if own[0] else 1.0)
        self.rates.append(rate)

    def after_step(self, optimizer: Any) -> None:
        """Stop when the loss has gone."""
        super().after_step(optimizer)
        curve = smoothed(self.losses())
        if len(curve) >= FEWEST and min(curve) > 0 and _gone(curve):
            self.stop()

    def answer(self) -> Answer:
        """The curve, and the rate where it falls fastest."""
        losses = self.losses()
        rates = self.rates[: len(losses)]
        own = next(iter(self._own.values()), [math.nan])[0]
        told = {"rates": rates, "losses": losses, "configured": own}
        if self.closure:
            self.missing = "the optimizer computes the loss itself, with a closure, and finds its own step"
        if self.missing or len(losses) < FEWEST:
            why = self.missing or f"the script took {len(losses)} steps whose loss could be read; {FEWEST} are needed"
            return {"verdict": "not done", "why": why, **told}
        found = suggested(rates, losses)
        if self.over_early and not _gone(losses):
            why = f"the script took {self.steps_done} of the {self.limit} steps of the sweep, which came to {rates[-1]:.1e}"
            return {"verdict": "open", "why": why, "within": self.steps_done, **told}
        if found is None:
            return {"verdict": "open", "why": "the loss falls at no rate of the sweep", **told}
        steepest, lowest, diverges = found
        words = f"falls fastest at {steepest:.1e}; configured {own:.1e}"
        if diverges is not None:
            words += f"; diverges from {diverges:.1e} on"
        doubt = DOUBTS[misplaced(own, steepest, diverges)]
        event = RatesSwept(
            step=self.steps_done,
            where=self._where,
            optimizer=self._name,
            configured=own,
            steepest=steepest,
            diverges=diverges,
            factor=highest_factor(self._functions) if len(self._schedules) == 1 else None,
            first_loss=losses[0],
            lowest_loss=min(smoothed(losses)),
        )
        told_of, codes = self.judged([event])
        return {
            "verdict": "failed" if told_of else "open" if doubt else "passed",
            "findings": told_of,
            "checked": codes,
            "why": words + (f": {doubt}" if doubt else ""),
            "steepest": steepest,
            "lowest": lowest,
            "diverges": diverges,
            **told,
        }


def highest_factor(functions: Sequence[Callable[[int], float]]) -> float | None:
    """The most that they return at any step, over half a million; None if there are none, or it depends on more than the step."""
    highest = [0.0] if functions else []
    if not all(map(depends_on_steps_alone, functions)):
        return None
    with suppress(Exception):  # the user's function may know an end, or anything else
        return max([*highest, *(float(function(at)) for function in functions for at in TIMES)], default=None)
    return None


def depends_on_steps_alone(function: Callable[[int], float]) -> bool:
    """A function that reads nothing which the file counts on, or sets again."""
    code = getattr(function, "__code__", None)
    tree = tree_of(code.co_filename) if code is not None else None
    if code is None or tree is None:
        return False
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    read = {*code.co_names, *code.co_freevars}
    return not read & moving(tree) and not any(isinstance(each, (dict, list, set)) for each in cells)


def moving(tree: ast.AST) -> set[str]:
    """Names and attributes that loops count with, that are added to, or set more than once; keys are not told apart."""
    targets = [t for n in ast.walk(tree) if isinstance(n, ast.Assign) for t in n.targets]
    targets += [n.target for n in ast.walk(tree) if isinstance(n, (ast.For, ast.AugAssign)) for _ in range(2)]
    names = [_last_name(inner) for t in targets for inner in ast.walk(t)]
    containers = [n.value for n in ast.walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)]
    return {n for n, times in Counter(names).items() if n and times > 1} | {_last_name(c) for c in containers}


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _gone(losses: Sequence[float]) -> bool:
    """Whether the last of them diverged."""
    return losses[-1] - losses[-1] != 0.0 or losses[-1] > DIVERGED * min(losses)


def smoothed(losses: Sequence[float]) -> list[float]:
    """An exponential mean without the bias of its start."""
    mean = Smoothed(SMOOTHING)
    return [mean.add(loss) for loss in losses]


def _fall(curve: Sequence[float], at: int) -> float:
    """From the places before one to those behind it; rates grow by one factor. The noise of single batches cancels out."""
    behind = curve[at + 1 : at + 1 + AROUND]
    before = curve[max(0, at - len(behind)) : at]
    return math.fsum(before) / len(before) - math.fsum(behind) / len(behind)


def suggested(rates: Sequence[float], losses: Sequence[float]) -> tuple[float, float, float | None] | None:
    """The rates of the steepest fall and of the lowest loss, and that from which on it diverges; None if it never falls."""
    curve = smoothed([loss if loss - loss == 0.0 else math.inf for loss in losses])
    finite = [loss for loss in curve if math.isfinite(loss)]
    if len(finite) < FEWEST or min(finite) > finite[0] - FALL * abs(finite[0]):
        return None
    lowest = finite.index(min(finite))
    falls = [_fall(finite, at) for at in range(SKIPPED, max(SKIPPED + 1, lowest))]
    steepest = SKIPPED + falls.index(max(falls))
    beyond = (at for at in range(lowest, len(curve)) if not curve[at] <= DIVERGED * max(min(finite), 1e-12))
    gone = next(beyond, None)
    return rates[steepest], rates[lowest], rates[gone] if gone is not None else None
