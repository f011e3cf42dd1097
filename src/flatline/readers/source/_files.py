"""Which files are source, and their text: Python files and the cells of notebooks."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import sys
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"}
LARGEST = 32 << 20  # bytes of a file that are worth parsing
MAGIC = re.compile(r"^\s*[%!?]|^\s*[\w.]+\?{1,2}\s*$|^\s*\w[\w, ]*=\s*[%!]")


@dataclass(frozen=True, slots=True)
class Text:
    """The text of one file. Lines of a notebook are those of its code cells, one after the other."""

    path: str
    lines: tuple[str, ...]
    cells: tuple[tuple[int, int], ...] = ()  # first line here, and number of the cell

    def place(self, line: int) -> tuple[str, int]:
        """File and line as people count them: ``train.ipynb:cell 3`` and the line in the cell."""
        for first, number in reversed(self.cells):
            if line >= first:
                return f"{self.path}:cell {number}", line - first + 1
        return self.path, line


@dataclass(slots=True)
class Found:
    """The files under some paths."""

    files: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Unparsable(Exception):
    """A file that cannot be read; its text is one clear line."""


def find(paths: Sequence[str]) -> Found:
    """Python files and notebooks. A file that is named is taken whatever it is called; no link to a folder is followed."""
    found = Found()
    for path in paths:
        if os.path.isdir(path):
            found.files += sorted(_walk(path, found))
        elif os.path.exists(path):
            found.files.append(path)
        else:
            found.missing.append(f"{path}: there is no such file")
    found.files = list(dict.fromkeys(map(os.path.normpath, found.files)))
    return found


def _walk(top: str, found: Found) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        found.notes.append(f"{error.filename}: {(error.strerror or 'cannot be read').lower()}")

    for folder, below, names in os.walk(top, onerror=unreadable):
        below[:] = sorted(name for name in below if name not in SKIPPED and not name.startswith("."))
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith((".py", ".ipynb")) and not name.startswith(".") and os.path.isfile(path):
                yield path


def read(path: str) -> Text:
    """The text of a file. Raises Unparsable."""
    try:
        if os.path.getsize(path) > LARGEST:
            raise Unparsable(f"{path}: larger than {LARGEST >> 20} MB")
        data = Path(path).read_bytes()
    except OSError as error:
        raise Unparsable(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    return notebook(path, data) if path.endswith(".ipynb") else python(path, data)


def python(path: str, data: bytes) -> Text:
    """Decoded as Python would: byte order marks and coding lines are obeyed. Raises Unparsable."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = io.IncrementalNewlineDecoder(None, translate=True).decode(data.decode(encoding), final=True)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise Unparsable(f"{path}: {_first_line(error)}") from None
    return Text(path, tuple(text.split("\n")))


def notebook(path: str, data: bytes) -> Text:
    """The code cells, with IPython's magics as comments. Raises Unparsable."""
    try:
        cells = json.loads(data.decode("utf-8-sig"))["cells"]
        sources = [(n, cell["source"]) for n, cell in enumerate(cells, 1) if cell.get("cell_type") == "code"]
        texts = [(n, source if isinstance(source, str) else "".join(source)) for n, source in sources]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unparsable(f"{path}: cannot be read as a notebook") from None
    lines: list[str] = []
    places = []
    for number, text in texts:
        places.append((len(lines) + 1, number))
        lines += cell_lines(text)
    return Text(path, tuple(lines), tuple(places))


def cell_lines(text: str) -> list[str]:
    """The lines of a cell, each as Python."""
    return _parsable(_without_magics(text))


def _without_magics(text: str) -> list[str]:
    lines = text.replace("\r\n", "\n").split("\n")
    if text.lstrip().startswith("%%") and not text.lstrip().startswith(("%%time", "%%capture", "%%prun")):
        return [f"# {line}" for line in lines]
    return [re.sub(r"\S.*", lambda found: f"pass  # {found[0]}", line) if MAGIC.match(line) else line for line in lines]


def _parsable(lines: list[str]) -> list[str]:
    """A cell that was left half written is a comment."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [f"# {line}" for line in lines]
    return lines


def parse(text: Text) -> ast.Module:
    """The tree. Raises Unparsable."""
    source = "\n".join(text.lines)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        file, line = text.place(getattr(error, "lineno", None) or 1)
        old = " (Python 2?)" if re.search(r"^\s*print\s+[\w\"']|^\s*except\s+\w+\s*,", source, re.MULTILINE) else ""
        reason = f"{_first_line(error)}{old}"
        raise Unparsable(
            f"{file}:{line}: cannot be parsed by Python {sys.version_info[0]}.{sys.version_info[1]}: {reason}"
        ) from None


def _first_line(error: BaseException) -> str:
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return (said or type(error).__name__).splitlines()[0][:120]
