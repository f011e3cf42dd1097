"""What a rehearsal knows and how far it has come. Every question with no single answer is answered by its policy."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flatline.events import SourceTick, Where
from flatline.readers.rehearsal.values import (
    MORE,
    UNKNOWN,
    Class,
    Env,
    File,
    Function,
    Library,
    Made,
    Place,
    Unknown,
    Value,
)
from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Module

EVALUATIONS = 8_000  # of expressions in one rehearsal, some 10 ms; a training script of 100 lines takes 1,100
DEPTH = 30  # calls within calls
TURNS = 2  # of a loop whose end is not known, or whose body trains
MANY_TURNS = 64  # of a loop over values that are known
Choose = Callable[[ast.AST], bool]


class Exhausted(Exception):
    """The script is longer than is worth following."""


class Raised(Exception):
    """The script raises."""


class Stopped(Exception):
    """A loop was left, perhaps over what a generator yields."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self.loop = loop


@dataclass(slots=True, eq=False)
class Loop:
    """A loop that is gone through, and what happened in each of its turns."""

    where: Where
    unsure: int
    over_data: bool = False
    loader: Made | None = None  # a DataLoader that it goes through
    quiet: bool = False  # without gradients
    scores: bool = False  # something is compared in it, or the best is chosen
    awake: list[tuple[Value, Place]] = field(default_factory=list)  # modules in train mode that were called in it
    over_doers: bool = False  # hooks, and no data
    count: float | None = None  # of its turns, where that is known
    now: list[SourceTick] = field(default_factory=list)
    turns: list[tuple[SourceTick, ...]] = field(default_factory=list)
    text: str = ""  # of how often


@dataclass(frozen=True, slots=True)
class Language:
    """What Python does with statements, expressions, calls and loops; each is given the machine first."""

    block: Callable[..., str]
    evaluate: Callable[..., Value]
    call: Callable[..., Value]
    each: Callable[..., None]


