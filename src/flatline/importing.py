"""Runs something right after a module was imported, without importing it; imports of our own when the script is over."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

AT_START = [*sys.path[1:], *sys.path[:1]]  # the first is the folder of the program that was started: it comes last


@contextmanager
def as_at_start() -> Iterator[None]:
    """For late imports of ours: the script may have emptied ``sys.path``, or put a folder with a ``rich.py`` first."""
    theirs, sys.path = sys.path, list(AT_START)
    try:
        yield
    finally:
        sys.path = theirs


class _AfterImport(MetaPathFinder):
    """Finds the module as everyone else would, and adds a call behind its execution."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name, self.action = name, action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = self._others(fullname, path, target)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self.action()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call ``action``, which must not raise, when the module is there: at once if it is, else after its import."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _AfterImport(name, action))
