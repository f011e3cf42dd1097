"""Layers that are no modules: products of activations with a parameter, read in the graph under a loss."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from flatline.events import ActivationsSampled, LayerActivations, Where
from flatline.sensors.activations import (
    INPUTS,
    SIGNAL,
    filled,
    gain_of,
    is_plain,
    moments_of,
    parameter_behind,
    read_together,
)
from flatline.sensors.audit import AuditSensor
from flatline.sensors.graph import Graph, Node, is_leaf, operation, saved, sequence
from flatline.sensors.loop import Loop
from flatline.sensors.models import ModelSensor
from flatline.sensors.tree import parameters

Tensor = torch.Tensor
FEW = 2  # layers; one says nothing of the depth
MOST = 192  # layers that are looked at
WEIGHTS = {"Mm": 1, "Addmm": 2}  # place among the inputs


class BareLayers:
    """Tells what weights without a module make of their inputs, once a step that is looked at closely."""

    def __init__(self, loop: Loop, models: ModelSensor, audit: AuditSensor) -> None:
        self.loop, self.models, self.audit = loop, models, audit
        self._told: int | None = None  # at which step
        self._fresh = True  # so far, in this training
        loop.begins.append(self._begin)
        self._names: dict[
            int, str
        ] = {}  # of parameters of an optimizer that no module holds, as they are called elsewhere
        self._known_at = 0, 0

    def _begin(self) -> None:
        self._fresh = True

    def after_graph(self, graph: Graph, where: Where | None) -> None:
        """The products under one loss, in the order of the pass."""
        if self._told == self.loop.step or not self.loop.wants(ActivationsSampled):
            return
        self._learn()
        products = sorted(graph.named(*WEIGHTS), key=sequence) if self._names else []
        layers = [each for node in products for each in self._layer(node)][:MOST]
        if len(layers) < FEW:
            return
        untrained = self._fresh and self.audit.untouched(list(graph.leaves.values()))
        self._fresh, self._told = False, self.loop.step
        numbers = read_together([moments for _, moments in layers])
        self.loop.emit(
            ActivationsSampled(
                step=self.loop.step,
                where=where,
                model="parameters",
                untrained=untrained,
                layers=tuple(filled(f, n, untrained) for (f, _), n in zip(layers, numbers, strict=True)),
            )
        )

    def _learn(self) -> None:
        states, now = self.loop.states, (len(self.models.models), len(self.loop.states))
        if now != self._known_at:
            self._known_at = now
            held = {id(p) for module in self.models.alive() for p in parameters(module)}
            places = ((id(p), n) for state in states for n, p in enumerate(state.parameters))
            self._names = {key: f"parameter {n}" for key, n in places if key not in held}

    def _layer(self, node: Node) -> Iterator[tuple[LayerActivations, Tensor]]:
        """What a product makes of some rows; nothing where its second factor is no such parameter."""
        kind = operation(node)
        factor = node.next_functions[WEIGHTS[kind]][0]
        weight, entered = parameter_behind(factor), saved(node, INPUTS[kind])
        if (
            weight is None
            or id(weight) not in self._names
            or weight.dim() != 2
            or not (is_plain(weight) and is_plain(entered))
        ):
            return
        matrix = weight.detach() if is_leaf(factor) else weight.detach().t()
        rows = entered.detach()[:: max(1, entered.shape[0] // SIGNAL)][:SIGNAL]
        if rows.shape[1] != matrix.shape[0]:
            return
        with torch.no_grad():
            made = rows.float() @ matrix.float()
        fan_in, outputs = matrix.shape
        gain = gain_of(matrix, outputs) if self._fresh else None
        facts = LayerActivations(layer=self._names[id(weight)], kind="bare", weighted=True, gain=gain, fan_in=fan_in)
        yield facts, moments_of(None, made, weight)
