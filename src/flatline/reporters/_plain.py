"""Text from anywhere made safe to print, and paths made short."""

from __future__ import annotations

import os
import re

LIMIT = 2000  # characters of one text that are worth printing
ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor movement
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links and other strings for the terminal
)
UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters
    r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"  # line separators and marks of writing direction
    r"\ud800-\udfff]"  # undecodable bytes
)


def clean(text: str, *, limit: int = LIMIT) -> str:
    """Without escape sequences; what a terminal would obey or hide is spelled out."""
    text = ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n").expandtabs(4)
    text = UNPRINTABLE.sub(_spelled, text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(text: str, *, limit: int = LIMIT) -> str:
    """Clean text with every run of white space as one space."""
    return " ".join(clean(text, limit=limit).split())


def encodable(text: str) -> str:
    """Undecodable bytes of a path or a message, spelled out so that the text can be written as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def nearby(path: str, *, base: str = "") -> str:
    """Relative to the base (the current directory), if the path is inside it."""
    try:
        root = base or os.getcwd()
        pairs = [(os.path.abspath(path), root), (os.path.realpath(path), os.path.realpath(root))]
    except (OSError, ValueError):
        return path
    for full, folder in pairs:
        if full.startswith(folder.rstrip(os.sep) + os.sep) and not path.startswith("<"):
            return os.path.relpath(full, folder)
    return path


def _spelled(match: re.Match[str]) -> str:
    number = ord(match.group())
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
