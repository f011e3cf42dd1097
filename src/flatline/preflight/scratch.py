"""A folder in which what the script writes, makes, moves and removes stands, in place of its own files."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WRITING = frozenset("wax+")
HOPS = 8  # links on the way to a file
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "",
    "TRITON_CACHE_DIR": "~/.triton",
    "TORCH_HOME": "~/.cache/torch",
    "HF_HOME": "~/.cache/huggingface",
}


class Scratch:
    """Knows, for a path of the script's, where it stands now: in the scratch folder, nowhere, or where it was.

    ``redirecting.py`` sends the functions of ``os`` here, ``libraries.py`` those that write from C.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.kept: set[str] = set()  # real paths that stand there: files, folders and links
        self.gone: set[str] = set()  # real paths that the script took away; they are still there
        self.links: dict[str, tuple[str, str]] = {}  # real path of a link -> what it leads to, as it was said
        temporary = tempfile.gettempdir() + os.sep + tempfile.template  # asked for now: it unlinks a file itself
        self.left_alone: tuple[str, ...] = (folder, temporary, "/dev/", "/proc/", *_caches())
        self._state = threading.local()
        self._lstat, self._rename, self._symlink = os.lstat, os.rename, os.symlink

    # ------------------------------------------------------------------ where things are

    @property
    def through(self) -> bool:
        """The functions of ``os`` mean what they say: it is we who call them."""
        return getattr(self._state, "through", False)

    @contextmanager
    def straight(self) -> Iterator[None]:
        """In this thread every path means itself."""
        before, self._state.through = self.through, True
        try:
            yield
        finally:
            self._state.through = before

    def place(self, file: Any, mode: str, *, follow: bool = True) -> Any:
        """Where a file is opened: in the scratch folder if it is written, or was, or was taken away."""
        if self.through or not isinstance(file, (str, bytes, os.PathLike)):
            return file
        path = self.real(file, follow=follow)
        if self.is_left(path):
            return file
        if WRITING & set(mode):
            return self._written(path, mode)
        if path in self.kept or self._is_gone(path):
            return str(self.mirror(path))
        return file if follow and path == os.path.abspath(os.fsdecode(file)) else path

    def real(self, file: Any, *, follow: bool = True) -> str:
        """The whole path, through links that the script made; the last one is followed only if wanted."""
        path = os.path.abspath(os.fsdecode(file))
        for _ in range(HOPS if self.links else 0):
            link = next(
                (each for each in self.links if path.startswith(each + os.sep) or (follow and path == each)), ""
            )
            if not link:
                break
            path = self.links[link][0] + path[len(link) :]
        return path

    def is_left(self, path: str) -> bool:
        """Not the script's own: of Python's ``tempfile``, of the system, or in the scratch folder already."""
        return path.startswith(self.left_alone)

    def leads_to_left(self, path: str) -> bool:
        """A folder above one that is left alone: there must be one for the other to be made."""
        return any(each.startswith(path + os.sep) for each in self.left_alone)

    def is_there(self, path: str) -> bool:
        """Anything, as the script sees it."""
        at = self.mirror(path) if path in self.kept or self._is_gone(path) else path
        return self._exists(at)

    def inside(self, folder: str) -> list[str]:
        """Names in a real folder that the script put there."""
        return [os.path.basename(each) for each in sorted(self.kept) if os.path.dirname(each) == folder]

    def taken_from(self, folder: str) -> set[str]:
        """Names in a real folder that the script took away."""
        return {os.path.basename(each) for each in self.gone - self.kept if os.path.dirname(each) == folder}

    def mirror(self, path: str) -> Path:
        """The path of a real one in the scratch folder."""
        return Path(self.folder + os.sep + "scratch" + os.sep + path.lstrip(os.sep).replace(":", ""))

    def unnamed(self, said: str) -> str:
        """With the script's own paths, as it knows no others."""
        return said.replace(self.folder + os.sep + "scratch", "")

    def _is_gone(self, path: str) -> bool:
        return bool(self.gone) and (path in self.gone or any(str(above) in self.gone for above in Path(path).parents))

    def _exists(self, path: Any) -> bool:
        try:
            self._lstat(path)
        except (OSError, ValueError):
            return False
        return True

    # ------------------------------------------------------------------ what the script does

    def _written(self, path: str, mode: str) -> str:
        ours = self.mirror(path)
        if path in self.kept:
            return str(ours)
        if os.path.isdir(path):
            return path  # cannot be opened
        if os.path.isdir(os.path.dirname(path)):  # else it cannot be, either
            copy = os.path.isfile(path) and "w" not in mode  # appended to, or changed in place
            with self.straight():
                ours.parent.mkdir(parents=True, exist_ok=True)
                if copy:
                    shutil.copyfile(path, ours)
            self.kept.add(path)
        return str(ours)

    def make(self, path: str) -> Path:
        """Room for something new of this name. Raises as the system would, where it stands already or has no folder."""
        if self.is_there(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if not os.path.isdir(os.path.dirname(path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        ours = self.mirror(path)
        with self.straight():
            ours.parent.mkdir(parents=True, exist_ok=True)
        self.kept.add(path)
        return ours

    def make_folder(self, path: str) -> None:
        """An empty one."""
        ours = self.make(path)
        with self.straight():
            ours.mkdir(exist_ok=True)

    def make_link(self, leads_to: str, path: str) -> None:
        """A symbolic one."""
        ours = self.make(path)
        target = os.path.normpath(os.path.join(os.path.dirname(path), leads_to))
        with self.straight():
            self._symlink(self.mirror(target) if target in self.kept else target, ours)
        self.links[path] = target, leads_to

    def take(self, path: str) -> None:
        """From now on it is not there, nor is anything in it."""
        ours = self.mirror(path)
        with self.straight():
            if ours.is_dir() and not ours.is_symlink():
                shutil.rmtree(ours, ignore_errors=True)
            elif self._exists(ours):
                ours.unlink()
        self._forget(path)

    def move(self, source: str, target: str) -> None:
        """What stands here keeps what is in it; a real folder is empty under its new name."""
        ours, goal = self.mirror(source), self.mirror(target)
        copied = source not in self.kept and os.path.isfile(source)
        with self.straight():
            goal.parent.mkdir(parents=True, exist_ok=True)
            if copied:
                shutil.copyfile(source, goal)
            elif self._exists(ours):
                self._rename(ours, goal)
            else:
                goal.mkdir(exist_ok=True)
        beneath = [each for each in self.kept if each.startswith(source + os.sep)]
        if source in self.links:
            self.links[target] = self.links[source]
        self._forget(source)
        self.kept.update((target, *(target + each[len(source) :] for each in beneath)))

    def _forget(self, path: str) -> None:
        if self._exists(path):
            self.gone.add(path)
        self.kept = {each for each in self.kept if each != path and not each.startswith(path + os.sep)}
        self.links = {each: to for each, to in self.links.items() if each in self.kept}


def _caches() -> list[str]:
    """What libraries download and compile, whose compilers are other processes: nothing of the script's own."""
    known = [os.environ.get(name) or place for name, place in CACHES.items()]
    folders = [os.path.abspath(os.path.expanduser(place)) for place in known if place]
    return [*folders, os.path.join(tempfile.gettempdir(), "torchinductor_")]
