"""One JSON document: lists of numbers by name, as Keras's history, or a list of objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flatline.readers import Head, Reader
from flatline.readers._lines import Unreadable
from flatline.readers._log import Log, RunLog
from flatline.readers._numbers import is_clock, number, step_name
from flatline.readers._roles import role_of
from flatline.readers.json_lines import DEEPEST, take

LARGEST = 1 << 27  # bytes: it has to be read as a whole
LIST = re.compile(r'"([^"\\]{1,100})"\s*:\s*\[\s*"?-?(?:\d|NaN|null)')
ENTRY = re.compile(r'"([^"\\]{1,100})"\s*:\s*"?-?(?:\d|NaN)')


class JsonDocument(Reader):
    """The longest of the lists tell how many rows there are."""

    name = "JSON"
    stands_for_folder = r"(?i)^(metrics|history|log|logs|results|training)\.json$"

    def claims(self, head: Head) -> int:
        """Lists of numbers, or objects in a list, of which some have names that are known."""
        text = head.text.lstrip()
        listed = LIST if text.startswith("{") else ENTRY if re.match(r"\[\s*\{", text) else None
        if listed is None or '"log_history"' in text:
            return 0
        return int(any(role_of(name) not in ("", "epoch") for name in listed.findall(text)))

    def read(self, path: Path, log: Log) -> None:
        """The whole document."""
        if path.stat().st_size > LARGEST:
            raise Unreadable("too large for one JSON document; JSON lines can be of any size")
        told = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        run = log.run()
        if isinstance(told, list):
            for entry in told:
                if isinstance(entry, dict):
                    take(run, entry)
        elif isinstance(told, dict):
            _take_lists(run, dict(_lists(told)))


def _lists(entry: Mapping[str, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, list[object]]]:
    for key, value in entry.items():
        if isinstance(value, dict) and depth < DEEPEST:
            yield from _lists(value, f"{prefix}{key}/", depth + 1)
        elif isinstance(value, list) and value and not any(isinstance(item, (dict, list)) for item in value):
            yield f"{prefix}{key}", value


def _take_lists(run: RunLog, lists: Mapping[str, Sequence[object]]) -> None:
    """Lists as long as that of the steps go by it, the others by their own rows."""
    counted = step_name(lists)
    steps = [number(step) for step in lists[counted]] if counted else []
    for name, values in lists.items():
        if name == counted or is_clock(name):
            continue
        by_step = len(steps) == len(values)
        for row, value in enumerate(map(number, values), start=1):
            step = steps[row - 1] if by_step else row
            if value is not None and step is not None and abs(step) < 1e15:
                run.extend(name, (step,), (row,), (value,))
