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
TAKING_AWAY = ("remove", "unlink", "rmdir", "removedirs")
MOVING = ("rename", "replace", "renames")


class Scratch:
    """A folder in place of the script's own: what is opened for writing lands there, and is read from there again.

    Covers Python's ``open`` and what is built on it (json, csv, pickle, numpy, pathlib), ``torch.save``, and calls that
    remove or move files. Libraries that write from C, and other processes, still reach the real files.
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
        if not isinstance(file, (str, os.PathLike)):
            return file
        path = os.path.abspath(os.fspath(file))
        if path.startswith((self.folder, "/dev/", "/proc/")) or not (WRITING & set(mode) or path in self.kept):
            return file
        ours = Path(self.folder + os.sep + "scratch" + os.sep + path.lstrip(os.sep).replace(":", ""))
        if path not in self.kept:
            ours.parent.mkdir(parents=True, exist_ok=True)
            if os.path.isfile(path) and "w" not in mode:  # appended to, or changed in place
                shutil.copyfile(path, ours)
            self.kept.add(path)
        return str(ours)

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
            return None

        return moved
