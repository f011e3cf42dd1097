"""Series of a record as charts: which lines share axes, no more points than a screen can show, and the same in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatline.reporters._plain import one_line

if TYPE_CHECKING:
    from flatline.record import Series

POINTS = 4000  # of one line
NUMBERS = 240_000  # of all lines together: about 2 MB of the page
DIGITS = 5  # significant
TOO_LARGE = 1e30  # beyond it axes overflow; it counts as not finite
FARTHEST = 1e12  # a step beyond it is damage, and would leave no axis to draw on
MARKS = 200  # steps without a finite value that are marked
LOGGED = "logged/"
TITLES = {"loss": "Loss", "lr": "Learning rate", "gradient_norm": "Gradient norm", "loss_scale": "Loss scale"}
MISSING = {
    "loss": "No loss was recorded.",
    "lr": "No learning rate was recorded.",
    "gradient_norm": "No gradient norm was recorded.",
    "loss_scale": "No loss scale was recorded: no GradScaler was used.",
}
HOMES = {
    "val_loss": "loss",
    "validation_loss": "loss",
    "clip_threshold": "gradient_norm",
    "clipped_norm": "gradient_norm",
}
LABELS = {
    "loss": "training loss",
    "val_loss": "validation loss",
    "validation_loss": "validation loss",
    "lr": "learning rate",
    "gradient_norm": "gradient norm",
    "clip_threshold": "clip threshold",
    "clipped_norm": "after clipping",
    "loss_scale": "loss scale",
}
PROCESSES = ("rank ", "process ")  # of which there are several
HELD_OUT = {"val", "valid", "validation", "eval", "test", "dev"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart. Values that are not finite are None."""

    name: str
    steps: tuple[float, ...]
    values: tuple[float | None, ...]
    lows: tuple[float | None, ...] = ()
    highs: tuple[float | None, ...] = ()
    not_finite: tuple[float, ...] = ()
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines that share their axes, and what they say in words."""

    id: str
    title: str
    lines: tuple[Line, ...]
    logged: bool = False  # by the user's program
    positive: bool = False  # a logarithmic axis makes sense
    log: bool = False  # and is the better one at first
    says: str = ""


def charts(series: Sequence[Series]) -> tuple[Chart, ...]:
    """The four that matter first, then all others, each on axes of its own."""
    groups: dict[str, list[Series]] = {name: [] for name in TITLES}
    for one in series:
        groups.setdefault(_home(one.name, series), []).append(one)
    points = _points(series)
    return tuple(_chart(name, members, points=points) for name, members in groups.items() if members)


def missing(drawn: Iterable[Chart]) -> tuple[str, ...]:
    """A line for each of the four charts that could not be drawn."""
    there = {chart.id for chart in drawn}
    return tuple(line for name, line in MISSING.items() if name not in there)


def _points(series: Sequence[Series]) -> int:
    numbers = [len(one.values) * (3 if one.lows or len(one.values) > POINTS else 1) for one in series]
    if sum(min(count, 3 * POINTS) for count in numbers) <= NUMBERS:
        return POINTS
    return max(100, min(POINTS, NUMBERS // (4 * len(series))))  # 4: value, low, high and perhaps a step


def _home(name: str, series: Sequence[Series]) -> str:
    """The chart that a series belongs to: ``loss/generator`` to the loss."""
    base = name.partition("/")[0]
    if base != "logged":
        return HOMES.get(base, base if base in TITLES else name)
    words = set(name.lower().replace("_", "/").replace("-", "/").split("/"))
    validation = "loss" in words and bool(words & HELD_OUT)
    own = any(HOMES.get(other.name.partition("/")[0]) == "loss" for other in series)
    return "loss" if validation and not own else name


def _chart(name: str, members: Sequence[Series], *, points: int) -> Chart:
    alone = len({one.name.partition("/")[0] for one in members}) == 1 and len(members) > 1
    lines = tuple(_line(one, points=points, alone=alone) for one in members)
    title = TITLES.get(name) or one_line(name.removeprefix(LOGGED), limit=200)
    low, high = _extent(lines)
    return Chart(
        id=name,
        title=title,
        lines=lines,
        logged=name.startswith(LOGGED),
        positive=low > 0,
        log=low > 0 and name in ("loss", "gradient_norm", "loss_scale") and high > 100 * low,
        says=_chart_says(title, lines),
    )


def _line(one: Series, *, points: int, alone: bool) -> Line:
    steps, values, lows, highs = thinned(one, points)
    base, _, rest = one.name.partition("/")
    label = one_line(rest if rest and (alone or base == "logged") else LABELS.get(one.name, one.name), limit=200)
    if rest.startswith(PROCESSES) and base in LABELS:
        label = f"{LABELS[base]}, {one_line(rest, limit=100)}"
    lost = sorted(
        {
            *filter(possible, one.not_finite),
            *(s for s, v in zip(one.steps, one.values, strict=False) if abs(v) > TOO_LARGE),
        }
    )
    return Line(
        name=label,
        steps=steps,
        values=tuple(map(rounded, values)),
        lows=tuple(map(rounded, lows)),
        highs=tuple(map(rounded, highs)),
        not_finite=tuple(lost[:: max(1, math.ceil(len(lost) / MARKS))]),
        dashed=base in ("clip_threshold", "val_loss", "validation_loss"),
    )


Columns = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...], tuple[float, ...]]


def thinned(one: Series, points: int) -> Columns:
    """Steps in order, values, lows and highs, at most so many: each the mean, lowest and highest of a stretch."""
    steps, values, lows, highs = _ordered(one)
    if len(steps) <= points:
        return steps, values, lows, highs
    size = math.ceil(len(steps) / points)
    starts = range(0, len(steps), size)
    return (
        steps[::size],
        tuple(_over(_mean, values[at : at + size]) for at in starts),
        tuple(_over(min, (lows or values)[at : at + size]) for at in starts),
        tuple(_over(max, (highs or values)[at : at + size]) for at in starts),
    )


def _ordered(one: Series) -> Columns:
    """As recorded; a damaged record may hold steps that go back, which are left out."""
    rising = all(a < b for a, b in zip(one.steps, one.steps[1:], strict=False))
    whole = all(len(column) in (0, len(one.steps)) for column in (one.lows, one.highs))
    if rising and whole and len(one.values) == len(one.steps) and all(map(possible, one.steps)):
        return one.steps, one.values, one.lows, one.highs
    points = dict(zip(one.steps, one.values, strict=False))
    steps = tuple(sorted(filter(possible, points)))
    return steps, tuple(points[step] for step in steps), (), ()


def possible(step: float) -> bool:
    """Whether a run can have come to this step."""
    return abs(step) <= FARTHEST


def _over(of: Callable[[Sequence[float]], float], stretch: Sequence[float]) -> float:
    finite = [value for value in stretch if math.isfinite(value)]
    return of(finite) if finite else math.nan


def _mean(values: Sequence[float]) -> float:
    return sum(value / len(values) for value in values)  # their sum might overflow


def rounded(value: float | None) -> float | None:
    """To the digits that are worth their bytes; None for what is not finite or too large to draw."""
    if value is None or not abs(value) <= TOO_LARGE:
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


# --------------------------------------------------------------------------- in words


def _extent(lines: Sequence[Line]) -> tuple[float, float]:
    finite = [value for line in lines for value in (*line.values, *line.lows) if value is not None]
    return (min(finite), max(finite)) if finite else (0.0, 0.0)


def _chart_says(title: str, lines: Sequence[Line]) -> str:
    return f"{title}. " + " ".join(map(_line_says, lines))


def _line_says(line: Line) -> str:
    points = [(step, value) for step, value in zip(line.steps, line.values, strict=False) if value is not None]
    lost = (
        f" Not finite at {len(line.not_finite)} or more steps, first at {line.not_finite[0]:,.0f}."
        if line.not_finite
        else ""
    )
    if not points:
        return f"{line.name}: no finite value.{lost}"
    (first, start), (last, end) = points[0], points[-1]
    low, high = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
    if low[1] == high[1]:
        return f"{line.name}: {start:.4g} throughout, steps {first:,.0f} to {last:,.0f}.{lost}"
    return (
        f"{line.name}: {start:.4g} at step {first:,.0f}, {end:.4g} at step {last:,.0f}; lowest {low[1]:.4g} at step "
        f"{low[0]:,.0f}, highest {high[1]:.4g} at step {high[0]:,.0f}.{lost}"
    )
