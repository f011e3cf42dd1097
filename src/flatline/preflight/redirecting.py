"""Stands before the functions of Python that write, look at, move or remove files, and sends them to the scratch folder."""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from flatline.preflight.scratch import Scratch

LOOKING = ("stat", "lstat", "access", "statvfs", "chdir", "listxattr", "getxattr")
TOUCHING = ("chmod", "utime", "setxattr", "removexattr")
TAKING_AWAY = ("remove", "unlink", "rmdir")  # os.removedirs calls the last one
MOVING = ("rename", "replace")  # os.renames calls the first one
Function = Callable[..., Any]


class Redirecting:
    """Covers ``open``, ``os.open`` and what is built on them (json, csv, pickle, numpy, pathlib, shutil, glob).

    What ``tempfile`` makes in the folder of the system, fifos, and other processes still reach the real files.
    """

    def __init__(self, scratch: Scratch) -> None:
        self.scratch = scratch
        self._replacements: dict[int, Function] = {}  # by the identity of the original

    def attach(self) -> None:
        """For the rest of the process."""
        opening = io.open

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return opening(self.scratch.place(file, mode), mode, *args, **kwargs)

        builtins.open = io.open = self._replacements[id(opening)] = opened
        self._replace("open", self._low)
        self._replace("truncate", self._truncated)
        self._replace("listdir", self._listed)
        self._replace("scandir", self._scanned)
        self._replace("mkdir", self._made)
        self._replace("symlink", self._linked)
        self._replace("link", self._linked_hard)
        self._replace("readlink", self._link_read)
        for names, wrap in ((LOOKING, self._seen), (TOUCHING, self._touched), (MOVING, self._moved)):
            for name in names:
                self._replace(name, wrap)
        for name in TAKING_AWAY:
            self._replace(name, self._taken)
        setattr(shutil, "rmtree", self._tree_taken(shutil.rmtree))  # noqa: B010 - its type is a class of its own
        setattr(tempfile, "mkdtemp", self._temporary(tempfile.mkdtemp))  # noqa: B010
        self._tell_pathlib()

    def _replace(self, name: str, wrap: Callable[[Function], Function]) -> None:
        original = getattr(os, name, None)  # some are of one system only
        if original is not None:
            self._replacements[id(original)] = replacement = functools.wraps(original)(wrap(original))
            setattr(os, name, replacement)

    def _tell_pathlib(self) -> None:
        """That of Python 3.10 keeps the functions that it found when it was imported."""
        accessor = getattr(pathlib, "_NormalAccessor", None)
        for name, held in list(vars(accessor).items()) if accessor is not None else ():
            if id(held) in self._replacements:
                setattr(accessor, name, staticmethod(self._replacements[id(held)]))

    def _straight(self, path: Any, kwargs: Any) -> bool:
        """Nothing of the script's own: no path at all, a path beside a folder's number, or left alone."""
        scratch = self.scratch
        if scratch.through or not isinstance(path, (str, bytes, os.PathLike)):
            return True
        return kwargs.get("dir_fd") is not None or scratch.is_left(scratch.real(path))

    # ------------------------------------------------------------------ looks

    def _seen(self, original: Function) -> Function:
        """A function of a path as its first argument."""
        itself = original.__name__ == "lstat"

        def seen(path: Any, *args: Any, **kwargs: Any) -> Any:
            if self._straight(path, kwargs):
                return original(path, *args, **kwargs)
            follow = not itself and kwargs.get("follow_symlinks", True)
            return original(self.scratch.place(path, "r", follow=follow), *args, **kwargs)

        return seen

    def _listed(self, original: Function) -> Function:
        """With what stands in the scratch folder, and without what was taken away."""

        def listed(path: Any = ".") -> Any:
            path = "." if path is None else path
            if self._straight(path, {}):
                return original(path)
            place = self.scratch.place(path, "r")
            if place == str(self.scratch.mirror(folder := self.scratch.real(path))):
                return original(place)
            names, away, more = original(place), self.scratch.taken_from(folder), self.scratch.inside(folder)
            if isinstance(path, bytes):
                return [name for name in names if os.fsdecode(name) not in away]
            return [*(name for name in names if name not in away), *(name for name in more if name not in names)]

        return listed

    def _scanned(self, original: Function) -> Function:
        """The same for what ``glob`` and ``os.walk`` ask."""

        def scanned(path: Any = ".") -> Any:
            path = "." if path is None else path
            if self._straight(path, {}):
                return original(path)
            place, folder = self.scratch.place(path, "r"), self.scratch.real(path)
            ours, more = str(self.scratch.mirror(folder)), self.scratch.inside(folder)
            away = {*self.scratch.taken_from(folder), *more}
            if place == ours or not away:
                return original(place)
            with original(place) as entries:
                known = [entry for entry in entries if os.fsdecode(entry.name) not in away]
            if more:
                with original(ours) as entries:
                    known += [entry for entry in entries if entry.name in more]
            return _Entries(known)

        return scanned

    def _link_read(self, original: Function) -> Function:
        def read(path: Any, **kwargs: Any) -> Any:
            if self._straight(path, kwargs):
                return original(path, **kwargs)
            link = self.scratch.links.get(self.scratch.real(path, follow=False))
            return link[1] if link else original(self.scratch.place(path, "r", follow=False), **kwargs)

        return read

    # ------------------------------------------------------------------ writes

    def _low(self, original: Function) -> Function:
        """``os.open``: its flags say whether it writes."""

        def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
            if self._straight(path, kwargs):
                return original(path, flags, *args, **kwargs)
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            mode = "w" if flags & os.O_TRUNC else "a" if writes else "r"
            return original(self.scratch.place(path, mode), flags, *args, **kwargs)

        return opened

    def _truncated(self, original: Function) -> Function:
        def truncated(path: Any, length: int) -> Any:
            return original(self.scratch.place(path, "r+"), length)

        return truncated

    def _touched(self, original: Function) -> Function:
        """Of a real file a copy; of a real folder nothing."""

        def touched(path: Any, *args: Any, **kwargs: Any) -> Any:
            if self._straight(path, kwargs):
                return original(path, *args, **kwargs)
            place = self.scratch.place(path, "r")
            if os.path.isdir(place) and not str(place).startswith(self.scratch.folder):
                return None
            there = os.path.isfile(place)
            return original(self.scratch.place(path, "a") if there else place, *args, **kwargs)

        return touched

    def _made(self, original: Function) -> Function:
        def made(path: Any, *args: Any, **kwargs: Any) -> None:
            if self._straight(path, kwargs) or self.scratch.leads_to_left(real := self.scratch.real(path)):
                original(path, *args, **kwargs)
            else:
                self.scratch.make_folder(real)

        return made

    def _linked(self, original: Function) -> Function:
        def linked(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
            if self._straight(target, kwargs):
                original(source, target, *args, **kwargs)
            else:
                self.scratch.make_link(os.fsdecode(source), self.scratch.real(target, follow=False))

        return linked

    def _linked_hard(self, original: Function) -> Function:
        """A copy: what is written to one of them does not come to the other."""

        def linked(source: Any, target: Any, **kwargs: Any) -> None:
            if self._straight(target, kwargs):
                original(self.scratch.place(source, "r"), target, **kwargs)
            else:
                shutil.copyfile(source, self.scratch.make(self.scratch.real(target, follow=False)))

        return linked

    # ------------------------------------------------------------------ takes away

    def _taken(self, original: Function) -> Function:
        """From the scratch folder; anything else stays, and is not seen any more."""
        folder = original.__name__ == "rmdir"

        def taken(path: Any, **kwargs: Any) -> None:
            if self._straight(path, {}):
                original(path, **kwargs)
            elif kwargs.get("dir_fd") is None:
                real = self.scratch.real(path, follow=False)
                self._refuse(real, path, folder=folder)
                self.scratch.take(real)

        return taken

    def _refuse(self, real: str, path: Any, *, folder: bool) -> None:
        """As the system would."""
        is_folder = os.path.isdir(path) and not os.path.islink(path)
        why = 0
        if not self.scratch.is_there(real):
            why = errno.ENOENT
        elif folder != is_folder:
            why = errno.ENOTDIR if folder else errno.EISDIR
        elif folder and os.listdir(path):
            why = errno.ENOTEMPTY
        if why:
            raise OSError(why, os.strerror(why), path)

    def _tree_taken(self, original: Function) -> Function:
        def taken(path: Any, *args: Any, **kwargs: Any) -> None:
            if self._straight(path, {}) or not self.scratch.is_there(self.scratch.real(path, follow=False)):
                with self.scratch.straight():  # of what is not there: it says so, or is told to be silent
                    original(path if self._straight(path, {}) else self.scratch.place(path, "r"), *args, **kwargs)
            elif kwargs.get("dir_fd") is None:
                self.scratch.take(self.scratch.real(path, follow=False))

        return taken

    def _moved(self, original: Function) -> Function:
        """Within the scratch folder."""

        def moved(source: Any, target: Any, **kwargs: Any) -> None:
            scratch = self.scratch
            named = {name for name, value in kwargs.items() if value is not None}
            if scratch.through or (self._straight(source, {}) and self._straight(target, {})):
                original(source, target, **kwargs)
            elif not named:
                one, other = scratch.real(source, follow=False), scratch.real(target, follow=False)
                if not scratch.is_there(one):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source, None, target)
                if scratch.is_left(other):
                    original(scratch.place(source, "r"), target)
                elif scratch.is_left(one):
                    original(source, scratch.place(target, "w"))
                else:
                    scratch.move(one, other)

        return moved

    def _temporary(self, original: Function) -> Function:
        """A folder of its own in that of the system is left alone, whatever its name begins with."""

        def made(suffix: Any = None, prefix: Any = None, dir: Any = None) -> Any:
            place = tempfile.gettempdir()
            if dir is not None and not os.path.abspath(os.fsdecode(dir)).startswith(place):
                return original(suffix, prefix, dir)
            with self.scratch.straight():
                folder = original(suffix, prefix, dir)
            self.scratch.left_alone += (os.path.abspath(os.fsdecode(folder)),)
            return folder

        return made


class _Entries(list[Any]):
    """What ``os.scandir`` returns can be closed."""

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""
