"""Adapters that were built for layers of a model and given to its optimizer, and that the model never calls."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from flatline.events import AdaptersUnused, Where
from flatline.sensors.callers import methods_of
from flatline.sensors.dropped import dropped_statement
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import ModelSensor
from flatline.sensors.tree import entry, modules, parameters
from flatline.sensors.wrapping import Built

SETTLED = 2  # steps of an optimizer from which on a parameter that takes part has a gradient
SEVERAL = 2  # adapters of one class whose shapes fit
STAGES = 4  # optimizers of one run that are looked at


class Adapter(NamedTuple):
    """One of them: its parameters, how often each was written to, and the layer that it was built around."""

    built: Built
    tensors: list[tuple[Any, int]]
    layer: str

    @property
    def learned(self) -> bool:
        """Something was written to it, or it has a gradient by now."""
        alive = [(p, version) for ref, version in self.tensors if (p := ref()) is not None]
        return any(p.grad is not None or p._version != version for p, version in alive)


def _adapter(home: Built, held: list[Any], layer: str) -> Adapter:
    return Adapter(home, [(weakref.ref(p), p._version) for p in held], layer)


def _around(idle: list[tuple[Built, list[Any]]], ran: dict[int, str]) -> Iterator[Adapter]:
    """Those that were built around a layer that runs."""
    for home, held in idle:
        inner = [ran[id(layer)] for layer in home.layers if id(layer) in ran]
        if inner:
            yield _adapter(home, held, inner[0])


def _words(kind: type) -> set[str]:
    """Names that a class's own methods use, but for its constructor."""
    return {name for method in methods_of(kind) for name in method.__code__.co_names}


def _frozen(layer: Any) -> tuple[int, ...]:
    """The shape of a frozen matrix."""
    weight = entry(layer._parameters, "weight")
    return tuple(weight.shape) if weight is not None and not weight.requires_grad and weight.dim() == 2 else ()


def _plain_and_frozen(layer: Any) -> bool:
    """It has parameters, none of them trains, and nothing was hung on it."""
    hung = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    held = list(parameters(layer))
    return not hung and bool(held) and not any(p.requires_grad for p in held)


def _fits(held: list[Any], layers: list[tuple[str, tuple[int, ...]]]) -> str:
    """The frozen layer that the product of two matrices of low rank has the shape of."""
    matrices = [tuple(p.shape) for p in held if p.dim() == 2]
    if len(matrices) != 2 or len(matrices) != len(held):
        return ""
    (a, b), (c, d) = matrices
    products = [(a, d)] if b == c < min(a, d) else []
    products += [(c, b)] if d == a < min(c, b) else []
    products += [shape[::-1] for shape in products]
    return next((path for product in products for path, shape in layers if shape == product), "")


class Waiting:
    """What one optimizer holds without a use."""

    def __init__(self, state: OptimizerState, adapters: list[Adapter], shares: tuple[int, int]) -> None:
        self.state, self.where, self.adapters = weakref.ref(state), state.where, adapters
        self.held, self.shares, self.steps = len(state.parameters), shares, state.steps

    def look(self) -> None:
        """Once more; where some learn by now, they had their turn to come."""
        state = self.state()
        self.steps = max(self.steps, state.steps if state is not None else 0)
        if any(adapter.learned for adapter in self.adapters):
            self.adapters = []


