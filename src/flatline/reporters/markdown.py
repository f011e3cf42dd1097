"""The report as Markdown, for pull requests: verdict, findings, key numbers, and the rest folded away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from flatline.findings import SEVERITIES
from flatline.reporters._plain import clean, encodable, one_line
from flatline.reporters.html.cards import Card, cards
from flatline.reporters.html.curves import Chart, Line, charts
from flatline.reporters.html.model import stack, subline, verdict

if TYPE_CHECKING:
    from flatline.record import Recording

SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~!])")
CALLS = re.compile(r"([@#])(?=\w)|(?<=\w)(:)(?=//)")  # names, numbers of issues and addresses become links otherwise
LINES = 12  # curves in the table
CELL = 300  # characters


def render(recording: Recording) -> str:
    """GitHub's Markdown. Nothing in it is a link, an image or a mention, whatever the record says."""
    drawn = charts(recording.series())
    told = sorted(cards(recording, (), ()), key=lambda card: (SEVERITIES.index(card.severity), card.step))
    parts = [
        [f"### flatline: {verdict(recording).lower()}", "", escaped(" · ".join([*subline(recording), recording.name]))],
        _findings([card for card in told if card.severity != "hint"]),
        _numbers(drawn),
        *(_folded(f"{card.code} {card.slug}: {card.severity}", _details(card)) for card in told),
        _folded("Run", _table(("", ""), [(escaped(n), escaped(v)) for n, v in stack(recording.facts)])),
        _folded(_not_checked(recording), [f"- {_code(r.code)} {escaped(r.reason)}" for r in recording.not_checked]),
    ]
    return encodable("\n\n".join("\n".join(part) for part in map(list, parts) if part) + "\n")


def escaped(text: str) -> str:
    """Text that means itself."""
    quiet = CALLS.sub(lambda match: f"{match.group()}\u200b", SPECIAL.sub(r"\\\1", one_line(text, limit=CELL)))
    return quiet.replace("&", "&amp;")


def _code(text: str) -> str:
    plain = one_line(text, limit=CELL).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""


def _block(text: str) -> list[str]:
    """A fenced block, with a fence that the text does not have."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return [fence, *clean(text).split("\n"), fence]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *lines] if lines else []


def _findings(told: Sequence[Card]) -> list[str]:
    rows = [
        (
            card.severity,
            f"**{escaped(card.code)} {escaped(card.slug)}**: {escaped(card.message)}",
            _code(card.place),
            f"{card.step:,}",
        )
        for card in told
    ]
    return _table(("", "finding", "where", "step"), rows)


def _numbers(drawn: Sequence[Chart]) -> list[str]:
    lines = [line for chart in drawn for line in chart.lines if any(v is not None for v in line.values)]
    return _table(("", "first", "last", "lowest", "highest"), map(_row, lines[:LINES]))


def _row(line: Line) -> tuple[str, ...]:
    values = [value for value in line.values if value is not None]
    name = escaped(line.name) + (" (not always finite)" if line.not_finite else "")
    return name, *(f"{value:.4g}" for value in (values[0], values[-1], min(values), max(values)))


def _details(card: Card) -> Iterator[str]:
    yield escaped(card.message)
    if card.cause:
        yield from ("", f"**Cause** {escaped(card.cause)}")
    if card.fix:
        yield from ("", "**Fix**", "", *_block(card.fix))
    if card.source:
        yield from ("", *_block("\n".join(f"{number:>5} {code}" for number, code, _ in card.source)))
    if card.facts:
        yield from ("", *_table(("evidence", ""), [(escaped(name), escaped(value)) for name, value in card.facts]))


def _not_checked(recording: Recording) -> str:
    count = len(recording.not_checked)
    return f"{count} rule{'s' if count != 1 else ''} not checked"


def _folded(title: str, lines: Iterable[str]) -> list[str]:
    inside = list(lines)
    safe = one_line(title, limit=CELL).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return [f"<details><summary>{safe}</summary>", "", *inside, "", "</details>"] if inside else []
