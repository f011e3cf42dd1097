"""Loops as every way through them: what happens to gradients, optimizers, schedules and modes, in order."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flatline.events import SourceLoop
from flatline.readers.source._concrete import NOBODY, Selves, lowest
from flatline.readers.source._dispatch import goes_through_objects
from flatline.readers.source._nodes import unparsed
from flatline.readers.source._resolve import Project
from flatline.readers.source._rounds import Known, around, turns
from flatline.readers.source._scopes import LOOPS, Class, Module, Scope, Use, calls_each
from flatline.readers.source._training import Training
from flatline.readers.source._walker import Walker, counted
from flatline.readers.source._ways import TooMany, Way


@dataclass(frozen=True, slots=True)
class Below:
    """A loop as it is for objects of a class below, and as it is for the class itself."""

    loop: SourceLoop
    owner: Class
    above: Sequence[SourceLoop]


class Loops:
    """The loops of one module."""

    def __init__(self, project: Project, module: Module) -> None:
        self.project, self.module = project, module
        self.training = Training(project, module)
        self.below: list[Below] = []

    def all(self) -> Iterator[SourceLoop]:
        """Every loop with a backward or a step in it, and every function with one outside of its loops."""
        for scope in self.module.scopes:
            if not self.training.trains(scope):
                continue
            told = [*self._of(scope, NOBODY)]
            yield from told
            for owner in lowest(self.project, scope):
                yield from self._below(scope, owner, told)

    def _below(self, scope: Scope, owner: Class, told: Sequence[SourceLoop]) -> Iterator[SourceLoop]:
        """The loops of a method for objects of a class below, where they are others; without those that lack a zeroing."""
        for loop in self._of(scope, Selves(owner)):
            above = [each for each in told if each.where == loop.where and each.repeats == loop.repeats]
            if not any(_told(loop) == _told(each) for each in above):
                self.below.append(Below(loop, owner, above))
                if loop.has("zero") or not any(each.has("zero") for each in above):
                    yield loop

    def _of(self, scope: Scope, selves: Selves) -> Iterator[SourceLoop]:
        """The loops of a function, for objects of these classes."""
        yield from self._loop(scope, scope.node.body, scope.node, selves, repeats=False)
        for use in scope.statements:
            if isinstance(use.statement, LOOPS) and not goes_through_objects(self.project, use):
                yield from self._loop(scope, use.statement.body, use.statement, selves, repeats=True)
            if id(use.statement) in scope.masked:
                yield from self._comprehension(scope, use, selves)

    def _comprehension(self, scope: Scope, use: Use, selves: Selves) -> Iterator[SourceLoop]:
        """``[train(batch) for batch in loader]`` is a loop, too."""
        each = calls_each(use.statement)
        calls = [call for call in self.training.index(scope)[1].get(id(use.statement), ()) if id(call) in each]
        if not any(self.training.busy_call(call, use) for call in calls):
            return
        walker, ways = Walker(self.training, scope, use.statement), [Way()]
        walker.selves = selves
        try:
            for call in calls:
                ways = walker.call(call, use, ways, sure=True)
        except (TooMany, RecursionError):
            return
        paths = tuple(way.ticks for way in ways if way.ended != "raise")
        if any(tick.kind in ("backward", "step") for path in paths for tick in path):
            yield SourceLoop(paths=paths, repeats=True, where=self.module.where(use.statement, scope))

    def _loop(
        self, scope: Scope, body: Sequence[ast.stmt], node: ast.stmt | ast.Module, selves: Selves, *, repeats: bool
    ) -> Iterator[SourceLoop]:
        start = self.training.index(scope)[0].get(id(node)) if repeats else None
        inner = turns(self.project, node, start) if start is not None else []
        outer = around(self.project, start) if start is not None else [{}]
        try:
            ways = [
                way
                for known in outer
                for turn in inner or [{}]
                for way in self._ways(scope, body, node, {**known, **turn}, selves, repeats=repeats)
            ]
        except (TooMany, RecursionError):
            return
        paths = tuple(way.ticks for way in ways if way.ended != "raise")
        if any(tick.kind in ("backward", "step") for path in paths for tick in path):
            times, where = counted(node), self.module.where(node, scope)
            count = self.project.number(times, start) if start is not None else None
            text = unparsed(times) if times is not None else ""
            yield SourceLoop(paths=paths, repeats=repeats, turns=text, count=count, where=where)

    def _ways(
        self,
        scope: Scope,
        body: Sequence[ast.stmt],
        node: ast.stmt | ast.Module,
        known: Known,
        selves: Selves,
        *,
        repeats: bool,
    ) -> list[Way]:
        """Through a loop, in one of the phases around it."""
        walker = Walker(self.training, scope, node if repeats and isinstance(node, ast.stmt) else None)
        walker.known, walker.selves = known, selves
        source = walker.generator(node) if repeats and isinstance(node, ast.For) else None
        if source is None or not isinstance(node, ast.For):
            return walker.block(body, [Way()], sure=True)
        return walker.turn_of(node, source)


def _told(loop: SourceLoop) -> list[list[tuple[object, ...]]]:
    return [[(t.kind, t.where, t.of, t.always) for t in path] for path in loop.paths]
