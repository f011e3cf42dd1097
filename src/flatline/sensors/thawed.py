"""Layers that were frozen when training began and are unfrozen later, and that no optimizer holds."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from flatline.events import UnfrozenNotHeld
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import readable
from flatline.sensors.spacing import spaced
from flatline.sensors.tree import named_parameters

TENSORS = 4_096
WATCHED = 8  # that are looked at at once
ELEMENTS = 16  # of each that are compared
LONG = 20  # steps frozen, and steps without a change since: a phase, and not a switch within a step
Tensor = torch.Tensor


class Frozen(NamedTuple):
    """A parameter, by its name."""

    name: str
    ref: Any


class Thawed(NamedTuple):
    """One that was unfrozen, and some of its elements then."""

    name: str
    ref: Any
    elements: Tensor


def _some(p: Tensor) -> Tensor:
    stride, _ = spaced(p, ELEMENTS)
    return p.detach().reshape(-1)[::stride].to("cpu", torch.float32, copy=True)


class ThawedLayers:
    """Told of steps under close look; asks a few of what was frozen on light ones now and then."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._begin(None)

    def _begin(self, state: OptimizerState | None) -> None:
        self._state, self._began, self._since, self._told = state, self.loop.steps, 0, False
        self._frozen: dict[int, Frozen] = {}
        self._trained: set[int] = set()
        self._thawed: list[Thawed] = []
        self._seen: UnfrozenNotHeld | None = None  # at the newest look
        self._next = 0

    def before_step(self, state: OptimizerState, models: Iterable[Any]) -> None:
        """What is frozen now, and was at every look since the newest optimizer began."""
        if not state.steps:
            self._begin(state)
        if self._thawed or state is not self._state or self.loop.steps > self._began + LONG:
            return
        found = [(name, p) for model in models for name, p in named_parameters(model)][:TENSORS]
        self._trained |= {id(p) for _, p in found if p.requires_grad}
        self._frozen = {
            id(p): Frozen(name, weakref.ref(p)) for name, p in found if id(p) not in self._trained and readable(p)
        }

    def look(self) -> None:
        """Between two steps: is one of the next few no longer frozen?"""
        if self._told or not self._frozen:
            return
        if self._thawed:
            self._follow()
            return
        keys = list(self._frozen)
        some = [keys[(self._next + at) % len(keys)] for at in range(min(WATCHED, len(keys)))]
        self._next += WATCHED
        if any((p := self._frozen[key].ref()) is not None and p.requires_grad for key in some):
            self._found()

    def _found(self) -> None:
        """Now all of them are looked at; those that were only frozen for a moment are not followed."""
        steps = self.loop.steps
        unheld = self._unheld(self._frozen.values()) if steps >= self._began + LONG else []
        self._thawed, self._since = [Thawed(f.name, f.ref, _some(p)) for f, p in unheld], steps
        if not self._thawed:
            self._frozen = {}

    def _unheld(self, found: Iterable[Any]) -> list[tuple[Any, Tensor]]:
        held = frozenset().union(*(state.ids for state in self.loop.states))
        alive = [(each, p) for each in found if (p := each.ref()) is not None]
        return [(each, p) for each, p in alive if p.requires_grad and id(p) not in held]

    def _follow(self) -> None:
        """As long as they were frozen they have been left out: nobody will add them."""
        steps = self.loop.steps
        if steps < self._since + LONG:
            return
        self._seen = self._facts(self._left_out())
        if self._seen is None:
            self._frozen, self._thawed = {}, []
        elif steps - self._since >= self._since - self._began:
            self._tell()

    def _left_out(self) -> list[tuple[Thawed, Tensor]]:
        """Those that get gradients and are what they were; none if one of them learns."""
        unheld = self._unheld(self._thawed)
        gone = len(unheld) < len(self._thawed) or any(not torch.equal(_some(p), each.elements) for each, p in unheld)
        return [] if gone else [(each, p) for each, p in unheld if p.grad is not None]

    def finish(self) -> None:
        """At the end of the run a shorter time is enough; the model of a function that returned is gone."""
        if self._told or not self._thawed:
            return
        if any(each.ref() is not None for each in self._thawed) and self.loop.steps >= self._since + LONG:
            self._seen = self._facts(self._left_out())
        self._tell()

    def _tell(self) -> None:
        self._told = True
        if self._seen is not None:
            self.loop.emit(self._seen)

    def _facts(self, left_out: list[tuple[Thawed, Tensor]]) -> UnfrozenNotHeld | None:
        steps, state = self.loop.steps, self._state
        if not left_out or state is None:
            return None
        return UnfrozenNotHeld(
            step=self.loop.step,
            where=state.where,
            names=tuple(each.name for each, _ in left_out),
            elements=sum(p.numel() for _, p in left_out),
            held=sum(p.numel() for p in state.parameters),
            frozen_for=self._since - self._began,
            steps=steps - self._since,
        )