class Machine:
    """One rehearsal."""

    def __init__(
        self, project: Project, watcher: Any, choose: Choose, paths: Collection[str], language: Language
    ) -> None:
        self.project, self.watcher, self.choose, self.paths = project, watcher, choose, paths
        self.block, self.evaluate = partial(language.block, self), partial(language.evaluate, self)
        self.call, self.each = partial(language.call, self), partial(language.each, self)
        self.left = EVALUATIONS
        self.depth = self.unsure = self.forwards = 0
        self.half: list[Place] = []  # what switches float16 on
        self.quiet: list[Place] = []  # what switches gradients off
        self.transforms: list[tuple[Made, bool]] = []  # that were called, and whether that is certain
        self.kept_alive: list[Value] = []  # what is known by its identity
        self.born: dict[
            int, int
        ] = {}  # lists and tables, and how many loops there were around them when they were made
        self.files: dict[str, File] = {}
        self.loops: list[Loop] = []
        self.escaped: dict[int, Value] = {}
        self.closed = True  # no file is imported under a name that is not known

    def gathered(self, value: Value) -> list[Value]:
        """Everything that a loop over a value would go through."""
        found: list[Value] = []
        self.each(value, found.append)
        return found

    def begun(self, value: Value) -> Value:
        """A list or a table that was just made."""
        self.born[id(value)] = len(self.loops)
        self.kept_alive.append(value)
        return value

    def where(self, node: ast.AST, env: Env) -> Where:
        """The place of a node."""
        return env.module.where(node, env.scope)

    @contextmanager
    def inside(self, function: Function) -> Iterator[None]:
        """Whatever is gone through meanwhile is called from this function."""
        self.depth += 1
        self.quiet += [function.quiet] if function.quiet else []
        try:
            yield
        finally:
            del self.quiet[len(self.quiet) - bool(function.quiet) :]
            self.depth -= 1

    @property
    def sure(self) -> bool:
        """No condition without an answer stands between here and the loop around."""
        return not self.loops or self.unsure == self.loops[-1].unsure

    def spend(self) -> None:
        """One more expression. Raises Exhausted."""
        self.left -= 1
        if self.left < 0:
            raise Exhausted

    def file(self, module: Module, name: str) -> File:
        """A module, gone through when it is first asked for."""
        path = module.text.path
        if path not in self.files:
            env = Env(module, names={"__name__": name, "__file__": UNKNOWN})
            made = self.files[path] = File(env)
            for dotted in module.stars:
                self._star(dotted, env)
            self.block(module.tree.body, env)
            return made
        return self.files[path]

    def _found(self, dotted: str, env: Env) -> Module | None:
        """A module of the project, if it is one of those that are gone through."""
        found = self.project.module_of(dotted, env.module)
        return found if found is not None and found.text.path in self.paths else None

    def _star(self, dotted: str, env: Env) -> None:
        found = self._found(dotted, env)
        if found is not None:
            env.names.update(self.file(found, dotted).env.names)

    def imported(self, dotted: str, env: Env) -> Value:
        """What ``from a import b`` binds, for ``a.b``."""
        head, _, last = dotted.rpartition(".")
        if head and not dotted.startswith("torch."):
            found = self._found(head, env) if head.strip(".") else None
            if found is not None:
                names = self.file(found, head).env.names
                if last in names:
                    return names[last]
            whole = self._found(dotted, env)
            if whole is not None:
                return self.file(whole, dotted)
            if found is not None or dotted.startswith("."):
                return UNKNOWN
        return self.module(dotted, env)

    def module(self, dotted: str, env: Env) -> Value:
        """What ``import a.b`` binds."""
        found = self._found(dotted, env) if not dotted.startswith("torch") else None
        return self.file(found, dotted) if found is not None else Library(dotted)

    def escape(self, values: Sequence[Value]) -> None:
        """These were handed to something unknown: whatever may have been done to them, and to what they hold."""
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if id(value) in self.escaped or isinstance(value, (Unknown, str, int, float, Class, Library)):
                continue
            self.escaped[id(value)] = value
            waiting += _held(value)

    def truth(self, value: Value) -> bool | None:
        """Whether a value counts as true; None where that is not known."""
        if isinstance(value, Made):
            return True if value.parts is None and not value.dotted.startswith(SIZED) else None
        if value is None or isinstance(value, (bool, int, float, str, list, dict, tuple, set, frozenset, range)):
            return bool(value)
        if isinstance(value, (Function, Class)):
            return True
        return None

    def decide(self, value: Value, node: ast.AST) -> tuple[bool, bool]:
        """Which branch is taken, and whether that is certain."""
        found = self.truth(value)
        return (self.choose(node), False) if found is None else (found, True)

    def tick(self, tick: SourceTick) -> None:
        """Something happened that the state of training depends on."""
        if self.loops:
            self.loops[-1].now.append(tick)


def _held(value: Value) -> list[Value]:
    """What a value holds; a list or a table that has escaped holds more than is known."""
    if isinstance(value, dict):
        found = list(value.values())
        value[MORE] = UNKNOWN
        return found
    if isinstance(value, (list, tuple, set, frozenset)):
        found = list(value)
        if isinstance(value, list):
            value.append(UNKNOWN)
        return found
    if isinstance(value, Function):
        return list(value.env.names.values()) if value.env.outer is not None and not value.env.of_class else []
    if isinstance(value, Made):
        parts = value.parts.values() if isinstance(value.parts, dict) else value.parts or ()
        return [*value.args, *value.kwargs.values(), *value.attributes.values(), *parts]
    found = [getattr(value, name) for name in ("receiver", "function") if hasattr(value, name)]
    return [*found, *value.attributes.values()] if hasattr(value, "attributes") else found


SIZED = ("torch.utils.data", "torchvision.datasets", "argparse", "types")
