"""The report that people read in a terminal."""

from __future__ import annotations

import io
import linecache
import math
import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from flatline.events import Where
from flatline.findings import Finding, Report
from flatline.reporters._plain import clean, nearby, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

DOT = " · "
WIDEST = 120  # longer lines are hard to read
NARROWEST = 40
LINE_LIMIT = 400
STYLES = {"error": "red", "warning": "yellow", "hint": "blue"}
ENDINGS = {
    "crashed": " (crashed)",
    "interrupted": " (interrupted)",
    "max-steps": " (--max-steps)",
    "non-finite": " (--on-nan stop)",
}


def line(finding: Finding) -> str:
    """The one-line form, printed while the script runs."""
    return one_line(f"flatline: {DOT.join(_headline(finding))}: {finding.message}", limit=LINE_LIMIT)


def render(report: Report, *, verbose: bool = False, width: int = 80, colour: bool = False) -> str:
    """Findings as blocks, worst first, and the closing line, which is folded in colour (for a terminal) only."""
    from rich.console import Console

    page = io.StringIO()
    console = Console(
        file=page,
        width=max(NARROWEST, min(width, WIDEST)),
        color_system="standard" if colour else None,
        force_terminal=colour,
        force_jupyter=False,
        no_color=not colour,
        legacy_windows=False,
        highlight=False,
    )
    for part in _parts(report, verbose=verbose, width=console.width):
        console.print(part, crop=False)
    console.print(_closing(report, verbose=verbose, width=console.width if colour else None), soft_wrap=True)
    if folder := report.run.get("record"):
        console.print(_body(f"flatline: recorded in {nearby(str(folder))}", "dim"), soft_wrap=True)
    return re.sub(r" *((?:\x1b\[0m)?) *$", r"\1", page.getvalue(), flags=re.MULTILINE)


def _parts(report: Report, *, verbose: bool, width: int) -> Iterator[RenderableType]:
    for finding in sorted(report.findings, key=lambda finding: finding.rank):
        yield ""
        yield _header(finding, width=width)
        yield from _source(finding, width=width)
        yield _rows(finding, verbose=verbose)
    if verbose and report.not_checked:
        yield from ("", _heading("Not checked"))
        yield _not_checked(report)
    if report.notes:
        yield from ("", _heading("Notes"))
        yield from map(_note, report.notes)
    if report.findings or report.notes or (verbose and report.not_checked):
        yield ""


# --------------------------------------------------------------------------- a finding


def _headline(finding: Finding) -> list[str]:
    """``O12 double-softmax``, ``error``, ``train.py:48``, ``step 1``."""
    parts = [f"{finding.code} {finding.slug}", finding.severity]
    if finding.where is not None:
        parts.append(f"{nearby(finding.where.file)}:{finding.where.line}")
    if finding.step > 0:
        parts.append(f"step {finding.step:,}")
    if finding.count > 1:
        parts.append(f"{finding.count:,} times")
    return [*parts, *_ranks(finding)]


def _ranks(finding: Finding) -> list[str]:
    if not finding.ranks:
        return []
    if len(finding.ranks) > 8:
        return [f"{len(finding.ranks)} ranks"]
    return [("rank " if len(finding.ranks) == 1 else "ranks ") + ", ".join(map(str, finding.ranks))]


def _header(finding: Finding, *, width: int) -> Text:
    name, severity, *rest = (one_line(part) for part in _headline(finding))
    style = STYLES[finding.severity]
    return _folded([(name, f"bold {style}"), (severity, style), *((part, "") for part in rest)], width=width, indent=4)


def _folded(parts: Iterable[tuple[str, str]], *, width: int | None, indent: int) -> Text:
    """Styled parts with dots between them, on as many lines as the width asks for."""
    from rich.text import Text

    folded, used = Text(), 0
    for text, style in parts:
        fits = width is None or used + len(DOT) + len(text) <= width
        between = "" if not used else DOT if fits else "\n" + " " * indent
        folded.append(between, "dim").append(text, style)
        used = (used if fits else 0) + len(between) + len(text)
    return folded


def _rows(finding: Finding, *, verbose: bool) -> Table:
    grid = _grid()
    labelled = {"Seen": finding.message, "Cause": finding.cause, "Fix": finding.fix}
    if verbose:
        known = {name: value for name, value in finding.evidence.items() if value is not None}
        labelled["Facts"] = ", ".join(f"{name}={_value(value)}" for name, value in known.items())
    labelled["More"] = f"flatline explain {finding.code}"
    for label, text in labelled.items():
        if text:
            grid.add_row(_label(label), _body(text, "green" if label == "Fix" else "dim" if label == "More" else ""))
    return grid


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _label(text: str) -> Text:
    from rich.text import Text

    return Text(text, style="bold" if text == "Fix" else "dim")


