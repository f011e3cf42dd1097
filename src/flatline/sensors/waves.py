"""Sine layers that read what other sine layers made: how far their phases spread before any training."""

from __future__ import annotations

import torch

from flatline.events import WavesStacked, Where
from flatline.sensors.activations import is_plain, parameter_behind
from flatline.sensors.audit import AuditSensor
from flatline.sensors.graph import SHAPE_ONLY, Graph, Node, children, is_leaf, operation, saved
from flatline.sensors.loop import Loop

WAVES = ("Sin", "Cos")
LAYERS = 64  # sines of one loss that are looked at
DEPTH = 12  # operations between one layer and the next
ROWS = 512  # that are looked at
PLACES = {"Addmm": (1, 2), "Mm": (0, 1)}  # of what enters a product, and of its weight
SCALES = ("Mul", "Div", "Add", "Sub")


class WaveSensor:
    """Called with the graph under every loss on closely watched steps; looks at each training once."""

    def __init__(self, loop: Loop, audit: AuditSensor) -> None:
        self.loop, self.audit = loop, audit
        self._fresh = True
        loop.begins.append(self._begin)

    def _begin(self) -> None:
        self._fresh = True

    def after_graph(self, graph: Graph, where: Where | None) -> None:
        """The phases of all sine layers that read another one, while they are as they were drawn."""
        if not self._fresh or not self.loop.wants(WavesStacked):
            return
        self._fresh = False
        stacked = [node for node in list(graph.named(*WAVES))[:LAYERS] if _reads_another(node)]
        phases = [saved(node, "self") for node in stacked]
        if (
            not stacked
            or not all(is_plain(phase) and phase.dim() > 1 for phase in phases)
            or not self.audit.untouched(list(graph.leaves.values()))
        ):
            return
        self.loop.emit(WavesStacked(step=self.loop.step, where=where, phases=tuple(map(_spread, phases))))


def _spread(phase: torch.Tensor) -> float:
    """How far a unit's phase spreads over the samples; its bias moves all of them."""
    rows = phase.detach().reshape(-1, phase.shape[-1])
    rows = rows[:: max(1, rows.shape[0] // ROWS)].float()
    return float(rows.var(dim=0, unbiased=False).mean().sqrt())


def _reads_another(node: Node) -> bool:
    """Under a sine stands a layer, and under that another sine."""
    layer = _below(node)
    if layer is None or operation(layer) not in PLACES:
        return False
    entered, weight = (layer.next_functions[place][0] for place in PLACES[operation(layer)])
    if entered is None or parameter_behind(weight) is None:
        return False
    inner = entered if not _passes(entered) else _below(entered)
    return inner is not None and operation(inner) in WAVES


def _below(node: Node) -> Node | None:
    """The next operation that is more than a change of shape, a factor, or the bias."""
    for _ in range(DEPTH):
        parts = [child for child in children(node) if not is_leaf(child)]
        if len(parts) != 1:
            return None
        node = parts[0]
        if not _passes(node):
            return node
    return None


def _passes(node: Node) -> bool:
    return operation(node) in SCALES or operation(node) in SHAPE_ONLY
