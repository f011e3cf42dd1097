"""What a process under watch says, on its streams as they were before the script had its hands on them."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatline.findings import Finding, Report
from flatline.reporters import text

HIGH = 200  # the first descriptor that is ours: the script's own get the numbers they would have got


class Stream:
    """``stdout`` or ``stderr`` as we found it: the script may close, replace or drop its own."""

    def __init__(self, name: str) -> None:
        self._own = getattr(sys, name, None)
        self._encoding = getattr(self._own, "encoding", None) or "utf-8"
        self._descriptor = _duplicate(self._own)
        self.is_terminal = bool(getattr(self._own, "isatty", bool)())
        os.register_at_fork(after_in_child=self._close)

    def write(self, words: str) -> None:
        """Behind all that the script has written; a reader that has gone is no error."""
        flush(sys.stdout, sys.stderr, self._own)
        with suppress(OSError, ValueError, AttributeError):
            if self._descriptor is None:
                self._own.write(words)  # type: ignore[union-attr]
                flush(self._own)
            else:
                _write(self._descriptor, words.encode(self._encoding, errors="replace"))

    def tell(self, finding: Finding) -> None:
        """One line, the moment a finding is certain."""
        start = "\r\033[K" if self.is_terminal else ""
        self.write(f"{start}{text.line(finding)}\n")

    def say(self, words: str) -> None:
        """One line of ours beside the findings."""
        start = "\r\033[K" if self.is_terminal else ""
        self.write(f"{start}flatline: {words}\n")

    def _close(self) -> None:
        """A forked child is silent, and must not keep a pipe open that its parent closes."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = None


def _duplicate(stream: Any) -> int | None:
    """A descriptor of our own for a stream that has one."""
    try:
        return fcntl.fcntl(stream.fileno(), fcntl.F_DUPFD_CLOEXEC, HIGH)
    except (OSError, ValueError, AttributeError):
        return None


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def flush(*streams: Any) -> None:
    """What is left in the buffers, if there are any still."""
    for stream in streams:
        with suppress(Exception):  # an object of the script's own may raise anything
            stream.flush()


def width() -> int:
    """Columns of a text report: those of the terminal, within what is easy to read."""
    return max(60, min(120, shutil.get_terminal_size((100, 24)).columns))


def colour(output: str | None) -> bool:
    """Whether a report on stdout is read in a terminal that shows colours."""
    return not output and sys.stdout.isatty() and "NO_COLOR" not in os.environ


def put(words: str, output: str | None) -> None:
    """A report into its file, or onto stdout in whatever encoding that has. Raises OSError."""
    if output:
        Path(output).write_text(words, encoding="utf-8")
        return
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(words.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def brief(report: Report) -> str:
    """The report without rich: the lines told at once, the notes, and the closing line."""
    return "\n".join([*map(text.line, report.findings), *report.notes, text.closing(report)])
