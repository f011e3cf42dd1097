"""One batch that was taken from a loader before the loop, and from which the whole run learned."""

from __future__ import annotations

import ast
import linecache
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from flatline.events import OneBatchTaken, Where
from flatline.sensors.callers import caller, is_users, users_frame, variables_of
from flatline.sensors.loop import Loop
from flatline.sensors.models import fingerprint, readable, tensors_in
from flatline.sensors.sources import LOOPS, called_name, function_around, tree_of

LOOKS = 5  # at the same numbers, before the source is asked
VALIDATIONS = 3  # that are compared with the batch
MEANT = re.compile(
    r"over-?_?fit|memori[sz]|sanity|smoke|calib|few.?shot|by heart|(single|same|fixed|full)[ _-]batch"
    r"|label+ed|(?-i:subset)|small[ _-]data|support[ _-]set|double[ _-]descent",
    re.IGNORECASE,
)  # words of a file that learns from one batch on purpose


@dataclass(slots=True)
class Taken:
    """The first batch of a loader."""

    loader: Any  # what is known of it: a weak reference, its length, how many batches it gave
    iterator: Any  # weak reference
    rows: int
    prints: frozenset[int]  # of its tensors
    where: Where | None


class LoneBatches:
    """Follows the first batches of all loaders, until a model learns from something else."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.done = False
        self._taken: list[Taken] = []
        self._model, self._rows, self._content, self._print = "", 0, 0, 0
        self._looks = 0
        self._validated: set[int] = set()  # steps

    def served(self, iterator: Any, loader: Any, batch: Any) -> None:
        """A loader gave its first batch, before any step."""
        tensors = [t for t in tensors_in(batch) if t.dim()]
        if tensors and not self.done:
            prints = frozenset(map(fingerprint, tensors))
            self._taken.append(Taken(loader, weakref.ref(iterator), len(tensors[0]), prints, caller()))

    def called(self, model: str, first: Any, *, content: int) -> None:
        """A model that is being trained was called, at a close look; what another model made is no data."""
        if self.done or first.grad_fn is not None:
            return
        if not self._looks:
            self._model, self._content, self._print = model, content, fingerprint(first)
            self._rows = first.shape[0] if first.dim() else 0
            self._taken = [each for each in self._taken if each.rows == self._rows]
        self.done = not self._taken or not content or content != self._content
        self._looks += 1
        if self._looks == LOOKS and not self.done:
            self._ask_the_source()

    def validated(self, model: str, first: Any) -> None:
        """A model ran without gradients; a batch that it was validated with is not the one it learned from."""
        if self.done or model != self._model or not readable(first) or len(self._validated) >= VALIDATIONS:
            return
        seen = fingerprint(first)
        if self.loop.steps not in self._validated and seen != self._print:
            self._validated.add(self.loop.steps)
            self._taken = [each for each in self._taken if seen not in each.prints]

    def _ask_the_source(self) -> None:
        """Is there an iterator that could give more, or does the loop count the batches of the loader? Is one batch meant?"""
        frame = users_frame()
        text = "".join(linecache.getlines(frame.f_code.co_filename)) if frame is not None else ""
        self._taken = [each for each in self._taken if _goes_on(each, frame)]
        self.done = not self._taken or not text or MEANT.search(text) is not None

    def finish(self) -> None:
        """The run is over."""
        for taken in self._taken if not self.done and self._looks >= LOOKS else ():
            if taken.loader.served == 1:
                self.loop.emit(
                    OneBatchTaken(
                        step=self.loop.steps,
                        where=taken.where,
                        model=self._model,
                        rows=self._rows,
                        length=taken.loader.length,
                        validations=len(self._validated),
                    )
                )


def _goes_on(taken: Taken, frame: FrameType | None) -> bool:
    """Somebody keeps the iterator that the batch came from; or the loop around is as long as the loader."""
    loader = taken.loader.ref()
    kept = taken.iterator() is not None and not taken.loader.persistent
    return kept or (loader is not None and any(_counts(loader, each) for each in _users_frames(frame)))


def _users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _counts(loader: Any, frame: FrameType) -> bool:
    """A loop that runs in this function has the length of the loader in it, or a name that stands for it."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    scope = function_around(file, line)
    loops = [
        n for n in ast.walk(scope or ast.Pass()) if isinstance(n, LOOPS) and n.lineno <= line <= (n.end_lineno or 0)
    ]
    if not loops:
        return False
    names = {name for name, value in (frame.f_globals | variables_of(frame)).items() if value is loader}
    lengths = {
        target.id
        for node in ast.walk(tree_of(file) or ast.Pass())
        if isinstance(node, ast.Assign) and any(_is_length(inner, names) for inner in ast.walk(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    told = {id(node) for loop in loops for each in ast.walk(loop) if _tells(each) for node in ast.walk(each)}
    inside = [node for loop in loops for node in ast.walk(loop) if id(node) not in told]
    return any(_is_length(node, names) or (isinstance(node, ast.Name) and node.id in lengths) for node in inside)


def _tells(node: ast.AST) -> bool:
    """``print(…)`` or a text with values in it: what is told there rules nothing."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and called_name(node) == "print")


def _is_length(node: ast.AST, names: set[str]) -> bool:
    """``len(loader)``."""
    if not isinstance(node, ast.Call) or called_name(node) != "len" or not node.args:
        return False
    return isinstance(node.args[0], ast.Name) and node.args[0].id in names
