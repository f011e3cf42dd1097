"""What was measured layer by layer: grids as heat maps, and histograms over time."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from flatline.reporters._plain import one_line
from flatline.reporters.html.curves import possible, rounded

if TYPE_CHECKING:
    from flatline.record import Grid, Histogram

COLUMNS = 400
CELLS = 700_000  # of all heat maps together: about 2 MB of the page
ROWS = 3000
TOP, INFINITE, ZERO, UNKNOWN = 65000, 65533, 65534, 65535  # codes of a cell; up to TOP they are values
QUANTILE = 0.01  # of the values at each end have the end colours
TIMES = 120  # histograms of one name
BINS = 60_000  # of all histograms together


@dataclass(frozen=True, slots=True)
class Kind:
    """How one quantity is shown."""

    title: str
    note: str = ""
    log: bool = True
    main: bool = False
    span: tuple[float, float] | None = None


KINDS = {
    "update_ratio": Kind(
        "Update to weight ratio", "size of one update over the size of the weights; 0.001 is usual", main=True
    ),
    "activation_std": Kind("Activation spread", "standard deviation of what each layer puts out", main=True),
    "zeros": Kind(
        "Zeros", "share of a layer's outputs that are exactly zero; 1 is a dead layer", False, True, (0.0, 1.0)
    ),
    "saturated": Kind("Saturation", "share of a layer's outputs at their limit", False, True, (0.0, 1.0)),
    "gradient_rms": Kind("Gradient size", "root mean square of each gradient"),
    "weight_rms": Kind("Weight size", "root mean square of each weight"),
    "activation_mean": Kind("Activation mean", "mean of what each layer puts out", log=False),
    "attention_entropy": Kind("Attention entropy", "0 is attention to a single place", log=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """A heat map. A cell is a code of two bytes between low and high; colours span shade_low to shade_high."""

    id: str
    title: str
    note: str
    main: bool
    log: bool
    names: tuple[str, ...]
    steps: tuple[int, ...]
    low: float
    high: float
    shade_low: float
    shade_high: float
    cells: str  # base64 of little-endian codes, step by step
    says: str
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """The histograms of one name over the steps."""

    name: str
    steps: tuple[int, ...]
    edges: tuple[tuple[float | None, ...], ...]
    counts: tuple[tuple[int, ...], ...]
    says: str


def heats(grids: Iterable[Grid]) -> tuple[Heat, ...]:
    """The known quantities in the order in which they are worth looking at, then the others."""
    there = {grid.quantity: grid for grid in map(_sound, grids) if grid.names and grid.steps}
    order = [*(name for name in KINDS if name in there), *(name for name in there if name not in KINDS)]
    columns = min(COLUMNS, max(20, CELLS // max(1, sum(min(ROWS, len(grid.names)) for grid in there.values()))))
    return tuple(_heat(there[name], columns) for name in order)


def _sound(grid: Grid) -> Grid:
    """Without what only a damaged record can hold."""
    if all(map(possible, grid.steps)) and all(a < b for a, b in zip(grid.steps, grid.steps[1:], strict=False)):
        return grid
    rows = {step: row for step, row in zip(grid.steps, grid.values, strict=False) if possible(step)}
    return replace(grid, steps=tuple(sorted(rows)), values=tuple(rows[step] for step in sorted(rows)))


def _heat(grid: Grid, columns: int) -> Heat:
    kind = KINDS.get(grid.quantity) or Kind(one_line(grid.quantity.replace("_", " "), limit=80), log=False)
    steps, rows = _fewer(grid, columns)
    finite = sorted(value for row in rows for value in row if math.isfinite(value))
    log = kind.log and bool(finite) and finite[0] >= 0 and finite[-1] > 0
    shown = [value for value in finite if value > 0] if log else finite
    low, high = (shown[0], shown[-1]) if shown else (0.0, 1.0)
    shade = kind.span or _shade(shown, log=log)
    return Heat(
        id=grid.quantity,
        title=kind.title,
        note=kind.note,
        main=kind.main,
        log=log,
        names=tuple(one_line(name, limit=300) for name in grid.names[:ROWS]),
        steps=steps,
        low=low,
        high=high,
        shade_low=rounded(shade[0]) or 0.0,
        shade_high=rounded(shade[1]) or 0.0,
        cells=_coded(rows, low, high, log=log),
        says=_says(kind.title, grid, finite),
        left_out=max(0, len(grid.names) - ROWS),
    )


def _fewer(grid: Grid, columns: int) -> tuple[tuple[int, ...], list[list[float]]]:
    """At most so many columns, each with the highest value of its stretch."""
    size = math.ceil(len(grid.steps) / columns)
    stretches = [grid.values[at : at + size] for at in range(0, len(grid.steps), size)]
    width = min(ROWS, len(grid.names))
    if size == 1:
        return grid.steps, [_row(rows[0], width) for rows in stretches]
    return grid.steps[::size], [[_highest(rows, at) for at in range(width)] for rows in stretches]


def _row(row: Sequence[float], width: int) -> list[float]:
    return [*row[:width], *([math.nan] * (width - len(row)))]


def _highest(rows: Sequence[Sequence[float]], at: int) -> float:
    known = [row[at] for row in rows if at < len(row) and not math.isnan(row[at])]
    return max(known, default=math.nan)


def _shade(ordered: Sequence[float], *, log: bool) -> tuple[float, float]:
    """Where colours begin and end: a few outliers must not take the colours from all others."""
    if not ordered:
        return 0.0, 1.0
    cut = int(len(ordered) * QUANTILE)
    low, high = ordered[cut], ordered[-1 - cut]
    least = low * 4 if log else low + (abs(low) or 1.0) * 0.1
    return low, max(high, least)  # what hardly differs should not look as if it did


def _coded(rows: Iterable[Sequence[float]], low: float, high: float, *, log: bool) -> str:
    start, end = (math.log(low), math.log(high)) if log else (low, high)
    factor = TOP / (end - start) if end > start else 0.0
    codes = array("H", [_code(value, start, factor, log=log) for row in rows for value in row])
    if sys.byteorder == "big":
        codes.byteswap()
    return base64.b64encode(codes.tobytes()).decode("ascii")


def _code(value: float, start: float, factor: float, *, log: bool) -> int:
    if math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return INFINITE
    if log:
        return round((math.log(value) - start) * factor) if value > 0 else ZERO
    return round((value - start) * factor) if factor and math.isfinite(factor) else 0


def _says(title: str, grid: Grid, finite: Sequence[float]) -> str:
    many = f"{len(grid.names):,} layer{'s' if len(grid.names) != 1 else ''}"
    head = f"Heat map of {title.lower()}: {many}, {len(grid.steps):,} samples over steps {grid.steps[0]:,} to {grid.steps[-1]:,}."
    if not finite:
        return f"{head} No finite value."
    last = {name: value for name, value in zip(grid.names, grid.values[-1], strict=False) if math.isfinite(value)}
    ends = ""
    if len(last) > 1:
        least, most = min(last, key=last.__getitem__), max(last, key=last.__getitem__)
        ends = (
            f" At last lowest in {one_line(least)} ({last[least]:.3g}), highest in {one_line(most)} ({last[most]:.3g})."
        )
    return f"{head} Median {median(finite):.3g}, from {finite[0]:.3g} to {finite[-1]:.3g}.{ends}"


# --------------------------------------------------------------------------- histograms


def bins(histograms: Sequence[Histogram]) -> tuple[Bins, ...]:
    """One entry a name, in the order in which they were recorded, within the page's means."""
    named: dict[str, list[Histogram]] = defaultdict(list)
    for one in histograms:
        if (
            len(one.edges) == len(one.counts) + 1
            and all(map(math.isfinite, one.edges))
            and any(one.counts)
            and possible(one.step)
        ):
            named[one.name].append(one)
    total = sum(len(one.counts) for each in named.values() for one in each)
    times = max(2, TIMES * BINS // max(BINS, total))
    return tuple(_bins(name, each[:: math.ceil(len(each) / times)]) for name, each in list(named.items())[:ROWS])


def _bins(name: str, each: Sequence[Histogram]) -> Bins:
    first, last = each[0], each[-1]
    return Bins(
        name=one_line(name, limit=300),
        steps=tuple(one.step for one in each),
        edges=tuple(tuple(map(rounded, one.edges)) for one in each),
        counts=tuple(one.counts for one in each),
        says=f"{one_line(name)} at {len(each)} steps from {first.step:,} to {last.step:,}: values between {first.edges[0]:.3g} and "
        f"{first.edges[-1]:.3g} at first, between {last.edges[0]:.3g} and {last.edges[-1]:.3g} at last.",
    )
