"""The page of ``flatline preflight``: a panel for each stage, its curve, the first images, and the findings as on every page."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatline import __version__
from flatline.findings import SEVERITIES, Report
from flatline.reporters._plain import encodable, one_line
from flatline.reporters.html import policy, template, texts
from flatline.reporters.html.cards import Card, card
from flatline.reporters.html.model import Weight
from flatline.reporters.preflight import LABEL, answered

Answer = Mapping[str, Any]
TITLES = {
    "look": "What goes in, what it meets",
    "memorise": "One batch, learned by heart",
    "rates": "Learning-rate range",
    "probe": "Questions put to the model",
}
STYLES = ("page.css", "preflight.css")
WIDTH, HEIGHT, LEFT, BOTTOM = 720.0, 200.0, 64.0, 26.0  # of a drawing, with room for its numbers
TONES = {"passed": "fine", "failed": "error", "open": "open", "not done": "open"}
ROWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line across a curve."""

    x: float
    label: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A curve as points of an SVG."""

    points: str
    ticks: tuple[tuple[float, str], ...]  # height, number
    ends: tuple[str, str]  # what stands under its first and its last point
    marks: tuple[Mark, ...]
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One stage."""

    name: str
    title: str
    verdict: str
    tone: str
    why: str
    lines: tuple[tuple[str, str], ...]
    drawing: Drawing | None
    pictures: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything on the page."""

    name: str
    verdict: str
    tone: str
    subline: tuple[str, ...]
    cards: tuple[Card, ...]
    hints: int
    notes: tuple[str, ...]
    panels: tuple[Panel, ...]
    weights: tuple[Weight, ...]


def render(report: Report, answers: Mapping[str, Answer], name: str) -> str:
    """One file, which asks nobody for anything, and runs nothing."""
    page = template("preflight").render(
        view=_view(report, answers, name),
        policy=policy((), STYLES),
        styles=texts(STYLES),
        size=(WIDTH, HEIGHT, LEFT, BOTTOM),
        version=__version__,
    )
    return encodable(page)


def _view(report: Report, answers: Mapping[str, Answer], name: str) -> View:
    shown = tuple(card(finding, None, time.time()) for finding in report.findings)
    problems = sum(finding.severity != "hint" for finding in report.findings)
    done = answered(answers)
    worst = min((finding.severity for finding in report.findings), key=SEVERITIES.index, default="hint")
    seconds = sum(float(answer.get("seconds", 0.0)) for answer in answers.values())
    return View(
        name=one_line(name, limit=200),
        verdict=f"{problems:,} problem{'s' if problems > 1 else ''} found"
        if problems
        else "Ready for the long run"
        if done == len(answers)
        else "No problem found",
        tone=worst if worst != "hint" else "fine" if done == len(answers) else "open",
        subline=(f"{done} of {len(answers)} stages gave an answer", f"{seconds:.0f} s"),
        cards=shown,
        hints=sum(finding.severity == "hint" for finding in report.findings),
        notes=tuple(one_line(note) for note in report.notes),
        panels=tuple(_panel(stage, answer) for stage, answer in answers.items()),
        weights=tuple(_weight(row) for row in answers.get("look", {}).get("parameters", ())[:ROWS]),
    )


def _panel(name: str, answer: Answer) -> Panel:
    return Panel(
        name=name,
        title=TITLES.get(name, name),
        verdict=str(answer["verdict"]),
        tone=TONES.get(str(answer["verdict"]), "open"),
        why=one_line(str(answer["why"]), limit=600),
        lines=tuple(
            (one_line(str(label), limit=LABEL), one_line(str(words), limit=1000))
            for label, words in answer.get("lines", ())
        ),
        drawing=_drawing(answer) if name != "look" else None,
        pictures=tuple((str(one["image"]), one_line(str(one["label"]))) for one in answer.get("pictures", ())),
    )


def _weight(row: Mapping[str, Any]) -> Weight:
    shape = tuple(row["shape"])
    return Weight(
        name=one_line(str(row["name"]), limit=300),
        shape=" × ".join(map(str, shape)) or "scalar",
        elements=math.prod(shape),
        dtype=one_line(str(row["dtype"])),
        trainable=bool(row["trainable"]),
        optimizer=", ".join(map(str, row["optimizers"])),
        rate=f"{row['learning_rate']:.4g}" if row["optimizers"] else "",
        decay=f"{row['weight_decay']:.4g}" if row["optimizers"] else "",
    )


# --------------------------------------------------------------------------- curves


def _drawing(answer: Answer) -> Drawing | None:
    losses = [float(loss) for loss in answer.get("losses", ()) if isinstance(loss, (int, float))]
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < 2:
        return None
    rates = [float(rate) for rate in answer.get("rates", ()) if isinstance(rate, (int, float))][: len(losses)]
    logarithmic = min(finite) > 0 and max(finite) > 10 * min(finite)
    height = _scale(finite, logarithmic=logarithmic)
    across = [LEFT + at / (len(losses) - 1) * (WIDTH - LEFT) for at in range(len(losses))]
    known = [(x, height(loss)) for x, loss in zip(across, losses, strict=True) if math.isfinite(loss)]
    ticks = {value: (height(value), f"{value:.3g}") for value in (max(finite), min(finite))}
    ends = (f"{rates[0]:.0e}", f"{rates[-1]:.0e}") if rates else ("step 1", f"step {len(losses):,}")
    return Drawing(
        points=" ".join(f"{x:.1f},{y:.1f}" for x, y in known),
        ticks=tuple(ticks.values()),
        ends=ends,
        marks=_marks(answer, rates),
        says=f"Loss from {losses[0]:.4g} to {losses[-1]:.4g} over {len(losses):,} steps"
        + (", logarithmic" if logarithmic else ""),
    )


def _scale(values: Sequence[float], *, logarithmic: bool) -> Any:
    """A number's height in the drawing."""
    turned = math.log if logarithmic else float
    low, high = turned(min(values)), turned(max(values))
    room = HEIGHT - BOTTOM - 12

    def height(value: float) -> float:
        return 6 + room * (1 - (turned(value) - low) / ((high - low) or 1.0))

    return height


def _marks(answer: Answer, rates: Sequence[float]) -> tuple[Mark, ...]:
    if len(rates) < 2:
        return ()
    begin, end = math.log(rates[0]), math.log(rates[-1])
    wanted = (("configured", "configured"), ("steepest", "falls fastest"))
    return tuple(
        Mark(x=LEFT + (math.log(rate) - begin) / (end - begin) * (WIDTH - LEFT), label=f"{label} {rate:.1e}", kind=name)
        for name, label in wanted
        if isinstance(rate := answer.get(name), (int, float)) and rates[0] <= rate <= rates[-1]
    )