def _body(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text().append(clean(text).strip("\n"), style)


def _grid() -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=6)
    return grid


def _indented(part: RenderableType) -> Padding:
    from rich.padding import Padding

    return Padding(part, (0, 0, 0, 2))


# --------------------------------------------------------------------------- the user's line


def _source(finding: Finding, *, width: int) -> Iterator[Text]:
    """The line that a finding points at, under the one before it."""
    from rich.text import Text

    if finding.where is None:
        return
    numbered = context(finding.where)
    digits = max((len(str(number)) for number, _ in numbered), default=0)
    for number, code in numbered:
        here = number == finding.where.line
        mark = ("▸", f"bold {STYLES.get(finding.severity, '')}") if here else (" ", "")
        shown = Text.assemble(" ", mark, " ", (f"{number:>{digits}}", "" if here else "dim"), (" │ ", "dim"))
        shown.append(code, "" if here else "dim")
        shown.truncate(width, overflow="ellipsis")
        yield shown


def context(where: Where) -> list[tuple[int, str]]:
    """The line and the one before it, numbered; nothing if the file cannot be read."""
    lines = _lines(where.file)
    if not 1 <= where.line <= len(lines):
        return []
    numbers = [number for number in (where.line - 1, where.line) if number >= 1]
    shown = [(number, clean(lines[number - 1], limit=4 * WIDEST).rstrip()) for number in numbers]
    return [(number, code) for number, code in shown if code or number == where.line]


def _lines(path: str) -> list[str]:
    """The lines of a source file or a notebook cell; none if it cannot be read."""
    if path not in linecache.cache and not os.path.isfile(path):
        return []
    if known := linecache.getlines(path):
        return known
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readlines()
    except OSError:
        return []


# --------------------------------------------------------------------------- what else the run has to say


def _heading(text: str) -> Text:
    from rich.text import Text

    return Text(text, style="bold")


def _not_checked(report: Report) -> Padding:
    from flatline.catalogue import find

    grid = _grid()
    grid.add_column(no_wrap=True)
    for unchecked in report.not_checked:
        page = find(unchecked.code)
        grid.add_row(_body(unchecked.code), page.slug if page else "", _body(one_line(unchecked.reason), "dim"))
    return _indented(grid)


def _note(note: str) -> RenderableType:
    """Lines of code, which stand further in, are not folded: they are there to be copied."""
    from rich.console import Group
    from rich.text import Text

    if note.startswith("    "):
        return Group(Text(" " * 6 + one_line(note), no_wrap=True, overflow="ignore"))  # alone it is joined to others
    return _indented(Text(one_line(note)))


def closing(report: Report, *, verbose: bool = False) -> str:
    """What was found and what was checked, in one line."""
    return DOT.join(_summary(report, verbose=verbose))


def _closing(report: Report, *, verbose: bool, width: int | None) -> Text:
    first, *rest = _summary(report, verbose=verbose)
    worst = min(report.findings, key=lambda finding: finding.rank).severity if report.findings else None
    style = f"bold {STYLES[worst] if worst else 'green'}"
    return _folded([(first, style), *((part, "dim") for part in rest)], width=width, indent=len("flatline: "))


def _summary(report: Report, *, verbose: bool) -> list[str]:
    parts = [f"flatline: {_found(report)}"]
    if report.hidden_hints:
        shows = f"--hints shows {'it' if report.hidden_hints == 1 else 'them'}"
        parts.append(f"{_many(report.hidden_hints, 'hint')} folded ({shows})")
    parts.append(_checked(report, verbose=verbose))
    steps, overhead = report.run.get("steps"), report.run.get("overhead")
    if isinstance(steps, int):
        parts.append(_many(steps, "step") + ENDINGS.get(str(report.run.get("how")), ""))
    if isinstance(overhead, (int, float)) and math.isfinite(overhead):
        parts.append(f"overhead {overhead:.1%}".replace("%", " %") if overhead >= 0.0005 else "overhead < 0.1 %")
    return parts


def _found(report: Report) -> str:
    count = {level: sum(finding.severity == level for finding in report.findings) for level in STYLES}
    by_level = [_many(count[level], level) for level in ("error", "warning") if count[level]]
    found = _many(count["error"] + count["warning"], "finding") + (f" ({', '.join(by_level)})" if by_level else "")
    return found + (f", {_many(count['hint'], 'hint')}" if count["hint"] else "")


def _checked(report: Report, *, verbose: bool) -> str:
    checked = f"{_many(len(report.checked), 'rule')} checked"
    if not report.not_checked:
        return checked
    where = "--verbose" if report.findings else f"flatline {report.run.get('command', 'run')} --verbose"
    return f"{checked}, {len(report.not_checked)} not" + ("" if verbose else f" ({where} says why)")


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
