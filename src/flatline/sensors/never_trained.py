"""A body that is frozen as it was built, under a head that trains on what it puts out."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from flatline.events import BodyNeverTrained, Where
from flatline.sensors.audit import AuditSensor
from flatline.sensors.drawn import drawn_alone
from flatline.sensors.loop import Loop, OptimizerState
from flatline.sensors.models import Model, ModelSensor, is_norm, readable
from flatline.sensors.tree import modules, own_parameters, parameters

DEEP = 3  # frozen matrices: a layer or two of random features are drawn on purpose
MOSTLY = 0.8  # share of the elements of the model that are frozen
WATCHED = 8  # frozen parameters of each model that are looked at again
STAGES = 4  # optimizers of one run that are looked at


class Watched(NamedTuple):
    """A frozen parameter, and how often it had been written to."""

    ref: Any
    version: int

    def is_as_it_was(self) -> bool:
        """Neither unfrozen nor written to, as long as it is there."""
        p = self.ref()
        return p is None or (not p.requires_grad and p._version == self.version)


class NeverTrained:
    """Told of steps under close look, and of sampled ones."""

    def __init__(self, loop: Loop, models: ModelSensor, audit: AuditSensor) -> None:
        self.loop, self.models, self.audit = loop, models, audit
        self._found: dict[int, tuple[BodyNeverTrained, list[Watched]]] = {}  # by key of the optimizer
        self._looked: set[int] = set()

    def before_step(self, state: OptimizerState) -> None:
        """At the first one: what the head trains on."""
        if state.steps or state.by_hand or state.key in self._looked or len(self._looked) >= STAGES:
            return
        self._looked.add(state.key)
        if not self.loop.wants(BodyNeverTrained) or self._compared(state):
            return
        for model in self.models.known:
            facts = self._facts(model, state)
            if facts is not None:
                self._found[state.key] = facts
                return

    def _compared(self, state: OptimizerState) -> bool:
        """The same line built the optimizer of another model: random features may be what the others are compared with."""
        others = [each for each in (*self.loop.states, *self.loop.retired) if each is not state and each.steps]
        return any(each.where == state.where for each in others)

    def _facts(self, model: Model, state: OptimizerState) -> tuple[BodyNeverTrained, list[Watched]] | None:
        root = model.ref()
        every = list(parameters(root)) if root is not None else []
        frozen = [p for p in every if not p.requires_grad]
        size, matrices = sum(p.numel() for p in frozen), [p for p in frozen if p.dim() > 1]
        if len(matrices) < DEEP or size < MOSTLY * sum(p.numel() for p in every):
            return None
        head = _last_ones(list(_layers_in_order(model)))
        trained = [p for layer in head for p in own_parameters(layer)]
        if not trained or not {id(p) for p in every if p.requires_grad} <= ({id(p) for p in trained} & state.ids):
            return None
        norms = [layer for layer in modules(root) if is_norm(layer) and own_parameters(layer) and layer not in head]
        if not self._is_fresh(frozen, matrices) or not all(_as_built(layer) for layer in norms):
            return None
        return BodyNeverTrained(
            step=1,
            where=state.where,
            optimizer=state.facts,
            model=type(root).__name__,
            matrices=len(matrices),
            frozen=size,
            trainable=sum(p.numel() for p in trained),
            norms=len(norms),
            replaced=any(layer in self.models.replaced for layer in head),
        ), [Watched(weakref.ref(p), p._version) for p in frozen[:: max(1, len(frozen) // WATCHED)]]

    def _is_fresh(self, frozen: list[Any], matrices: list[Any]) -> bool:
        """Made here layer by layer, and neither copied, loaded nor trained since."""
        if not all(readable(p) and p.is_floating_point() for p in frozen):
            return False
        copied = [p for p in frozen if id(p) not in self.loop.born]
        if not all(_has_twin(p, copied) for p in copied):
            return False
        large = sorted(matrices, key=lambda p: int(p.numel()))[-DEEP:]
        return self.audit.untouched(frozen) and all(drawn_alone(p) for p in large)

    def after_step(self, state: OptimizerState, where: Where | None) -> None:
        """A stage that unfreezes it, or something that fills it, was to come."""
        if state.key in self._found and not all(each.is_as_it_was() for each in self._found[state.key][1]):
            del self._found[state.key]

    def finish(self) -> None:
        """Tell of bodies that stayed what they were."""
        for event, watched in self._found.values():
            if all(each.is_as_it_was() for each in watched):
                self.loop.emit(event)


def _layers_in_order(model: Model) -> Iterator[Any]:
    """Those with parameters of their own, as they ran; none twice."""
    seen: set[int] = set()
    for call in model.calls:
        layer = call.module
        if id(layer) not in seen and id(layer) in model.paths and own_parameters(layer):
            seen.add(id(layer))
            yield layer


def _last_ones(layers: list[Any]) -> list[Any]:
    """Those that train, where they run after all that is frozen; none if one of them runs before."""
    trains = [any(p.requires_grad for p in own_parameters(layer)) for layer in layers]
    place = trains.index(True) if True in trains else len(layers)
    return layers[place:] if all(trains[place:]) else []


def _has_twin(p: Any, others: list[Any]) -> bool:
    """Another one has the same numbers, as where torch builds a stack out of copies of one new layer."""
    return any(each is not p and each.shape == p.shape and torch.equal(each, p) for each in others)


def _as_built(norm: Any) -> bool:
    """Ones and zeros."""
    return all(bool((p == float(name == "weight")).all()) for name, p in norm.named_parameters(recurse=False))
