"""A recording as the page shows it: plain values, no more of them than a page can carry."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flatline.catalogue import find
from flatline.findings import SEVERITIES, Value
from flatline.reporters._plain import nearby, one_line
from flatline.reporters.html import cards, curves, layers

if TYPE_CHECKING:
    from flatline.record import Happening, Parameter, Recording

ROWS = 2000  # parameters listed
HAPPENINGS = 300
ENDINGS = {
    "crashed": "crashed",
    "interrupted": "interrupted",
    "max-steps": "ended by --max-steps",
    "non-finite": "ended by --on-nan stop",
}
ELSEWHERE = ("loss_unproven", "steps", "seconds", "started", "process", "record")  # said at the top, or of no interest
FIRST = ("script", "command", "git_commit", "git_dirty", "seeds", "python", "torch", "device", "platform")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A row of the table of parameters."""

    name: str
    shape: str
    elements: int
    dtype: str
    trainable: bool
    optimizer: str
    rate: str
    decay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All parameters, as far as a page lists them."""

    rows: tuple[Weight, ...]
    tensors: int
    elements: int
    trainable: int

    @property
    def share(self) -> float:
        """Trainable, of all elements."""
        return self.trainable / self.elements if self.elements else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened."""

    step: int
    time: str
    kind: str
    text: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A rule, and why it could not be checked, if so."""

    code: str
    slug: str
    summary: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything on the page."""

    name: str
    verdict: str
    tone: str  # error, warning, fine, or open: nobody can say yet
    subline: tuple[str, ...]
    running: bool
    cards: tuple[cards.Card, ...]
    hints: int
    charts: tuple[curves.Chart, ...]
    missing: tuple[str, ...]
    heats: tuple[layers.Heat, ...]
    bins: tuple[layers.Bins, ...]
    weights: Weights
    marks: tuple[Mark, ...]
    stack: tuple[tuple[str, str], ...]
    checked: tuple[Judged, ...]
    not_checked: tuple[Judged, ...]
    notes: tuple[str, ...]


def view(recording: Recording) -> View:
    """Everything that is worth showing of a run."""
    drawn = curves.charts(recording.series())
    grids = (recording.grid(quantity) for quantity in recording.quantities())
    heats = layers.heats(grid for grid in grids if grid is not None)
    told = cards.cards(recording, drawn, heats)
    worst = min((card.severity for card in told), key=SEVERITIES.index, default="hint")
    return View(
        name=one_line(recording.name, limit=200),
        verdict=verdict(recording),
        tone=worst if worst != "hint" else "fine" if _settled(recording) else "open",
        subline=tuple(subline(recording)),
        running=not recording.ended,
        cards=told,
        hints=sum(card.severity == "hint" for card in told),
        charts=drawn,
        missing=curves.missing(drawn),
        heats=heats,
        bins=layers.bins(recording.histograms()),
        weights=_weights(recording.parameters()),
        marks=tuple(map(_mark, recording.happenings()[:HAPPENINGS])),
        stack=stack(recording.facts),
        checked=tuple(_judged(code) for code in recording.checked),
        not_checked=tuple(_judged(rule.code, rule.reason) for rule in recording.not_checked),
        notes=tuple(one_line(note) for note in recording.notes),
    )


# --------------------------------------------------------------------------- in words


def verdict(recording: Recording) -> str:
    """``2 problems found``, in plain words."""
    problems = sum(finding.severity != "hint" for finding in recording.findings)
    if problems:
        return f"{problems:,} problem{'s' if problems > 1 else ''} found"
    if recording.ended:
        return "Nothing wrong found" if recording.checked else "Nothing was checked"
    return "Nothing wrong seen so far"


def _settled(recording: Recording) -> bool:
    """Whether silence means that all is well."""
    return recording.ended and bool(recording.checked) and recording.facts.get("how") != "crashed"


def subline(recording: Recording) -> Iterable[str]:
    """What stands under the verdict: how much was checked, of how long a run."""
    facts = recording.facts
    if recording.checked:
        checked = len(recording.checked)
        yield f"{checked:,} rule{'s' if checked > 1 else ''} checked" + _left(len(recording.not_checked))
    steps, seconds = facts.get("steps"), facts.get("seconds")
    if isinstance(steps, int):
        yield f"{steps:,} step{'s' if steps != 1 else ''}"
    if isinstance(seconds, (int, float)) and math.isfinite(seconds):
        yield duration(seconds)
    processes = facts.get("processes")
    if isinstance(processes, int) and processes > 1:
        yield f"{processes:,} processes"
    yield from _ending(recording)
    if isinstance(started := facts.get("started"), str):
        yield moment(started)


