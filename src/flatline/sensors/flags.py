"""``module.requires_grad = True``: an attribute that nobody reads, where ``requires_grad_()`` was meant."""

from __future__ import annotations

import linecache
import re
import weakref
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

from flatline.events import FlagOnModule, Where
from flatline.sensors.tree import modules, named_modules, parameters

SET = re.compile(r"([\w.\[\]'\"]+)\.requires_grad\s*=\s*(\w+)\b")
LINES = 20_000  # of a file that is searched
MODULES = 4_096
WATCHED = 8  # modules that are looked at at once


class Flags:
    """Modules that are looked at in turn on light steps: the models of a function that returns are gone at the end."""

    def __init__(self) -> None:
        self._refs: list[Any] = []
        self._known: set[int] = set()  # that had the attribute already
        self._next = 0

    def update(self, models: Iterable[Any]) -> None:
        """What there is now."""
        found = [part for model in models for part in modules(model)][:MODULES]
        self._refs = [weakref.ref(part) for part in found]
        self._known = {id(part) for part in found if "requires_grad" in part.__dict__}

    def changed(self) -> bool:
        """Whether some of the next few modules have the attribute, and had not when last told of."""
        some = [self._refs[(self._next + at) % len(self._refs)]() for at in range(min(WATCHED, len(self._refs)))]
        self._next += WATCHED
        return any(m is not None and "requires_grad" in m.__dict__ and id(m) not in self._known for m in some)


def flagged(model: Any, files: Iterable[str], step: int, trained: set[int]) -> Iterator[FlagOnModule]:
    """Modules with such an attribute whose parameters are all of the other kind; if it is False, in an optimizer, too."""
    for path, module in named_modules(model):
        flag = module.__dict__.get("requires_grad")
        held = list(parameters(module))
        if isinstance(flag, bool) and held and _against(held, trained, flag=flag) and not _own(type(module)):
            name = path or type(module).__name__
            where = _line(files, name.rpartition(".")[2] if path else "", flag=flag)
            yield FlagOnModule(
                step=step,
                where=where,
                module=name,
                flag=flag,
                tensors=len(held),
                elements=sum(p.numel() for p in held),
            )


def _against(held: list[Any], trained: set[int], *, flag: bool) -> bool:
    return all(p.requires_grad is not flag for p in held) and (flag or any(id(p) in trained for p in held))


def _own(kind: type) -> bool:
    """The class itself knows the word: the attribute is a setting of its own."""
    methods = [m for base in kind.__mro__[:-1] for m in vars(base).values() if isinstance(m, FunctionType)]
    words = {word for m in methods if not m.__module__.startswith("torch.nn") for word in _words(m.__code__)}
    return "requires_grad" in words


def _words(code: Any) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_varnames


def _line(files: Iterable[str], name: str, *, flag: bool) -> Where | None:
    """The only line of these files that sets the attribute to this value, or to a name, on something of this name if it has one."""
    found = []
    for file in files:
        for number, line in enumerate(_lines(file), 1):
            match = SET.search(line)
            if (
                match is not None
                and match.group(2) not in (str(not flag), "None")
                and not line.lstrip().startswith("#")
            ):
                target = match.group(1).rpartition(".")[2]
                found.append((target == name, match.group(2) == str(flag), Where(file, number)))
    named = [where for same, _, where in found if same]
    literal = [where for _, is_it, where in found if is_it]
    passed = [where for _, is_it, where in found if not is_it]
    return next((each[0] for each in (named, literal, passed) if len(each) == 1), None)


def _lines(file: str) -> list[str]:
    return linecache.getlines(file)[:LINES]