class UnusedAdapters:
    """Called after sampled steps."""

    def __init__(self, loop: Loop, models: ModelSensor) -> None:
        self.loop, self.models = loop, models
        self._waiting: dict[int, Waiting] = {}
        self._loose: tuple[Waiting, list[tuple[Built, str]]] | None = None

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """At its first close step that counts, find them; from then on see whether they still wait."""
        for waiting in self._waiting.values():
            waiting.look()
        new = state.key not in self._waiting and len(self._waiting) < STAGES
        if new and state.steps >= SETTLED and self.loop.dense and self.loop.wants(AdaptersUnused):
            waiting = self._waiting[state.key] = Waiting(state, self._found(state), self._shares())
            if not waiting.adapters:
                self._look_for_loose(state, waiting)

    def _found(self, state: OptimizerState) -> list[Adapter]:
        """Those whose layers run without them, where none of their class learns."""
        homes = {id(p): self.models.wrapping.homes(p) for p in state.parameters if p.requires_grad}
        learning = {home.kind for p in state.parameters if p.grad is not None for home in homes.get(id(p), ())}
        groups: dict[int, tuple[Built, list[Any]]] = {}
        for p in state.parameters:
            for home in homes.get(id(p), ()) if p.grad is None else ():
                groups.setdefault(id(home), (home, []))[1].append(p)
        ran = {key: path for model in self.models.known for key, path in model.paths.items() if key in model.ran}
        known = ran.keys() | self._asked_for(ran)
        idle = [
            (home, held) for home, held in groups.values() if home.kind not in learning and id(home.ref()) not in known
        ]
        return list(_around(idle, ran)) or list(self._beside(idle, ran))

    def _look_for_loose(self, state: OptimizerState, waiting: Waiting) -> None:
        """Those that were built around frozen layers that run, and that became a part of nothing."""
        held = {id(home) for p in state.parameters for home in self.models.wrapping.homes(p)}
        ran = {key: path for model in self.models.known for key, path in model.paths.items() if key in model.ran}
        built = [each for each in self.models.wrapping.wrappers if each.weighty and id(each) not in held]
        layers = {id(each): [m for m in each.layers if id(m) in ran and _plain_and_frozen(m)] for each in built}
        found = [(each, ran[id(layers[id(each)][0])]) for each in built if layers[id(each)]]
        if found:
            self._loose = waiting, found

    def _loose_ones(self, found: list[tuple[Built, str]]) -> list[tuple[Built, str]]:
        """None of their class is a part of anything by now, or ever ran, and what built them dropped them."""
        ran = {key for model in self.models.known for key in (*model.ran, *model.ran_without_grad)}
        every = [each for each in self.models.wrapping.wrappers if each.kind == found[0][0].kind]
        apart = all(each.within is None and id(each.ref()) not in ran for each in every)
        own = [(each, layer) for each, layer in found if each.kind == found[0][0].kind]
        places = {each.where for each, _ in own}
        return (
            own
            if apart and len(own) >= SEVERAL and all(dropped_statement(place, own[0][0].kind) for place in places)
            else []
        )

    def _asked_for(self, ran: dict[int, str]) -> set[int]:
        """Parts of a model that methods of what runs speak of: they may leave them out on purpose, as behind a flag."""
        parts = [part for model in self.models.alive() for part in modules(model) if id(part) in ran]
        named = [inner for part in parts for name, inner in part._modules.items() if name in _words(type(part))]
        return {id(inner) for child in named if child is not None for inner in modules(child)}

    def _beside(self, idle: list[tuple[Built, list[Any]]], ran: dict[int, str]) -> Iterator[Adapter]:
        """Without a layer of their own: their products have the shapes of frozen layers, and there are several."""
        layers = [(ran[id(m)], _frozen(m)) for model in self.models.alive() for m in modules(model) if id(m) in ran]
        fitting = [(home, held, path) for home, held in idle if (path := _fits(held, layers))]
        kinds = Counter(home.kind for home, _, _ in fitting)
        for home, held, path in fitting:
            if kinds[home.kind] >= SEVERAL and kinds[home.kind] == sum(each.kind == home.kind for each, _ in idle):
                yield _adapter(home, held, path)

    def _shares(self) -> tuple[int, int]:
        """Elements of the models that run: frozen, trainable."""
        both = {id(p): p for model in self.models.alive() for p in parameters(model)}
        frozen = sum(p.numel() for p in both.values() if not p.requires_grad)
        return frozen, sum(p.numel() for p in both.values() if p.requires_grad)

    def finish(self, how: str) -> None:
        """Tell of those that waited to the end."""
        for waiting in self._waiting.values() if how == "finished" else ():
            waiting.look()
            if waiting.adapters:
                self._tell(waiting)
        if how == "finished" and self._loose is not None:
            self._tell_loose(*self._loose)

    def _tell_loose(self, waiting: Waiting, found: list[tuple[Built, str]]) -> None:
        loose = self._loose_ones(found)
        if not loose:
            return
        built = loose[0][0]
        self.loop.emit(
            AdaptersUnused(
                step=self.loop.steps,
                where=built.where or waiting.where,
                adapter=built.kind,
                adapters=len(loose),
                held=waiting.held,
                layers=tuple(layer for _, layer in loose),
                statement=dropped_statement(built.where, built.kind),
                steps=waiting.steps,
                frozen=waiting.shares[0],
                trainable=waiting.shares[1],
            )
        )

    def _tell(self, waiting: Waiting) -> None:
        built = waiting.adapters[0].built
        self.loop.emit(
            AdaptersUnused(
                step=self.loop.steps,
                where=built.where or waiting.where,
                adapter=built.kind,
                adapters=len(waiting.adapters),
                tensors=sum(len(adapter.tensors) for adapter in waiting.adapters),
                held=waiting.held,
                layers=tuple(adapter.layer for adapter in waiting.adapters),
                kept=built.ref() is not None,
                steps=waiting.steps,
                frozen=waiting.shares[0],
                trainable=waiting.shares[1],
            )
        )