def _left(count: int) -> str:
    return f", {count:,} not" if count else ""


def _ending(recording: Recording) -> Iterable[str]:
    how = recording.facts.get("how")
    if not recording.ended:
        yield "not finished: still running, or killed"
    elif how in ENDINGS:
        yield ENDINGS[str(how)]


def duration(seconds: float) -> str:
    """``12 min 34 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    try:
        whole = timedelta(seconds=round(seconds))
    except OverflowError:
        return f"{seconds:.3g} s"
    hours, rest = divmod(whole.seconds, 3600)
    parts = ((whole.days, "d"), (hours, "h"), (rest // 60, "min"), (rest % 60, "s"))
    return " ".join(f"{count} {unit}" for count, unit in [part for part in parts if part[0]][:2])


def moment(text: str) -> str:
    """``4 March 2026, 09:12``, or the text itself."""
    try:
        at = cards.parsed(text)
    except ValueError:
        return one_line(text, limit=60)
    return f"{at.day} {at:%B %Y, %H:%M}"


def stack(known: Mapping[str, Value]) -> tuple[tuple[str, str], ...]:
    """What the run was made with, in the words of the record."""
    order = [*(name for name in FIRST if name in known), *(name for name in known if name not in FIRST)]
    named = {name: known[name] for name in order if name not in ELSEWHERE}
    if isinstance(share := named.get("overhead"), float) and math.isfinite(share):
        named["overhead"] = f"{share:.1%}".replace("%", " %")
    named |= {
        name: str(value)
        for name, value in named.items()
        if isinstance(value, int) and value is not True and value is not False
    }
    if isinstance(ended := named.get("ended"), str):
        named["ended"] = moment(ended)
    return tuple((name, one_line(text, limit=600)) for name, text in cards.facts(named))


def _judged(code: str, reason: str = "") -> Judged:
    page = find(code)
    slug, summary = (page.slug, page.summary) if page else ("", "")
    return Judged(code=one_line(code, limit=100), slug=slug, summary=summary, reason=one_line(reason))


# --------------------------------------------------------------------------- parameters and happenings


def _weights(parameters: tuple[Parameter, ...]) -> Weights:
    return Weights(
        rows=tuple(map(_weight, parameters[:ROWS])),
        tensors=len(parameters),
        elements=sum(one.elements for one in parameters),
        trainable=sum(one.elements for one in parameters if one.trainable),
    )


def _weight(one: Parameter) -> Weight:
    return Weight(
        name=one_line(one.name, limit=300),
        shape=" × ".join(map(str, one.shape)) or "scalar",
        elements=one.elements,
        dtype=one_line(one.dtype.removeprefix("torch."), limit=40),
        trainable=one.trainable,
        optimizer=one_line(one.optimizer, limit=80),
        rate=_knob(one.learning_rate),
        decay=_knob(one.weight_decay),
    )


def _knob(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _mark(one: Happening) -> Mark:
    return Mark(
        step=one.step,
        time=duration(one.seconds) if math.isfinite(one.seconds) else "",
        kind=one_line(one.kind, limit=100),
        text=one_line(one.text, limit=400),
        place=one_line(f"{nearby(one.where.file)}:{one.where.line}", limit=300) if one.where else "",
    )


# --------------------------------------------------------------------------- what the page's script reads


def data(seen: View) -> str:
    """The curves as JSON that may stand inside a script element."""
    axes: dict[tuple[float, ...], int] = {}
    value: dict[str, Any] = {
        "charts": [_chart(chart, axes) for chart in seen.charts],
        "axes": [],
        "missing": seen.missing,
        "heats": [_fields(heat) for heat in seen.heats],
        "bins": [_fields(bins) for bins in seen.bins],
        "scenes": [_fields(card.scene) if card.scene else None for card in seen.cards],
        "marks": [mark.step for mark in seen.marks if curves.possible(mark.step)],
    }
    value["axes"] = [[curves.rounded(step) if step % 1 else int(step) for step in axis] for axis in axes]
    return embedded(value)


def embedded(value: object) -> str:
    """JSON in ASCII without the characters that end a script element or begin a comment in one."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _chart(chart: curves.Chart, axes: dict[tuple[float, ...], int]) -> dict[str, Any]:
    lines = [_fields(line) | {"steps": axes.setdefault(line.steps, len(axes))} for line in chart.lines]
    return _fields(chart) | {"lines": lines}


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
