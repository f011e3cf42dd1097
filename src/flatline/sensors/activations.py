"""Reads activations out of the graph: units of a ReLU that were zero on the whole batch."""

from __future__ import annotations

from typing import Any

import torch

from flatline.events import DeadFacts, ForwardObserved, Where
from flatline.sensors.graph import Graph, saved
from flatline.sensors.loop import Loop
from flatline.sensors.losses import module_of
from flatline.sensors.models import ModelSensor


def dead_units(graph: Graph, loop: Loop, models: ModelSensor, where: Where | None) -> None:
    """Tell of ReLUs with units at zero for the whole batch, for modules and for ``F.relu`` alike."""
    if not loop.wants(ForwardObserved):
        return
    found = []
    for node in graph.named("Relu"):
        units, dead, samples = _count(saved(node, "result"))
        if units:
            found.append(DeadFacts(layer=module_of(node, models), units=units, dead=dead, samples=samples))
    if found:
        loop.emit(ForwardObserved(step=loop.step, where=where, dead=tuple(reversed(found))))


def _count(output: Any) -> tuple[int, int, int]:
    """Units, units at zero on every sample, samples."""
    if not isinstance(output, torch.Tensor) or output.dim() < 2 or not output.numel():
        return 0, 0, 0
    output = output.detach()
    axis = 1 if output.dim() in (4, 5) else output.dim() - 1
    others = [d for d in range(output.dim()) if d != axis]
    units = int(output.shape[axis])
    return units, int((output.amax(dim=others) <= 0).sum()), output.numel() // units
