"""What ``flatline preflight`` shows: a line for each stage with its facts, then the findings as in every report."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from flatline.findings import Report
from flatline.reporters import json, text
from flatline.reporters._plain import one_line

Answers = Mapping[str, Mapping[str, Any]]
MARKS = {"passed": "✓", "failed": "✗", "open": "?", "not done": "–"}
BARS = " ▁▂▃▄▅▆▇█"
OURS = ("findings", "checked", "not_checked", "run", "pictures")  # told elsewhere, or drawn
WIDTH = 48  # characters of a curve
LABEL = 32  # of what stands before a line


def render(report: Report, answers: Answers, *, width: int = 80) -> str:
    """For people, in lines of this width."""
    parts: list[str] = []
    for name, answer in answers.items():
        parts += _folded("", line(name, answer), width, indent=2)
        rows = [(one_line(str(label), limit=LABEL), str(words)) for label, words in answer.get("lines", ())]
        curves = _curves(name, answer)
        wide = max((len(label) for label, _ in (*rows, *curves)), default=0)
        for label, words in rows:
            parts += _folded(f"    {label:<{wide}}  ", one_line(words), width, indent=wide + 6)
        parts += [f"    {label:<{wide}}  {drawn}" for label, drawn in curves]
    told = text.render(report, width=width) if report.findings else f"{_closing(answers)}\n"
    notes = () if report.findings else (f"  {one_line(note)}\n" for note in report.notes)
    return "\n".join(parts) + "\n" + "".join(notes) + told


def _folded(label: str, words: str, width: int, *, indent: int) -> list[str]:
    """Its lines; those after the first stand under its words."""
    return textwrap.wrap(
        words, width, initial_indent=label, subsequent_indent=" " * indent, break_on_hyphens=False, drop_whitespace=True
    ) or [label.rstrip()]


def line(name: str, answer: Mapping[str, Any]) -> str:
    """The verdict of a stage."""
    return f"{MARKS.get(str(answer['verdict']), '?')} {name:<9} {answer['verdict']}: {one_line(str(answer['why']), limit=300)}"


def _closing(answers: Answers) -> str:
    return f"flatline: 0 findings · {answered(answers)} of {len(answers)} stages gave an answer"


def answered(answers: Answers) -> int:
    """How many stages came to a verdict."""
    return sum(answer["verdict"] in ("passed", "failed") for answer in answers.values())


def _curves(name: str, answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    losses = [loss for loss in answer.get("losses", ()) if isinstance(loss, (int, float))]
    if name == "look" or len(losses) < 2:
        return []
    rates = [rate for rate in answer.get("rates", ()) if isinstance(rate, (int, float))][: len(losses)]
    rows = [("loss", sparkline(_logarithms(losses) if rates else losses) + ("" if rates else f" {len(losses)} steps"))]
    return [*rows, *_marks(answer, rates)] if rates else rows


def _logarithms(losses: Sequence[float]) -> Sequence[float]:
    """A sweep ends orders of magnitude above where it began."""
    return [math.log(loss) if 0 < loss < math.inf else loss for loss in losses] if min(losses) > 0 else losses


def _marks(answer: Mapping[str, Any], rates: Sequence[float]) -> list[tuple[str, str]]:
    """The rates under the curve: ▲ where the loss falls fastest, | the configured one."""
    size = max(1, -(-len(rates) // WIDTH))
    marks = [" "] * -(-len(rates) // size)
    for rate, mark in ((answer.get("configured"), "|"), (answer.get("steepest"), "▲")):
        if isinstance(rate, (int, float)) and rates[0] <= rate <= rates[-1]:
            marks[sum(each < rate for each in rates) // size] = mark
    shown = [("rate", f"{''.join(marks)} {rates[0]:.0e} … {rates[-1]:.0e}")]
    return [*shown, ("", "▲ falls fastest, | configured")] if "".join(marks).strip() else shown


def sparkline(values: Sequence[float]) -> str:
    """A curve in one line of text: the median of each stretch; of what is not finite an ×."""
    size = max(1, -(-len(values) // WIDTH))
    stretches = [sorted(values[at : at + size])[len(values[at : at + size]) // 2] for at in range(0, len(values), size)]
    finite = [value for value in stretches if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(BARS) - 2) / (high - low) if high > low else 0.0
    return "".join(BARS[1 + round((v - low) * scale)] if math.isfinite(v) else "×" for v in stretches)


def as_json(report: Report, answers: Answers) -> str:
    """The contract of ``flatline run``, and the stages."""
    return json.render(report, stages=[{"stage": name, **_public(answer)} for name, answer in answers.items()])


def _public(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in OURS}
