"""A notebook as one source, so that it can be edited, and back again with every other byte as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import product
from typing import Any

from flatline.readers.source._files import cell_lines

MARK = "# %% flatline: begin of cell "
MAGIC = re.compile(r"\s*pass  # [%!\w?]")  # what stands for a magic in the source


@dataclass(frozen=True, slots=True)
class Notebook:
    """The JSON, and how it was written."""

    tree: dict[str, Any]
    form: dict[str, Any]
    end: str

    def source(self) -> bytes:
        """The code cells, each under a comment with its number."""
        lines: list[str] = []
        for number, cell in enumerate(self.tree["cells"]):
            if cell.get("cell_type") == "code":
                lines += [f"{MARK}{number}", *cell_lines(_text(cell))]
        return "\n".join(lines).encode()

    def written(self, source: bytes) -> bytes | None:
        """The file with the cells of a source; None if they cannot be told apart, or a magic would be moved."""
        before, after = _cells(self.source()), _cells(source)
        if list(before) != list(after):
            return None
        tree = {**self.tree, "cells": list(self.tree["cells"])}
        for number in [number for number in after if after[number] != before[number]]:
            cell = dict(tree["cells"][number])
            lines = _merged(_text(cell), before[number], after[number])
            if lines is None:
                return None
            text = "\n".join(lines)
            cell["source"] = text if isinstance(cell["source"], str) else text.splitlines(keepends=True)
            tree["cells"][number] = cell
        return (json.dumps(tree, **self.form) + self.end).encode()


def opened(data: bytes) -> Notebook | None:
    """A notebook whose JSON can be written back byte for byte; None for any other."""
    try:
        text = data.decode()
        tree = json.loads(text)
        cells = [cell for cell in tree["cells"] if cell.get("cell_type") == "code"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if any("\r" in _text(cell) or MARK in _text(cell) for cell in cells):
        return None
    body = text.rstrip("\n")
    for indent, plain in product((1, None, 2, 4, "\t", 3, 0), (False, True)):
        form = {"indent": indent, "ensure_ascii": plain}
        for separators in ((",", ": "), (", ", ": "), (",", ":")):
            if json.dumps(tree, separators=separators, **form) == body:  # type: ignore[arg-type]
                return Notebook(tree, {**form, "separators": separators}, text[len(body) :])
    return None


def _text(cell: dict[str, Any]) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _cells(source: bytes) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for line in source.decode().split("\n"):
        if line.startswith(MARK):
            lines = found.setdefault(int(line.removeprefix(MARK)), [])
        else:
            lines.append(line)
    return found


def _merged(text: str, before: Sequence[str], after: Sequence[str]) -> list[str] | None:
    """The lines of a cell as they were, with those that are new."""
    raw, lines = text.split("\n"), list[str]()
    for what, start, end, first, last in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        put = raw[start:end] if what == "equal" else list(after[first:last])
        touched = () if what == "equal" else (*before[start:end], *put)
        if any(MAGIC.match(line) for line in touched):
            return None
        lines += put
    return lines
