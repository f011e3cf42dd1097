"""What the numbers that a script compares were while it trained: its counters and metrics, seen now and then."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from flatline.sensors.callers import is_users, variables_of
from flatline.sensors.rounds import share_of
from flatline.sensors.sources import FUNCTIONS, called_name, tree_of
from flatline.sensors.stages import speaks_of_freezing

SPREAD = 16  # looks are that part of the steps so far apart, and this many steps at least
FRAMES = 16  # of the user's, from the innermost
OBJECTS = 32  # of the user's classes, that a look reads attributes of
ELEMENTS = 8  # of a list that is gone through for them
SERIES = 256


@dataclass(slots=True)
class Series:
    """One number of the script's, as far as it was seen."""

    first: tuple[int, float]  # step and value
    last: tuple[int, float]
    low: float
    high: float
    looks: int = 1
    changes: int = 0
    fell: int = 0  # looks at which it was less than before, which a clock never is
    counts: bool = True  # it has grown by one with every step

    def saw(self, step: int, value: float) -> None:
        """One more look; a counter may have begun anew."""
        if value < self.last[1]:
            self.fell += 1
            self.first, self.looks, self.counts = (step, value), 0, True
        self.looks += 1
        self.changes += value != self.last[1]
        self.counts = self.counts and value - self.first[1] == step - self.first[0]
        self.last, self.low, self.high = (step, value), min(self.low, value), max(self.high, value)


class Witnessed:
    """By function or class, and name."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str], Series] = {}
        self._wanted: dict[str, frozenset[str]] = {}  # file -> names that it compares; empty where nothing is unfrozen
        self._next = 0

    def look(self, frame: FrameType | None, step: int) -> None:
        """Read numbers of the functions that run now; no object is kept."""
        if step < self._next:
            return
        self._next = step + max(SPREAD, step // SPREAD)
        for _ in range(FRAMES):
            if frame is None:
                return
            wanted = self._names(frame.f_code.co_filename)
            if wanted:
                whose = frame.f_code.co_name.replace("<module>", "")
                self._read(whose, variables_of(frame), wanted, step)
            frame = frame.f_back

    def end(self, step: int) -> None:
        """What the script itself holds when it is over."""
        main = sys.modules.get("__main__")
        wanted = self._names(str(getattr(main, "__file__", "") or "<none>"))
        if wanted and main is not None:
            self._read("", vars(main), wanted, step)

    def of(self, whose: str, name: str) -> Series | None:
        """What a name of a function, or an attribute of a class's objects, was; of another, if only one has the name."""
        found = self.series.get((whose, name))
        others = [series for (_, each), series in self.series.items() if each == name]
        return found if found is not None else others[0] if len(others) == 1 else None

    def _names(self, file: str) -> frozenset[str]:
        if file not in self._wanted:
            tree = tree_of(file) if is_users(file) and speaks_of_freezing(file) else None
            self._wanted[file] = frozenset(_compared(tree)) if tree is not None else frozenset()
        return self._wanted[file]

    def _read(self, whose: str, held: Any, wanted: frozenset[str], step: int) -> None:
        objects: dict[int, Any] = {}
        for name in wanted & held.keys():
            self._saw(whose, name, held[name], step)
        for value in list(held.values()):
            objects.update((id(each), each) for each in _users(value))
        for each in list(objects.values())[:OBJECTS]:
            inner = [part for value in list(vars(each).values()) for part in _users(value)]
            objects.update((id(part), part) for part in inner if len(objects) < OBJECTS)
        for each in objects.values():
            for name in wanted & vars(each).keys():
                self._saw(type(each).__name__, name, vars(each)[name], step)

    def _saw(self, whose: str, name: str, value: Any, step: int) -> None:
        if type(value) not in (int, float) or not math.isfinite(value):
            return
        known = self.series.get((whose, name))
        if known is not None:
            if known.last[0] < step:
                known.saw(step, value)
        elif len(self.series) < SERIES:
            self.series[whose, name] = Series((step, value), (step, value), value, value)


def _users(value: Any) -> Iterator[Any]:
    """An object of a class of the user's, or those in a list."""
    for each in value[:ELEMENTS] if type(value) in (list, tuple) else (value,):
        module = sys.modules.get(type(each).__module__)
        file = getattr(module, "__file__", None)
        if file is not None and is_users(file) and type(getattr(each, "__dict__", None)) is dict:
            yield each


def _compared(tree: ast.AST) -> Iterator[str]:
    """Names and attributes in comparisons, those that are counted in rounds, and names that the file's own functions are given."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, FUNCTIONS)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) or share_of(node) is not None:
            for inner in ast.walk(node):
                if isinstance(inner, (ast.Name, ast.Attribute)):
                    yield inner.id if isinstance(inner, ast.Name) else inner.attr
        elif isinstance(node, ast.Call) and called_name(node) in own:
            given = [*node.args, *(k.value for k in node.keywords)]
            yield from (each.id for each in given if isinstance(each, ast.Name))
