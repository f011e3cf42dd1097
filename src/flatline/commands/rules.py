"""``flatline rules``: the table."""

from __future__ import annotations

import dataclasses
import json
import shutil

from flatline import catalogue


def rules(form: str) -> int:
    """Print the table of rules, for people or as JSON."""
    table = catalogue.table()
    if form == "json":
        print(json.dumps([dataclasses.asdict(row) for row in table], indent=2))
        return 0
    wide = max(len(row.slug) for row in table)
    room = max(30, shutil.get_terminal_size((110, 24)).columns - wide - 16)
    for row in table:
        summary = row.summary if len(row.summary) <= room else row.summary[: room - 1] + "…"
        print(f"{row.code:<4} {row.slug:<{wide}}  {row.severity:<7}  {summary}")
    return 0
