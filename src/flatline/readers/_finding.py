"""Which files under the given paths are logs, and which of them belong to one run. No link is followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flatline.readers import HEAD, Head, Reader, promised, reader_of

MOST_FILES = 100_000  # looked at under one path
DEEPEST = 40  # folders within folders
NO_LOGS = {".git", "__pycache__", "node_modules", ".venv", "venv", "site-packages", ".mypy_cache", ".ruff_cache"}
NO_LOG_ENDINGS = {
    ".py", ".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".pkl", ".pickle", ".npy", ".npz", ".onnx", ".h5", ".zip", ".gz",
    ".md", ".rst", ".html", ".png", ".jpg", ".svg", ".pdf", ".mp4", ".ipynb", ".toml", ".yaml", ".yml", ".so", ".c", ".cpp",
    ".js", ".css", ".lock", ".parquet", ".arrow", ".db-wal", ".db-shm",
}  # fmt: skip

WANDB_ITSELF = {"debug.log", "debug-internal.log", "debug-core.log"}  # what its own processes did


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one format that belong to one run."""

    run: Path
    reader: Reader
    files: tuple[Path, ...]


@dataclass(slots=True)
class Found:
    """The logs, what could not be used, and paths that are not there."""

    sources: list[Source] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)  # that lead elsewhere


def find(paths: Sequence[str]) -> Found:
    """All logs under the paths, in the order of their names."""
    found = Found()
    groups: dict[tuple[Path, Reader], list[Path]] = {}
    seen: set[tuple[int, int]] = set()
    for path in map(Path, paths):
        for file, named in _files(path, found):
            reader = _reader(file, named=named, found=found, seen=seen)
            if reader is not None:
                run = file if named and len(paths) > 1 and path.parent == file.parent else reader.run_of(file)
                groups.setdefault((_within(run, path, file), reader), []).append(file)
    if found.links:
        more = f" and {len(found.links) - 3} more" if len(found.links) > 3 else ""
        found.notes.append(f"not followed, as they lead elsewhere: {', '.join(found.links[:3])}{more}")
    runs = {run for run, _ in groups}
    found.sources = [Source(_owner(run, runs), reader, tuple(files)) for (run, reader), files in groups.items()]
    return found


def _owner(run: Path, runs: set[Path]) -> Path:
    """Of the same run tell a trainer's event files, in ``runs/DATE`` beside its state, and what W&B keeps in ``files``."""
    if run.parent.name in ("runs", "files") and run.parent.parent in runs:
        return run.parent.parent
    return run.parent if run.name == "files" and run.parent in runs else run


def _within(run: Path, given: Path, file: Path) -> Path:
    """The run is named by nothing above the given folder; a given file may be named by its folder."""
    return given if len(run.parts) < len(given.parts) and given != file else run


def _files(path: Path, found: Found) -> Iterator[tuple[Path, bool]]:
    """Regular files, and whether the user named them."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        found.missing.append(f"{path}: {getattr(error, 'strerror', None) or error}")
        return
    if stat.S_ISDIR(mode):
        yield from ((file, False) for file in _walk(path, found))
    elif stat.S_ISREG(mode):
        yield path, True
    else:
        found.missing.append(f"{path}: is neither a file nor a folder")


def _walk(top: Path, found: Found) -> Iterator[Path]:
    looked_at, waiting = 0, [(top, 0)]
    while waiting:
        folder, depth = waiting.pop()
        entries = _entries(folder, found)
        inner = [
            Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name not in NO_LOGS
        ]
        if depth < DEEPEST:
            waiting += [(path, depth + 1) for path in reversed(inner)]
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and not _is_no_log(entry.name):
                looked_at += 1
                yield Path(entry.path)
        if looked_at > MOST_FILES:
            found.notes.append(f"{top}: more than {MOST_FILES:,} files; the rest was not looked at")
            return


def _is_no_log(name: str) -> bool:
    return name in WANDB_ITSELF or os.path.splitext(name)[1].lower() in NO_LOG_ENDINGS


def _entries(folder: Path, found: Found) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except OSError as error:
        found.notes.append(f"{folder}: {error.strerror or error}")
        return []
    links = [entry for entry in entries if entry.is_symlink() and entry.name not in WANDB_ITSELF]
    found.links += [entry.path for entry in links if not _leads_inside(entry.path, folder)]
    return entries


def _leads_inside(link: str, folder: Path) -> bool:
    """A link to something beside it or below, which is found anyway."""
    try:
        return os.path.realpath(link).startswith(os.path.realpath(folder) + os.sep)
    except (OSError, ValueError):
        return False


def _reader(file: Path, *, named: bool, found: Found, seen: set[tuple[int, int]]) -> Reader | None:
    try:
        with file.open("rb") as opened:
            facts = os.fstat(opened.fileno())
            if (facts.st_dev, facts.st_ino) in seen:
                return None
            seen.add((facts.st_dev, facts.st_ino))
            head = Head(file, opened.read(HEAD), facts.st_size, named)
    except OSError as error:
        found.notes.append(f"{file}: {error.strerror or error}")
        return None
    reader = reader_of(head)
    wanted = promised(file)
    if reader is None and (named or wanted is not None):
        kind = f"no {wanted.name} as its name promises" if wanted else "no log that flatline knows"
        found.notes.append(f"{file}: " + ("empty" if not head.size else kind))
    return reader
