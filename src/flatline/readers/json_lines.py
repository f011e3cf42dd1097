"""JSON lines: one object for each step, numbers at any depth of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from flatline.readers import Head, Reader
from flatline.readers._lines import lines
from flatline.readers._log import Log, RunLog
from flatline.readers._numbers import is_clock, number, step_name

DEEPEST = 4  # levels of objects within objects
LOOKED_AT = 50


class JsonLines(Reader):
    """Lines that are no objects are passed over."""

    name = "JSON lines"
    known_as = r"\.(jsonl|ndjson)$"
    stands_for_folder = (
        r"(?i)^(metrics|progress|history|log|logs|results|training|train_log|train)\.(json|jsonl|ndjson)$"
    )

    def claims(self, head: Head) -> int:
        """Most lines are objects with a number in them."""
        told = [line for line in head.lines[:LOOKED_AT] if line.strip()]
        objects = [found for line in told if (found := parsed(line)) is not None]
        numbers = sum(bool(dict(scalars(found))) for found in objects)
        return 2 if numbers and 2 * len(objects) > len(told) and (len(told) > 1 or head.named) else 0

    def read(self, path: Path, log: Log) -> None:
        """Line by line."""
        run, skipped = log.run(), 0
        for line in lines(path):
            if (found := parsed(line)) is not None:
                take(run, found)
            else:
                skipped += bool(line.strip())
        if skipped:
            log.notes.append(f"{path}: {skipped} lines were not understood")


def parsed(line: str) -> dict[str, object] | None:
    """The object on a line, if it is one."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def take(run: RunLog, entry: Mapping[str, object]) -> None:
    """One more row of a run."""
    values = dict(scalars(entry))
    run.row += 1
    counted = step_name(values)
    step = values.pop(counted) if counted else run.row
    if not abs(step) < 1e15:
        step = run.row
    for name, value in values.items():
        if not is_clock(name):
            run.add(name, step, value)


def scalars(entry: Mapping[str, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    """``{"train": {"loss": 1}}`` -> train/loss, 1.0. Text that holds a number counts; lists and flags do not."""
    for key, value in entry.items():
        if isinstance(value, Mapping) and depth < DEEPEST:
            yield from scalars(value, f"{prefix}{key}/", depth + 1)
        elif (found := number(value)) is not None:
            yield f"{prefix}{key}", found
