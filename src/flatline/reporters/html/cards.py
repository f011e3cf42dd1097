"""Findings as cards: what the finding says, the user's lines, and where on which curve it happened."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from flatline import catalogue
from flatline.events import Where
from flatline.findings import Finding, Value
from flatline.reporters._plain import clean, nearby, one_line
from flatline.reporters.html.curves import Chart, rounded
from flatline.reporters.html.layers import Heat
from flatline.reporters.text import context

if TYPE_CHECKING:
    from flatline.record import Recording

GRIDS = {  # by slug or family: the quantities in which a layer shows what is wrong with it
    "dead-units": ("zeros", "saturated"),
    "update-ratio-off": ("update_ratio",),
    "activation-scale-with-depth": ("activation_std",),
    "attention-entropy-collapse": ("attention_entropy",),
    "gradients": ("gradient_rms",),
    "weights": ("weight_rms",),
    "optimization": ("update_ratio", "gradient_rms"),
}
CURVES = {
    "scheduler-out-of-step": "lr",
    "logged-rate-is-not-the-rate": "lr",
    "loss-scale-collapse": "loss_scale",
    "half-without-scaler": "loss_scale",
    "gradients": "gradient_norm",
}
STARTS = ("from_step", "first_step", "last_finite_step", "turn", "at", "since")  # evidence: the step where it began
LEVELS = ("threshold", "clip_threshold", "max_norm")
LEAST, SHARE = 25, 0.08  # steps around a finding, at least, and of the whole run
FEWEST = 3  # points that make a curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A small chart: some lines around a step, with what was seen marked."""

    at: float
    start: float
    window: tuple[float, float]
    chart: str = ""
    grid: str = ""
    layer: int = -1
    level: float | None = None
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A finding, ready to be shown."""

    code: str
    slug: str
    severity: str
    message: str
    cause: str
    fix: str
    place: str
    step: int
    count: int
    ranks: str
    source: tuple[tuple[int, str, bool], ...]  # number, code, is it the line?
    facts: tuple[tuple[str, str], ...]
    scene: Scene | None


def cards(recording: Recording, charts: Sequence[Chart], heats: Sequence[Heat]) -> tuple[Card, ...]:
    """Worst and earliest first."""
    last = max((line.steps[-1] for chart in charts for line in chart.lines if line.steps), default=0.0)
    ordered = sorted(recording.findings, key=lambda finding: finding.rank)
    began = _seconds(recording.facts.get("started"))
    return tuple(card(finding, _scene(finding, charts, heats, last), began) for finding in ordered)


def card(finding: Finding, scene: Scene | None, began: float) -> Card:
    """One of them; ``began`` in seconds since 1970: a file that was changed later is not shown."""
    where = finding.where
    return Card(
        code=one_line(finding.code, limit=100),
        slug=one_line(finding.slug, limit=200),
        severity=finding.severity,
        message=clean(finding.message),
        cause=clean(finding.cause),
        fix=clean(finding.fix).strip("\n"),
        place=one_line(f"{nearby(where.file)}:{where.line}", limit=300) if where else "",
        step=finding.step,
        count=finding.count,
        ranks=", ".join(map(str, finding.ranks)),
        source=_source(where, began) if where else (),
        facts=facts(finding.evidence),
        scene=scene,
    )


def _source(where: Where, began: float) -> tuple[tuple[int, str, bool], ...]:
    """The line as the run had it: of Python files only, which were not changed since. A record may name any file."""
    try:
        unchanged = where.file.endswith(".py") and os.stat(where.file).st_mtime <= began
    except (OSError, ValueError):
        return ()
    return tuple((number, code, number == where.line) for number, code in context(where)) if unchanged else ()


def _seconds(started: Value) -> float:
    try:
        return parsed(str(started)).timestamp()
    except (ValueError, OverflowError, OSError):
        return math.inf


def parsed(text: str) -> datetime:
    """A time as records have it. Raises ValueError."""
    return datetime.fromisoformat(re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text))  # as Python 3.10 wants it


def facts(known: Mapping[str, Value]) -> tuple[tuple[str, str], ...]:
    """Names and values as text."""
    return tuple((one_line(str(n).replace("_", " "), limit=100), shown(v)) for n, v in known.items() if v is not None)


def shown(value: Value) -> str:
    """A value as people write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.5g}" if isinstance(value, float) else clean(str(value))


# --------------------------------------------------------------------------- where on which curve


def _scene(finding: Finding, charts: Sequence[Chart], heats: Sequence[Heat], last: float) -> Scene | None:
    if finding.step < 1 or last < finding.step:
        return None
    start = _start(finding)
    window = _window(min(start, finding.step), max(start, finding.step), last)
    topics = _topics(finding)
    known = {"at": finding.step, "start": start, "window": window, "level": _level(finding)}
    layer = _layer(finding, heats, topics)
    if layer is not None:
        heat, row = layer
        says = f"{heat.title} of {heat.names[row]} and the median of all layers, around step {finding.step:,}."
        return Scene(grid=heat.id, layer=row, says=says, **known)  # type: ignore[arg-type]
    chart = _curve(charts, topics)
    says = f"{chart.title} around step {finding.step:,}, where {finding.code} was found." if chart else ""
    return Scene(chart=chart.id, says=says, **known) if chart else None  # type: ignore[arg-type]


def _topics(finding: Finding) -> tuple[str, str]:
    page = catalogue.find(finding.code)
    return finding.slug, page.family if page else ""


def _start(finding: Finding) -> float:
    """The step where what was seen began; its own step if the evidence does not say."""
    steps = (finding.evidence.get(name) for name in STARTS)
    known = (float(s) for s in steps if isinstance(s, (int, float)) and not isinstance(s, bool) and math.isfinite(s))
    return next((step for step in known if 1 <= step <= finding.step), float(finding.step))


def _level(finding: Finding) -> float | None:
    values = (finding.evidence.get(name) for name in LEVELS)
    return next((rounded(value) for value in values if isinstance(value, (int, float))), None)


def _window(start: float, end: float, last: float) -> tuple[float, float]:
    around = max(LEAST, SHARE * last, (end - start) * 0.5)
    return max(0.0, start - around), min(last, end + around)


def _layer(finding: Finding, heats: Sequence[Heat], topics: Sequence[str]) -> tuple[Heat, int] | None:
    """The layer that the evidence names, in the quantity that speaks of it."""
    named = {value for value in finding.evidence.values() if isinstance(value, str)}
    named |= {f"{name}.weight" for name in named}
    wanted = next((GRIDS[topic] for topic in topics if topic in GRIDS), ())
    for heat in sorted((heat for heat in heats if heat.id in wanted), key=lambda heat: wanted.index(heat.id)):
        for row, name in enumerate(heat.names):
            if name in named and len(heat.steps) >= FEWEST:
                return heat, row
    return None


def _curve(charts: Sequence[Chart], topics: Sequence[str]) -> Chart | None:
    wanted = next((CURVES[topic] for topic in topics if topic in CURVES), "loss")
    there = {chart.id: chart for chart in charts if max(len(line.steps) for line in chart.lines) >= FEWEST}
    return there.get(wanted) or there.get("loss")
