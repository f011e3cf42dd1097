"""Keeps what the script writes away from its own files while a stage runs it."""

from __future__ import annotations

import builtins
import io
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WRITING = frozenset("wax+")
LOOKING = ("stat", "lstat", "access", "chmod", "utime")  # at what stands in the scratch folder
TAKING_AWAY = ("remove", "unlink", "rmdir", "removedirs")
MOVING = ("rename", "replace", "renames")


class Scratch:
    """A folder in place of the script's own: what is opened for writing lands there, and is read from there again.

    Covers Python's ``open`` and ``os.open`` and what is built on them (json, csv, pickle, numpy, pathlib, shutil), ``torch.save``,
    and calls that look at, list, remove or move files. What ``tempfile`` makes, directories, links, libraries that write
    from C, and other processes still reach the real ones.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.kept: set[str] = set()  # real paths that stand there
        self.temporary = tempfile.gettempdir() + os.sep + tempfile.template  # asked for now: it unlinks a file itself

    def attach(self) -> None:
        """Stand before the functions that write."""
        opening = io.open

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return opening(self.place(file, mode), mode, *args, **kwargs)

        builtins.open = io.open = opened
        setattr(os, "open", self._low(os.open))  # noqa: B010 - its type is a function of its own
        setattr(os, "truncate", self._first(os.truncate, "r+"))  # noqa: B010
        setattr(os, "listdir", self._listed(os.listdir))  # noqa: B010
        setattr(os, "scandir", self._scanned(os.scandir))  # noqa: B010
        for name in LOOKING:
            setattr(os, name, self._first(getattr(os, name), "r"))
        for name in TAKING_AWAY:
            setattr(os, name, self._only_ours(getattr(os, name)))
        for name in MOVING:
            setattr(os, name, self._moved(getattr(os, name)))
        setattr(shutil, "rmtree", self._only_ours(shutil.rmtree))  # noqa: B010 - its type is a class of its own

    def saving(self) -> None:
        """``torch.save``, when torch is there: it writes from C."""
        import torch

        module: Any = torch
        saving, loading = module.save, module.load

        def save(what: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            return saving(what, self.place(f, "w"), *args, **kwargs)

        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            return loading(self.place(f, "r"), *args, **kwargs)

        module.save, module.load = save, load

    def place(self, file: Any, mode: str) -> Any:
        """Where a file is opened: in the scratch folder if it is written, or was."""
        if not isinstance(file, (str, bytes, os.PathLike)):
            return file
        path = os.path.abspath(os.fsdecode(file))
        left_alone = path.startswith((self.folder, self.temporary, "/dev/", "/proc/"))
        if left_alone or not (WRITING & set(mode) or path in self.kept):
            return file
        ours = self._mirror(path)
        if path not in self.kept:
            ours.parent.mkdir(parents=True, exist_ok=True)
            if os.path.isfile(path) and "w" not in mode:  # appended to, or changed in place
                shutil.copyfile(path, ours)
            self.kept.add(path)
        return str(ours)

    def _mirror(self, path: str) -> Path:
        return Path(self.folder + os.sep + "scratch" + os.sep + path.lstrip(os.sep).replace(":", ""))

    def _first(self, original: Callable[..., Any], mode: str) -> Callable[..., Any]:
        """A function of a path as its first argument."""

        def placed(path: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self.place(path, mode), *args, **kwargs)

        return placed

    def _low(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``os.open``: its flags say whether it writes."""

        def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not kwargs.get("dir_fd")
            mode = "w" if flags & os.O_TRUNC else "a" if writes else "r"
            return original(self.place(path, mode), flags, *args, **kwargs)

        return opened

    def _listed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """With what stands in the scratch folder instead."""

        def listed(path: Any = ".", *args: Any) -> Any:
            names = original(path, *args)
            more = self._names(path)
            return [*names, *(name for name in more if name not in names)] if more else names

        return listed

    def _names(self, path: Any) -> list[str]:
        """Files of a folder that were written by the script."""
        if not isinstance(path, (str, os.PathLike)):
            return []
        folder = os.path.abspath(os.fspath(path))
        return [os.path.basename(each) for each in sorted(self.kept) if os.path.dirname(each) == folder]

    def _scanned(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The same for what ``glob`` and ``os.walk`` ask."""

        def scanned(path: Any = ".") -> Any:
            more = self._names(path)
            if not more:
                return original(path)
            with original(path) as entries, original(self._mirror(os.path.abspath(os.fspath(path)))) as ours:
                known = list(entries)
                names = {entry.name for entry in known}
                return _Entries([*known, *(entry for entry in ours if entry.name in more and entry.name not in names)])

        return scanned

    def _only_ours(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Takes away what is in the scratch folder; anything else stays."""

        def away(path: Any, *args: Any, **kwargs: Any) -> Any:
            ours = self.place(path, "r")
            if isinstance(ours, (str, os.PathLike)) and str(os.path.abspath(ours)).startswith(self.folder):
                self.kept.discard(os.path.abspath(os.fspath(path)))
                return original(ours, *args, **kwargs)
            return original(path, *args, **kwargs) if self._is_temporary(path) else None

        return away

    def _is_temporary(self, path: Any) -> bool:
        """A file or folder of Python's ``tempfile``, or no path at all."""
        named = isinstance(path, (str, os.PathLike))
        return not named or os.path.abspath(os.fspath(path)).startswith(self.temporary)

    def _moved(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """From the scratch folder to the scratch folder."""

        def moved(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            ours = self.place(source, "r")
            if isinstance(ours, str) and ours.startswith(self.folder):
                self.kept.discard(os.path.abspath(os.fspath(source)))
                return original(ours, self.place(target, "w"), *args, **kwargs)
            if os.path.isfile(source):  # a real one: it stays, and has its new name in the scratch folder
                shutil.copyfile(source, self.place(target, "w"))
            return None

        return moved


class _Entries(list[Any]):
    """What ``os.scandir`` returns can be closed."""

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""
