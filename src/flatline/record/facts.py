"""Facts for the record: the command without its secrets, and the commit. Nothing of the environment is kept."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

HIDDEN = "***"
SECRET = r"(?:token|secret|passw(?:or)?d|passwd|passphrase|credentials?|auth|(?:[a-z]+[-_.]?)?key|pwd|dsn)"
NAMED = re.compile(rf"^(?:-{{1,2}}|\+{{0,2}})?(?:[\w.-]*[-_.])?{SECRET}(?:[-_.](?:id|value))?$", re.IGNORECASE)
ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")
KNOWN = re.compile(
    r"\b(?:hf_|sk-|pk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abpr]-|AKIA|ASIA|AIza|ya29\.|eyJ)[\w.=/+-]{8,}|\b[0-9a-fA-F]{32,}\b"
)
LONG = re.compile(r"(?<![\w./+-])(?=[\w+/-]*\d)(?=[\w+/-]*[a-z])(?=[\w+/-]*[A-Z])[A-Za-z0-9+_-]{32,}={0,2}(?![\w./+-])")
LONGEST = 4_000  # characters of a command
PACKED = 4 << 20  # bytes


def without_secrets(words: Sequence[str]) -> str:
    """A command line as it may be shown to others."""
    told, hide = [], False
    for word in words:
        name, equals, value = word.partition("=")
        if hide and not word.startswith("--"):
            told.append(HIDDEN)
        elif equals and NAMED.match(name) and value:
            told.append(f"{name}={HIDDEN}")
        else:
            told.append(LONG.sub(HIDDEN, KNOWN.sub(HIDDEN, ADDRESS.sub(HIDDEN, word))))
        hide = not equals and word.startswith("-") and bool(NAMED.match(word))
    return " ".join(told)[:LONGEST]


def now() -> str:
    """The time, with its zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def commit(start: Path) -> str | None:
    """The commit that is checked out where the run began; read from git's own files, as no git may be there."""
    for folder in (start, *start.parents):
        if (folder / ".git").exists():
            with suppress(OSError, ValueError):
                return _head(folder / ".git")
            return None
    return None


def _head(git: Path) -> str | None:
    if git.is_file():  # a worktree, or a submodule
        git = (git.parent / git.read_text(encoding="utf-8").partition("gitdir:")[2].strip()).resolve()
    shared = git
    if (git / "commondir").is_file():
        shared = (git / (git / "commondir").read_text(encoding="utf-8").strip()).resolve()
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    name = head.partition("ref:")[2].strip()
    if not name:
        return _hash(head)
    for place in (git / name, shared / name):
        if place.is_file():
            return _hash(place.read_text(encoding="utf-8").strip())
    return _packed(shared / "packed-refs", name)


def _packed(file: Path, name: str) -> str | None:
    with file.open(encoding="utf-8") as lines:
        for line in lines.read(PACKED).splitlines():
            commit, _, ref = line.partition(" ")
            if ref == name:
                return _hash(commit)
    return None


def _hash(text: str) -> str | None:
    return text if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) else None
